"""What a release consists of, in ``.build/release``: wheel, source archive, chart, bill of materials, checksums.

Run by ``make release`` as ``python -m tests.support.release [FOLDER]``. The same commit gives the same bytes
(``SOURCE_DATE_EPOCH`` is the commit's time). Needs git and a package index.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.support import helm

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".build" / "release"
BILL: Final = "gpu-share.cdx.json"
SUMS: Final = "SHA256SUMS"
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


class ReleaseError(Exception):
    """A program failed; the message ends with what it printed."""


def main(arguments: Sequence[str]) -> int:
    """Write the release; return 1 where a step failed."""
    folder = Path(arguments[0]) if arguments else FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        epoch = os.environ.get("SOURCE_DATE_EPOCH") or run("git", "-C", str(ROOT), "log", "-1", "--format=%ct").strip()
        _write(folder, int(epoch))
    except (ReleaseError, helm.HelmError) as error:
        print(f"the release was not written: {error}", file=sys.stderr)
        return 1
    (folder / SUMS).write_text(checksums(folder))
    print(f"wrote {folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")
    return 0


def _write(folder: Path, epoch: int) -> None:
    packages(folder, "wheel", "sdist", epoch=epoch)
    bill(folder / BILL, epoch)
    if helm.find():
        chart(folder, epoch)
    else:
        print("no chart: helm is in none of $HELM, PATH and the test cluster's cache (`make integration` builds it)")


def packages(folder: Path, *targets: str, epoch: int = 0) -> None:
    """Build ``wheel`` or ``sdist``, or both, with the pinned build tool and without a network.

    Args:
        folder: where the files go.
        targets: ``wheel``, ``sdist``.
        epoch: seconds since 1970: the time of every file in the archives.
    """
    named = [f"--target={target}" for target in targets]
    time = {"SOURCE_DATE_EPOCH": str(epoch)}
    run(sys.executable, "-m", "hatchling", "build", f"--directory={folder}", *named, environment=time)


def chart(folder: Path, epoch: int) -> None:
    """Package the chart from a copy whose files all have one time: helm takes the time of each file."""
    with tempfile.TemporaryDirectory() as place:
        copy = shutil.copytree(helm.CHART, Path(place) / helm.CHART.name)
        for file in copy.rglob("*"):
            os.utime(file, (epoch, epoch))
        helm.run("package", str(copy), "--destination", str(folder))


def bill(file: Path, epoch: int) -> None:
    """Write the libraries of the image in CycloneDX: ``requirements.txt``, installed as the Dockerfile does it."""
    with tempfile.TemporaryDirectory() as place:
        run(sys.executable, "-m", "venv", "--without-pip", place)
        locked = ("--require-hashes", "--no-deps", "--no-compile", f"--requirement={ROOT / 'requirements.txt'}")
        run(*PIP, f"--python={place}/bin/python", "install", *locked)
        describe = (f"--pyproject={ROOT / 'pyproject.toml'}", "--output-reproducible", f"--output-file={file}")
        time = {"SOURCE_DATE_EPOCH": str(epoch)}
        run(sys.executable, "-m", "cyclonedx_py", "environment", *describe, f"{place}/bin/python", environment=time)


def checksums(folder: Path) -> str:
    """Return the lines that ``sha256sum --check`` reads, one for each file of a folder."""
    files = sorted(file for file in folder.iterdir() if file.name != SUMS)
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def run(*command: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a program in the checkout and return what it printed. Raises ``ReleaseError``."""
    whole = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=whole)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command[:6])}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
