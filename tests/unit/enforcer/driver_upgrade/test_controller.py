"""The order in which the kernel module is released, and taken up again."""

from types import SimpleNamespace
from typing import Any

from enforcer.driver_upgrade.controller import DriverUpgradeController, UpgradeDependencies
from enforcer.quota.driver_upgrade import STATE, DriverUpgrade
from enforcer.status.events import NodeEvent
from gpushare.errors import ClusterError
from gpushare.reasons import Reason
from tests.unit.enforcer.made import GPU, quota


class Node:
    """What the controller works with, as a record of what it did."""

    def __init__(self) -> None:
        self.latest = [quota()]
        self.claimed: frozenset[str] | None = frozenset({GPU})
        self.all_stopped, self.paused = False, False
        self.evicted: list[str] = []
        self.forgot = 0
        self.state: str | None = None
        self.events = list[NodeEvent]()
        self.upgrade = DriverUpgrade()
        names = ("cluster", "evictor", "claims", "checkpoint", "nvml", "limiter", "mps")
        parts: Any = dict.fromkeys(names, self)
        parts |= {"node": "n1", "upgrade": self.upgrade, "events": SimpleNamespace(record_on_node=self.events.append)}
        self.controller = DriverUpgradeController(UpgradeDependencies(**parts))

    def get(self, where: str, **_: str) -> Any:
        """Answer with the node, or not at all."""
        assert where == "/api/v1/nodes/n1"
        if self.state is None:
            raise ClusterError("the API server does not answer")
        return {"metadata": {"labels": {STATE: self.state}}}

    def evict_pods(self, quotas: Any) -> None:
        self.evicted += [each.pod for each in quotas]

    def problems(self) -> list[str]:
        return []

    def gpus(self) -> frozenset[str] | None:
        return self.claimed

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> bool:
        paused, self.paused = self.paused, False
        return paused

    def forget(self) -> None:
        self.forgot += 1

    def run(self, state: str | None) -> bool:
        """Return whether NVML is closed after a turn in that state."""
        self.state = state
        self.controller.run_once()
        return self.paused


def test_nvml_is_closed_after_pods_claims_and_daemons_and_opened_afterwards() -> None:
    node = Node()
    assert not node.run("upgrade-required")
    assert not node.run("wait-for-jobs-required")
    assert node.evicted == [], "jobs may end by themselves"
    assert not node.run("pod-deletion-required")
    assert node.evicted == [], "first the offer is withdrawn"
    assert not node.run("pod-deletion-required")
    assert node.evicted == ["tts-0"]
    node.latest = []
    assert not node.run("pod-restart-required"), "a claim is still prepared"
    node.claimed = frozenset()
    assert not node.run("pod-restart-required"), "a daemon is left"
    node.all_stopped = True
    assert node.run("pod-restart-required")
    assert len(list(node.controller.problems())) == 1
    assert node.run("validation-required")
    assert not node.run("uncordon-required")
    assert (node.forgot, list(node.controller.problems())) == (1, [])
    reasons = [event.reason for event in node.events]
    assert reasons == [Reason.DRIVER_UPGRADE, Reason.DRIVER_UPGRADE, Reason.RECOVERED]


def test_a_daemon_that_comes_late_has_nvml_to_end_with() -> None:
    node = Node()
    node.latest, node.claimed, node.all_stopped = [], frozenset(), True
    assert node.run("drain-required")
    node.all_stopped = False
    assert not node.run("drain-required")
    node.all_stopped = True
    assert node.run("drain-required")


def test_while_the_api_server_does_not_answer_the_phase_stays() -> None:
    node = Node()
    node.latest, node.claimed, node.all_stopped = [], frozenset(), True
    assert not node.run(None)
    assert node.run("drain-required")
    assert node.run(None)


def test_while_claims_are_not_known_nvml_stays_open() -> None:
    node = Node()
    node.latest, node.claimed, node.all_stopped = [], None, True
    assert not node.run("drain-required")


def test_in_service_nothing_is_done() -> None:
    node = Node()
    assert not node.run("upgrade-done")
    assert (node.evicted, node.forgot, node.events) == ([], 0, [])
