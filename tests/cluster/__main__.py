"""``python -m tests.cluster build|up|pods|status|down``: a control plane to play with; ``make cluster`` starts it."""

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
    parser.add_argument("--bare", action="store_true", help="up: without the product, nodes and namespace on it")
    asked = parser.parse_args(argv)
    try:
        return up(bare=asked.bare) if asked.verb == "up" else VERBS[asked.verb]()
    except BedError as error:
        print(error, file=sys.stderr)
        return 1


def build() -> int:
    """Build what is missing, and say what will be used."""
    build_missing()
    for name, where in find_all().items():
        say(f"{name:<24} {where}")
    return 0


def up(*, bare: bool = False) -> int:
    """Start the control plane with the product on it, or say that it runs."""
    plane = ControlPlane.load(ROOT)
    if plane is None or not plane.running:
        build_missing()
        started = time.monotonic()
        plane = ControlPlane.start(ROOT)
        say(f"control plane ready in {time.monotonic() - started:.1f} s")
        if not bare:
            _install(plane)
            say(f"product installed {time.monotonic() - started:.1f} s after the start")
    _explain(plane)
    return 0


def pods() -> int:
    """Show where sharing pods are, for those without kubectl."""
    from tests.cluster import play  # noqa: PLC0415

    plane = ControlPlane.load(ROOT)
    if plane is None or not plane.running:
        return status()
    for line in play.placements(plane.cluster()):
        say(line)
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


def _install(plane: ControlPlane) -> None:
    from tests.cluster import play  # noqa: PLC0415 - needs the product, which the control plane alone does not

    try:
        play.install(plane)
    except BaseException:
        plane.stop()
        raise


def _explain(plane: ControlPlane) -> None:
    say(f"API server   {plane.url}")
    say(f"logs         {plane.root}/logs")
    say(f"identities   {', '.join(IDENTITIES)}: {plane.root}/kubeconfigs/<identity>.yaml")
    say("namespace    demo takes part: kubectl -n demo apply -f examples/pod.yaml; then python -m tests.cluster pods")
    say("end it with  make cluster-down")
    say(f"export KUBECONFIG={plane.kubeconfig()}")


VERBS: Final = {"build": build, "up": up, "pods": pods, "status": status, "down": down}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
