"""``python -m tests.gpu.parcel.make``: writes the parcel, two archives, into ``.build/parcel``.

It takes the test bed's programs, one program for all of Kubernetes' own, wheels for the Python of the machine it is
made for, and the simulated driver, so that it runs on a machine without a GPU as well. The product is the tree's.
"""

import argparse
import io
import json
import lzma
import os
import secrets
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from tests.fakes.gpu.build import library_folder
from tests.gpu.parcel.layout import (
    BINARIES,
    CONTENT,
    FIRST_PART,
    KUBERNETES,
    LINKS,
    MADE,
    PARTS,
    ROOT,
    SIMULATED,
    SITE,
)
from tests.testbed.cluster import packages
from tests.testbed.cluster.binaries import Group, find_all
from tests.testbed.cluster.build import build_missing, say
from tests.testbed.cluster.errors import BedError

MOST_MIB: Final = 50
"""Of a part: the tree travels as well."""
PIECES: Final = 4
GLIBC: Final = ("2_5", "2_12", "2_17", "2_27", "2_28", "2_34")
NOT_IMPORTED: Final = ("aio", "client/api", "client/models/[a-z]*.py")
"""Of the package kubernetes, as in the Dockerfile."""


def main(argv: Sequence[str]) -> int:
    """Make it. Exit code 1: something cannot be had, or it is too large."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.parcel.make", description=__doc__)
    parser.add_argument("--python", default="3.12", help="version of Python on the machine (%(default)s)")
    parser.add_argument("--out", type=Path, default=MADE, help="folder (%(default)s)")
    asked = parser.parse_args(argv)
    try:
        make(asked.out, asked.python, tight=True)
    except (BedError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def make(out: Path, python: str, *, tight: bool) -> None:
    """Write the parts, quickly where they need not be small. Raises ``BedError``."""
    build_missing(groups=(Group.PARCEL,))
    began, out = time.monotonic(), out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _programs(folder / BINARIES)
        _site(folder / SITE, python)
        library_folder(folder / SIMULATED)
        content = {"id": secrets.token_hex(6), "python": python, "mib": dict(_sizes(folder))}
        for number, part in enumerate(PARTS):
            _pack(folder, out / part, content, first=number == 0, preset=6 if tight else 0)
    say(f"made in {time.monotonic() - began:.0f} s; unpacked, in MiB: {content['mib']}")
    for part in PARTS:
        mib = (out / part).stat().st_size / 2**20
        say(f"{out / part}: {mib:.1f} MiB")
        if tight and mib > MOST_MIB:
            raise BedError(f"{out / part} has {mib:.1f} MiB; at most {MOST_MIB} can travel in one call beside the tree")


def _programs(folder: Path) -> None:
    folder.mkdir()
    for name, source in find_all(Group.PARCEL).items():
        shutil.copy2(source, folder / name.removesuffix("-parcel"))
    for link in LINKS:
        (folder / link).symlink_to(KUBERNETES)
    (folder / "ctr").symlink_to("containerd")
    shutil.copy2(_runc(), folder / "runc")
    shutil.copy2(packages.busybox(), folder / "busybox")
    for program in folder.iterdir():
        program.chmod(0o755)


def _runc() -> Path:
    in_tree = [packages.tree(packages.NODE_PACKAGES) / "usr" / each / "runc" for each in ("sbin", "bin")]
    installed = shutil.which("runc")
    return next(each for each in (*in_tree, Path(installed or "/usr/sbin/runc")) if each.is_file())


def _site(folder: Path, python: str) -> None:
    """What the product imports, as a folder for that Python."""
    platforms = [f"--platform=manylinux_{each}_x86_64" for each in GLIBC] + ["--platform=manylinux2014_x86_64"]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    into = ["install", "--no-deps", "--no-compile", f"--target={folder}"]
    which = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
    subprocess.run([*pip, *into, *which, "--require-hashes", "-r", str(ROOT / "requirements.txt")], check=True)
    subprocess.run([*pip, *into, "--no-build-isolation", "--no-index", "--upgrade", str(ROOT)], check=True)
    for pattern in NOT_IMPORTED:
        for each in (folder / "kubernetes").glob(pattern):
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    for each in [found for found in folder.rglob("*") if found.name in {"tests", "test", "__pycache__"}]:
        shutil.rmtree(each, ignore_errors=True)
    if strip := shutil.which("strip"):
        for each in folder.rglob("*.so"):
            subprocess.run([strip, "--strip-unneeded", each], check=True)
    shutil.rmtree(folder / "gpushare_cli")  # its version alone is asked for: the rest comes with the tree


def _sizes(folder: Path) -> Iterator[tuple[str, float]]:
    for each in sorted([*(folder / BINARIES).iterdir(), folder / SITE]):
        if not each.is_symlink():
            files = [each] if each.is_file() else [file for file in each.rglob("*") if file.is_file()]
            yield each.name, round(sum(file.stat().st_size for file in files) / 2**20, 1)


def _pack(folder: Path, out: Path, content: dict[str, Any], *, first: bool, preset: int) -> None:
    """Write one part: what it is, and an archive in pieces, which are compressed and unpacked side by side."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        for each in sorted((folder / BINARIES).iterdir()):
            if (each.name in FIRST_PART) is first:
                archive.add(each, f"{BINARIES}/{each.name}")
        if not first:
            archive.add(folder / SITE, SITE)
            archive.add(folder / SIMULATED, SIMULATED)
    data = whole.getbuffer()
    size = -(-len(data) // PIECES)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the compressor lets other threads run
        pieces = list(pool.map(lambda at: _compressed(data[at : at + size], preset), range(0, len(data), size)))
    named = {CONTENT: json.dumps(content, indent=1).encode()} | {f"{at:02}.xz": each for at, each in enumerate(pieces)}
    unfinished = out.with_name(f".{out.name}")
    with tarfile.open(unfinished, "w") as archive:
        for name, piece in named.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(piece)
            archive.addfile(entry, io.BytesIO(piece))
    unfinished.rename(out)


def _compressed(data: memoryview, preset: int) -> bytes:
    """The first filter rewrites jumps of x86 programs, which makes them a little smaller."""
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": 64 << 20}]
    return lzma.compress(data, format=lzma.FORMAT_XZ, filters=filters)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
