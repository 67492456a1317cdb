"""``python -m tests.testbed.cluster build|up|pods|status|down``: a cluster to play with; ``make cluster`` starts it."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from tests.testbed.cluster import images, packages, versions
from tests.testbed.cluster.binaries import Group, find_all
from tests.testbed.cluster.build import build_missing, say
from tests.testbed.cluster.controlplane import IDENTITIES, ControlPlane, remove
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.node import Node, require_rights
from tests.testbed.cluster.processes import alive

ROOT: Final = Path(__file__).parents[3] / ".build" / "cluster"
CONTROL_PLANE_ONLY: Final = (Group.CONTROL_PLANE,)


def main(argv: Sequence[str]) -> int:
    """Run one verb. Exit code 0 fine, 1 not running or failed, 2 wrong use."""
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.cluster", description=__doc__)
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument(
        "--control-plane-only", action="store_true", help="no real node: needs neither root nor packages"
    )
    parser.add_argument(
        "--kubernetes", choices=tuple(versions.VERSIONS), help=f"control plane of that version ({versions.NEWEST})"
    )
    parser.add_argument("--nodes", type=int, default=1, metavar="N", help="up: so many real nodes (1)")
    parser.add_argument("--bare", action="store_true", help="up: without the product, its images at most")
    asked = parser.parse_args(argv)
    if asked.kubernetes:
        os.environ[versions.VARIABLE] = asked.kubernetes
    try:
        return VERBS[asked.verb](asked)
    except BedError as error:
        print(error, file=sys.stderr)
        return 1


def build(asked: argparse.Namespace) -> int:
    """Build and fetch what is missing, and say what will be used."""
    groups = _groups(asked)
    # What no node is needed for installs the chart all the same, and checks its metrics and alerts.
    groups = (*groups, *(each for each in (Group.CHART, Group.MONITORING) if each not in groups))
    build_missing(groups=groups)
    for group in groups:
        for name, where in find_all(group).items():
            say(f"{name:<24} {where}")
    if Group.NODE in groups:
        say(f"{'Debian packages':<24} {packages.tree(packages.NODE_PACKAGES, say)}")
        say(f"{'base image':<24} {images.base()}")
    return 0


def up(asked: argparse.Namespace) -> int:
    """Start the cluster, or say that it runs."""
    plane = ControlPlane.load(ROOT)
    if plane is None or not plane.running:
        if not asked.control_plane_only:
            require_rights()
        build_missing(groups=_groups(asked))
        started = time.monotonic()
        plane = ControlPlane.start(ROOT, nodes=not asked.control_plane_only)
        say(f"control plane ready in {time.monotonic() - started:.1f} s")
        try:
            _fill(plane, asked)
        except BaseException:
            plane.stop()
            raise
        say(f"all of it {time.monotonic() - started:.1f} s after the start")
    _explain(plane)
    return 0


def pods(_: argparse.Namespace) -> int:
    """Show where sharing pods are, for those without kubectl."""
    from tests.testbed.cluster import play  # noqa: PLC0415 - needs the product, as below

    plane = ControlPlane.load(ROOT)
    if plane is None or not plane.running:
        return status(_)
    for line in play.placements(plane.cluster()):
        say(line)
    return 0


def down(_: argparse.Namespace) -> int:
    """End it and remove its folder; fine when there is none."""
    remove(ROOT)
    say("cluster stopped")
    return 0


def status(_: argparse.Namespace) -> int:
    """Say which of its processes are alive."""
    plane = ControlPlane.load(ROOT)
    if plane is None:
        say("no cluster (make cluster starts one)")
        return 1
    for process in plane.processes:
        say(f"{process.name:<24} {'running' if alive(process) else 'ENDED':<8} pid {process.pid:<8} {process.log}")
    return 0 if plane.running else 1


def _groups(asked: argparse.Namespace) -> tuple[Group, ...]:
    if asked.control_plane_only:
        return CONTROL_PLANE_ONLY
    if versions.chosen() != versions.NEWEST:
        return (*CONTROL_PLANE_ONLY, Group.CHART)
    return tuple(each for each in Group if each is not Group.PARCEL)


def _fill(plane: ControlPlane, asked: argparse.Namespace) -> None:
    """Real nodes with the product installed by its chart; without nodes, the product as processes of this machine."""
    from tests.testbed.cluster import play  # noqa: PLC0415 - needs the product, which the control plane alone does not

    if asked.control_plane_only:
        if not asked.bare:
            play.install(plane)
        return
    for number in range(1, asked.nodes + 1):
        node = Node.start(plane, f"node-{number}")
        say(f"{node.name} is Ready at {node.address}")
        for target in images.targets():
            node.load_image(images.image(target))
            say(f"{node.name} has image {images.name(target)}:{images.version()}")
    if not asked.bare:
        play.install_chart(plane, [f"node-{number}" for number in range(1, asked.nodes + 1)])
        say("the chart is installed, with simulated GPUs")


def _explain(plane: ControlPlane) -> None:
    say(f"API server   {plane.url}")
    say(f"logs         {plane.root}/logs")
    say(f"identities   {', '.join(IDENTITIES)}: {plane.root}/kubeconfigs/<identity>.yaml")
    if plane.network is None:
        say("namespace    demo is opted in: kubectl -n demo apply -f examples/pod.yaml")
        say("pods         python -m tests.testbed.cluster pods")
    for node in plane.root.glob("nodes/*"):
        say(f"{node.name:<12} a shell on it: on-{node.name} sh; its /var and /run are {node}/var and {node}/run")
    say("end it with  make cluster-down")
    if plane.network is not None and not _has_demo(plane):
        say("product      not installed: the README's Install does it; its images are on the nodes")
    elif plane.network is not None:
        say("namespace    demo is opted in; a tenant that takes more than its share, and what its sidecar says:")
        say("             kubectl -n demo run greedy --annotations=gpu-share.io/memory=2Gi \\")
        say(f"               --image={images.name(images.SIMULATOR)}:{images.version()} --command -- \\")
        say("               gpu-share-tenant hold 1Gi --then 6Gi --after 5s --over-limit")
        say("             kubectl -n demo logs -f greedy -c gpu-share")
    if plane.network is not None:
        say(f"export PATH={plane.root}/bin:$PATH  # kubectl, helm, on-node-1")
    say(f"export KUBECONFIG={plane.kubeconfig()}")


def _has_demo(plane: ControlPlane) -> bool:
    try:
        plane.cluster().get(path(CORE_V1, "namespaces", "demo"))
    except ClusterError:
        return False
    return True


VERBS: Final = {"build": build, "up": up, "pods": pods, "status": status, "down": down}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
