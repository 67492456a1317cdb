"""The enforcer starts while NVML does not answer: it publishes nothing, pods can end, and it recovers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.e2e import pods
from tests.e2e.site import SYSTEM, Site, restarts
from tests.fakes.gpu.node import ROOT
from tests.fakes.gpu.state import Fault, Sim

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
NOT_LOADED: Final = 9
"""``NVML_ERROR_DRIVER_NOT_LOADED``"""


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    return site.namespace("away")


@contextmanager
def no_driver(site: Site) -> Iterator[None]:
    sim = Sim(site.on_node(str(ROOT)) / "state")
    sim.fail(Fault(call="*", error=NOT_LOADED))
    try:
        yield
    finally:
        sim.fail()


def test_an_enforcer_that_finds_no_nvml_waits_for_it_and_pods_leave_meanwhile(site: Site, namespace: str) -> None:
    site.run(namespace, pods.pod("stays", "hold", "512Mi", memory="1Gi"))
    site.run(namespace, pods.pod("leaves", "hold", "512Mi", memory="1Gi"))
    offered = site.devices().keys()
    with no_driver(site):
        site.shell(f"kubectl -n {SYSTEM} delete pod {site.enforcer()['metadata']['name']}")
        site.until("the new enforcer says what it lacks", lambda: blind(site), 90)
        site.until("nothing is offered any more", lambda: not site.devices(), 60)
        assert not site.enforcer_ready()
        site.delete(namespace, "leaves")
        site.create(namespace, pods.pod("comes", "hold", "512Mi", memory="1Gi"))
        assert not site.bed.pod(namespace, "comes")["spec"].get("nodeName")
    site.until("the same devices are offered again", lambda: site.devices().keys() == offered, 90)
    site.running(namespace, "comes", 120)
    site.until("the enforcer is ready and sees again", lambda: site.enforcer_ready() and not blind(site), 90)
    assert set(restarts(site.bed.pod(namespace, "stays")).values()) == {0}
    for name in ("stays", "comes"):
        site.delete(namespace, name)


def blind(site: Site) -> bool:
    return any("NVML unavailable for all" in each for each in site.status()["problems"])
