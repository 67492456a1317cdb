"""``python -m tests.gpu.parcel.machine``: run the parcel with simulated GPUs on a machine that has nothing but Python.

Its root is a folder with Debian's base system and one Python, in namespaces of its own: it sees no program and no file
of this machine, whose kernel and process ids it shares: NVML's are those of the first namespace. Arguments go to
``run.py cluster``.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.gpu.parcel.layout import ROOT
from tests.gpu.parcel.make import make
from tests.testbed.cluster import images
from tests.testbed.cluster.build import say
from tests.testbed.cluster.errors import BedError

PARCEL: Final = ROOT / ".build" / "parcel-check"
RESULTS: Final = ROOT / ".build" / "gpu-cluster-fake"
TREE: Final = Path("srv/gpu-share")
OUT: Final = Path("srv/results")
PREFIX: Final = Path("usr/local")
LEFT_OUT: Final = ("__pycache__", "test", "site-packages", "idlelib", "config-*")
"""Of Python's own library: what is not Python's, or only people use."""
PYTHONS: Final = ("/usr/local/bin", "/usr/bin", str(Path.home() / ".pyenv" / "versions"))
SCRIPT: Final = """\
set -eu
mount --bind {root} {root}
mount --rbind /sys {root}/sys
mount --rbind /dev {root}/dev
mount -t proc proc {root}/proc
mount -t tmpfs tmpfs {root}/tmp
cd {root}
pivot_root . mnt
umount -l /mnt
cd /{tree}
status=0
{command} || status=$?
while [ -n "$(ls -d /var/tmp/gpu-share-parcel/run-* 2>/dev/null)" ]; do sleep 0.2; done
exit $status
"""
"""The shell waits for the guardian of a run that was killed: the folder goes when it ends."""


def main(argv: Sequence[str]) -> int:
    """Make the parcel and the machine, run all cases; returns the status of ``run.py cluster``."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.parcel.machine", description=__doc__)
    parser.add_argument("--python", default="3.12", help="version of the one Python there (%(default)s)")
    asked, others = parser.parse_known_args(argv)
    try:
        prefix = _prefix(asked.python)
        make(PARCEL, asked.python, tight=False)
        base = images.base()
    except (BedError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-share-machine-", dir="/var/tmp") as folder:
        root = Path(folder) / "root"
        _lay_out(root, base, prefix, asked.python)
        say(f"a machine with Debian's base system and Python {asked.python} alone")
        status = _run(root, asked.python, others)
        shutil.rmtree(RESULTS, ignore_errors=True)
        if (root / OUT).is_dir():
            shutil.copytree(root / OUT, RESULTS)
    return status


def _prefix(version: str) -> Path:
    """Where a Python of that version is installed on this machine. Raises ``BedError``."""
    for program in _candidates(version):
        ask = [program, "-c", "import sys; print(sys.base_prefix)"]
        done = subprocess.run(ask, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Path(done.stdout.strip())
    raise BedError(f"no Python {version} is installed here; install it, or name another: --python 3.11")


def _candidates(version: str) -> Iterator[str]:
    name = f"python{version}"
    if found := shutil.which(name):
        yield found
    for folder in map(Path, PYTHONS):
        yield from (str(each) for each in sorted(folder.glob(f"{version}*/bin/{name}")))


def _lay_out(root: Path, base: Path, prefix: Path, version: str) -> None:
    """Debian's base system without its Python, the one Python, this tree, and the parcel."""
    root.mkdir()
    subprocess.run(["tar", "-xf", str(base), "-C", str(root)], check=True)
    for pattern in ("usr/bin/python3*", "usr/lib/python3*"):
        for each in root.glob(pattern):
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")  # an installer's work, as on any machine
    library = f"lib/python{version}"
    shutil.copytree(prefix / library, root / PREFIX / library, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    for each in [prefix / "bin" / f"python{version}", *(prefix / "lib").glob(f"libpython{version}.so*")]:
        shutil.copy2(each, root / PREFIX / each.relative_to(prefix))
    subprocess.run(["ldconfig", "-r", str(root)], check=True)
    shutil.copytree(PARCEL, root / TREE / ".build" / "parcel")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in map(os.fsdecode, names):
        if (ROOT / name).is_file():  # one that was deleted is listed as well
            (root / TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / TREE / name)


def _run(root: Path, version: str, others: Sequence[str]) -> int:
    python = f"/{PREFIX}/bin/python{version}"
    there = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    command = [python, "tests/gpu/run.py", "cluster", "--backend=fake", f"--out=/{OUT}", *others]
    script = SCRIPT.format(root=shlex.quote(str(root)), tree=TREE, command=shlex.join(command))
    apart = ["--mount", "--uts", "--ipc", "--propagation=private"]
    return subprocess.run(["unshare", *apart, "sh", "-c", script], env=there, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
