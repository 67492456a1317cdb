"""The virtual node of these tests, which ``GPU_SHARE_NODE=vm`` chooses."""

import pytest

from tests.e2e.site import Site
from tests.support.need import missing
from tests.testbed.vm import VARIABLE, chosen
from tests.testbed.vm.node import VmNode


@pytest.fixture(scope="session")
def vm(installed: Site) -> VmNode:
    if not isinstance(installed.node, VmNode):
        assert not chosen()
        missing(f"these tests need a virtual node: make e2e ARGS=vm, which sets {VARIABLE}=vm")
    return installed.node
