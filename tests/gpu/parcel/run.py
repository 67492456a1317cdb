"""``python tests/gpu/run.py cluster``: unpack the parcel, start the cluster in namespaces, run the cases, clean up.

The first process does nothing but this; the work is that of ``worker`` inside the namespaces.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.gpu.parcel import doctor, results
from tests.gpu.parcel.holding import Holding, sweep
from tests.gpu.parcel.layout import HOME, MADE, ROOT, SITE, cache_environment
from tests.gpu.parcel.unpack import UnusableParcelError, refresh, unpack
from tests.testbed.cluster import cgroups
from tests.testbed.cluster.cgroups import LEAF, PROCS

BUDGET_S: Final = 420.0
CLEANING_S: Final = 20.0
"""Of the budget, kept for the end."""
WORDS: Final = ("run", "doctor", "unpack", "clean")


def main(argv: Sequence[str]) -> int:
    """Exit status 0: every case passed; 1: one failed or was left out; 2: it cannot be done here."""
    began = time.monotonic()
    asked = _options(argv)
    try:
        parcel = unpack(asked.parcel, asked.home)
    except UnusableParcelError as error:
        print(f"{error} ({time.monotonic() - began:.1f} s)", file=sys.stderr)
        return 0 if asked.what == "unpack" else 2
    sweep(asked.home)
    print(f"unpacked in {time.monotonic() - began:.1f} s", flush=True)
    if asked.what in {"unpack", "clean"}:
        if asked.what == "clean":
            shutil.rmtree(asked.home)
        return 0
    refresh(parcel)
    print(f"all laid out in {time.monotonic() - began:.1f} s", flush=True)
    findings = doctor.examine(parcel, asked.home, asked.backend)
    print("\n".join(map(str, findings)), flush=True)
    if not all(each.good for each in findings):
        return 2
    return 0 if asked.what == "doctor" else _run(asked, parcel, began)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.py cluster", description=__doc__)
    add = parser.add_argument
    add("what", nargs="?", choices=WORDS, default="run", help="(%(default)s); clean removes what was unpacked")
    add("--backend", choices=("real", "fake"), default="real", help="fake: simulated GPUs (default: %(default)s)")
    add("--only", default="", help="names or numbers of cases, comma-separated")
    add("--budget", type=float, default=BUDGET_S, metavar="S", help="seconds for all of it (%(default)g)")
    add("--again", action="store_true", help="run cases that have passed, too")
    add("--out", type=Path, default=ROOT / ".build" / "gpu-cluster", metavar="DIR", help="results (%(default)s)")
    add("--tar", type=Path, default=None, metavar="FILE", help=f"the one result ({results.TAR} in DIR)")
    add("--parcel", type=Path, default=MADE, metavar="DIR", help="where its parts are (%(default)s)")
    add("--home", type=Path, default=HOME, metavar="DIR", help="where it is unpacked (%(default)s)")
    return parser.parse_args(argv)


def _run(asked: argparse.Namespace, parcel: Path, began: float) -> int:
    store = results.Store(asked.out.absolute(), (asked.tar or asked.out / results.TAR).absolute())
    store.begin(asked.backend)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    held = Holding.take(asked.home)
    try:
        left = asked.budget - CLEANING_S - (time.monotonic() - began)
        worker = [
            sys.executable, "-m", "tests.gpu.parcel.worker", f"--parcel={parcel}", f"--run={held.folder}",
            f"--backend={asked.backend}", f"--only={asked.only}", f"--budget={left}", f"--out={store.folder}",
            f"--tar={store.tar}", *(["--again"] if asked.again else []),
        ]  # fmt: skip
        keep = [asked.home, store.folder, store.tar.parent, ROOT, Path(sys.prefix), Path(sys.base_prefix)]
        status = _in_namespaces(held, parcel, worker, keep, left)
    finally:
        cleaning = time.monotonic()
        store.take_logs(held.folder)
        held.end()
        print(f"all ended and removed in {time.monotonic() - cleaning:.1f} s", flush=True)
        store.pack()
    print(f"{time.monotonic() - began:.0f} s in all\n{store.tar}", flush=True)
    return status


def _in_namespaces(held: Holding, parcel: Path, worker: list[str], keep: list[Path], seconds: float) -> int:
    script = held.folder / "namespaces.sh"
    script.write_text(_script(held, worker, keep))
    mounted = cgroups.hierarchies()
    groups = " ".join(str(each.where / held.cgroup / PROCS) for each in mounted)
    unshare = ["unshare", "--mount", "--net", "--cgroup", "--uts", "--propagation=private", "sh", str(script)]
    enter = ["sh", "-c", 'for file in $0; do echo $$ > "$file"; done; exec "$@"', groups, *unshare]
    temporary = held.folder / "tmp"
    temporary.mkdir()
    env = {
        **os.environ, **cache_environment(parcel), "XDG_CACHE_HOME": str(held.folder / "cache"),
        "TMPDIR": str(temporary), "PYTHONPATH": f"{ROOT}:{parcel / SITE}", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    running = subprocess.Popen(enter, cwd=ROOT, env=env, stdin=subprocess.DEVNULL)
    try:
        return running.wait(timeout=max(1.0, seconds))
    except subprocess.TimeoutExpired:
        print("the budget is spent", flush=True)
        return 1


def _script(held: Holding, worker: list[str], keep: list[Path]) -> str:
    """What lays out the namespaces and becomes the worker: ``/var`` and ``/run`` are folders of this run."""
    mounted = cgroups.hierarchies()
    node = held.folder / "node"
    covered = [each for each in dict.fromkeys(keep) if each.parts[1] in {"var", "run"}]
    lines = [
        "set -eu",
        *(f"echo $$ > {each.where / held.cgroup / LEAF / PROCS}" for each in mounted),
        f"mkdir -p {node}/var {node}/run",
        *(f"mkdir -p {node}{each}; mount --bind {each} {node}{each}" for each in covered),
        f"mount --rbind {node}/var /var",
        f"mount --rbind {node}/run /run",
        "mount -t sysfs sysfs /sys",
        *cgroups.mount_commands(mounted),
        "mount --make-rshared /",
        f"exec {shlex.join(worker)}",
    ]
    return "\n".join(lines) + "\n"
