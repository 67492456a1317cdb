"""One real node with the product installed on it as the README says; tests bring their own namespaces."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e import prepared
from tests.e2e.site import ROOT, Site
from tests.integration.controlplane.bed import Bed
from tests.testbed.cluster import images
from tests.testbed.cluster.build import lock
from tests.testbed.cluster.controlplane import ControlPlane, sweep
from tests.testbed.cluster.need import require_node
from tests.testbed.cluster.node import Node
from tests.testbed.vm import chosen as virtual
from tests.testbed.vm import snapshot
from tests.testbed.vm.need import require_vm
from tests.testbed.vm.node import VmNode

BUILD = ROOT / ".build" / "e2e"
FOR_COMMANDS = ("deploy", "examples")
NODE = "node-1"


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    require_node()
    if virtual():
        require_vm()
    sweep(BUILD)
    root = BUILD / str(os.getpid())
    plane = resumed(root) if virtual() else ControlPlane.start(root, nodes=True)
    yield plane
    plane.stop()


@pytest.fixture(scope="session")
def node(plane: ControlPlane) -> Node | VmNode:
    """A node in namespaces of this machine, or with ``GPU_SHARE_NODE=vm`` one in a virtual machine."""
    return VmNode.at(plane, NODE) if virtual() else Node.start(plane)


@pytest.fixture(scope="session")
def bare(plane: ControlPlane, node: Node | VmNode, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A node with our images on it and nothing else of ours; commands run in a folder with the checkout's files."""
    for target in () if virtual() else images.targets():  # a virtual node is made with them
        node.load_image(images.image(target))
    return site_of(plane, node, tmp_path_factory.mktemp("reader"))


@pytest.fixture(scope="session")
def installed(bare: Site) -> Site:
    """The node with the product on it; a virtual one was kept with it."""
    if not virtual():
        install(bare)
    return bare


@pytest.fixture(scope="module")
def site(installed: Site) -> Iterator[Site]:
    """The node with the product on it, for the tests of one file. Afterwards nothing of their tenants is left on it."""
    yield installed
    installed.drop_all()


def site_of(plane: ControlPlane, node: Node | VmNode, work: Path) -> Site:
    """A node for commands that run in a folder with the checkout's files."""
    for name in FOR_COMMANDS:
        shutil.copytree(ROOT / name, work / name)
    return Site(bed=Bed(plane=plane, cluster=plane.cluster()), node=node, work=work)


def install(site: Site) -> None:
    """Install the product as the README says, and verify it."""
    with in_turn():
        began = time.monotonic()
        print(site.run_block("install"))
        print(f"installed and ready {time.monotonic() - began:.1f} s after the first command")
        site.until("the GPUs are offered", lambda: len(site.devices()) == 3)
        print(site.run_block("verify"))


def resumed(root: Path) -> ControlPlane:
    """The kept control plane with its virtual node and the product on it, made first where it is not there yet."""
    saved = prepared.folder()
    with lock(prepared.NAME):
        if not saved.is_dir():
            make(saved)
            prepared.forget_old()
    plane, _ = snapshot.resume(saved, root, NODE)
    return plane


def make(saved: Path) -> None:
    """Install the product on a fresh virtual node and keep both."""
    plane = ControlPlane.start(BUILD / f"{os.getpid()}-fresh", nodes=True)
    try:
        node = VmNode.start(plane, NODE)
        with tempfile.TemporaryDirectory() as work:
            install(site_of(plane, node, Path(work)))
        snapshot.save(plane, node, saved)
    finally:
        plane.stop()


@contextmanager
def in_turn() -> Iterator[None]:
    """Let one worker install at a time: its commands have limits of their own, as the reader types them."""
    with (BUILD.parent / "installing.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
