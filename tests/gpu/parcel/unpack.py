"""Unpacking the parcel on the machine, once for each parcel: nothing but Python's own library is used."""

import compileall
import io
import json
import lzma
import os
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from tests.gpu.parcel.layout import CONTENT, PARTS, PRODUCT, ROOT, SIMULATED, SITE, python_tag

PACKAGES = ("certs", "enforcer", "gpushare", "gpushare_cli", "sidecar", "webhook")
JUNK = shutil.ignore_patterns("__pycache__")
PROGRAMS = ("client.py", "exporter.py")
"""Of this folder, which containers run by themselves."""


class UnusableParcelError(RuntimeError):
    """There is no parcel, or it was made for another Python."""


def unpack(made: Path, home: Path) -> Path:
    """Unpack the parts that are in the folder ``made``; return the folder with the whole parcel.

    Raises:
        UnusableParcelError: a part is still missing, or it was made for another Python.
    """
    for part in PARTS:
        if (made / part).is_file():
            _unpack(made / part, home)
    whole = [each for each in home.glob("kept-*") if all((each / part).is_file() for part in PARTS)]
    if not whole:
        have = sorted(file.name for file in home.glob("kept-*/parcel-*.tar"))
        needed = f"{', '.join(PARTS)}; carry each here from where `make gpu-parcel` made it, into {made}"
        raise UnusableParcelError(f"{', '.join(have) or 'nothing'} has come of {needed}")
    newest = max(whole, key=lambda each: each.stat().st_mtime)
    for other in home.glob("kept-*"):
        if other != newest:
            shutil.rmtree(other)
    return newest


def _unpack(part: Path, home: Path) -> None:
    """Unpack one part, if it has not been yet; a file of its name says so."""
    with tarfile.open(part) as pieces:
        files = {each.name: pieces.extractfile(each) for each in pieces}
        content = json.loads(_read(files.pop(CONTENT)))
        if content["python"] != python_tag():
            way_out = f"make gpu-parcel PYTHON_THERE={python_tag()}"
            raise UnusableParcelError(f"{part} is for Python {content['python']}, this is {python_tag()}: {way_out}")
        folder = home / f"kept-{content['id']}"
        if (folder / part.name).is_file():
            return
        compressed = [_read(files[name]) for name in sorted(files)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the decompressor lets other threads run
        whole = b"".join(pool.map(lzma.decompress, compressed))
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        archive.extractall(folder, filter="fully_trusted")
    if (folder / SITE).is_dir():
        compileall.compile_dir(folder / SITE, quiet=2, workers=0)
    (folder / part.name).touch()


def refresh(folder: Path) -> None:
    """Put the tree's product, simulator and programs beside what was unpacked: containers see that folder alone."""
    product = folder / PRODUCT
    shutil.rmtree(product, ignore_errors=True)
    for name in (*PACKAGES, "tests/fakes"):
        shutil.copytree(ROOT / name, product / name, ignore=JUNK)
    shutil.copyfile(ROOT / "tests" / "__init__.py", product / "tests" / "__init__.py")
    shutil.copytree(folder / SIMULATED, product / "tests/fakes/gpu/lib", dirs_exist_ok=True)
    compileall.compile_dir(product, quiet=2, workers=0)
    (folder / "programs").mkdir(exist_ok=True)
    for name in PROGRAMS:
        shutil.copyfile(ROOT / "tests" / "gpu" / name, folder / "programs" / name)


def _read(file: IO[bytes] | None) -> bytes:
    assert file is not None, "parts hold files alone"
    with file:
        return file.read()
