"""One real node with the product installed on it as the README says; tests bring their own namespaces."""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.site import ROOT, Site
from tests.integration.controlplane.bed import Bed
from tests.testbed.cluster import images
from tests.testbed.cluster.controlplane import ControlPlane, sweep
from tests.testbed.cluster.need import require_node
from tests.testbed.cluster.node import Node
from tests.testbed.vm import chosen as virtual
from tests.testbed.vm.need import require_vm
from tests.testbed.vm.node import VmNode

BUILD = ROOT / ".build" / "e2e"
FOR_COMMANDS = ("deploy", "examples")


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    require_node()
    if virtual():
        require_vm()
    sweep(BUILD)
    plane = ControlPlane.start(BUILD / str(os.getpid()), nodes=True)
    yield plane
    plane.stop()


@pytest.fixture(scope="session")
def node(plane: ControlPlane) -> Node | VmNode:
    """A node in namespaces of this machine, or with ``GPU_SHARE_NODE=vm`` one in a virtual machine."""
    return VmNode.start(plane) if virtual() else Node.start(plane)


@pytest.fixture(scope="session")
def bare(plane: ControlPlane, node: Node | VmNode, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A node with our images on it and nothing else of ours; commands run in a folder with the checkout's files."""
    for target in () if virtual() else images.targets():  # a virtual node is made with them
        node.load_image(images.image(target))
    work = tmp_path_factory.mktemp("reader")
    for name in FOR_COMMANDS:
        shutil.copytree(ROOT / name, work / name)
    return Site(bed=Bed(plane=plane, cluster=plane.cluster()), node=node, work=work)


@pytest.fixture(scope="session")
def site(bare: Site) -> Site:
    """The node with the product on it."""
    with in_turn():
        began = time.monotonic()
        print(bare.run_block("install"))
        print(f"installed and ready {time.monotonic() - began:.1f} s after the first command")
        bare.until("the GPUs are offered", lambda: len(bare.devices()) == 3)
        print(bare.run_block("verify"))
    return bare


@contextmanager
def in_turn() -> Iterator[None]:
    """Let one worker install at a time: its commands have limits of their own, as the reader types them."""
    with (BUILD.parent / "installing.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
