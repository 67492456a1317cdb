"""``python -m tests.cluster build|up|down|status``: a control plane to play with, as ``make cluster`` starts it."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster.binaries import find_all
from tests.cluster.build import build_missing, say
from tests.cluster.controlplane import IDENTITIES, ControlPlane, remove
from tests.cluster.errors import BedError
from tests.cluster.processes import alive

ROOT: Final = Path(__file__).parents[2] / ".build" / "cluster"


def main(argv: Sequence[str]) -> int:
    """Run one verb. Exit code 0 fine, 1 not running or failed, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("verb", choices=VERBS)
    verb = parser.parse_args(argv).verb
    try:
        return VERBS[verb]()
    except BedError as error:
        print(error, file=sys.stderr)
        return 1


def build() -> int:
    """Build what is missing, and say what will be used."""
    build_missing()
    for name, where in find_all().items():
        say(f"{name:<24} {where}")
    return 0


def up() -> int:
    """Start the control plane, or say that it runs."""
    plane = ControlPlane.load(ROOT)
    if plane is None or not plane.running:
        build_missing()
        started = time.monotonic()
        plane = ControlPlane.start(ROOT)
        say(f"control plane ready in {time.monotonic() - started:.1f} s")
    _explain(plane)
    return 0


def down() -> int:
    """End it and remove its folder; fine when there is none."""
    remove(ROOT)
    say("control plane stopped")
    return 0


def status() -> int:
    """Say which of its processes are alive."""
    plane = ControlPlane.load(ROOT)
    if plane is None:
        say("no control plane (make cluster starts one)")
        return 1
    for process in plane.processes:
        say(f"{process.name:<24} {'running' if alive(process) else 'ENDED':<8} pid {process.pid:<8} {process.log}")
    return 0 if plane.running else 1


def _explain(plane: ControlPlane) -> None:
    say(f"API server   {plane.url}")
    say(f"logs         {plane.root}/logs")
    say(f"identities   {', '.join(IDENTITIES)}: {plane.root}/kubeconfigs/<identity>.yaml")
    say("end it with  make cluster-down")
    say(f"export KUBECONFIG={plane.kubeconfig()}")


VERBS: Final = {"build": build, "up": up, "down": down, "status": status}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
