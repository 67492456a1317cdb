"""Which GPUs have a daemon, and that nothing which is not known takes one away."""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.desired_daemons import (
    QUIET,
    DaemonPlan,
    DaemonPlanner,
    DriverTools,
    MakeDaemon,
    PlannerInputs,
    ShareableGpus,
)
from enforcer.mps.launcher import folder_of
from enforcer.mps.manager import MpsManager
from enforcer.mps.protocol import whole_gib
from enforcer.mps.state_file import DaemonRecord, DaemonStateFile
from enforcer.nvml.types import Gpu
from enforcer.quota.driver_upgrade import STATE, DriverUpgrade
from enforcer.quota.prepared_claims import NoClaims
from enforcer.quota.types import Mode
from enforcer.resourceslices.devices import InventoryPolicy, capacity_mib
from gpushare import contract
from gpushare.errors import ClusterError, MpsError, NvmlError
from tests.support.clock import FakeClock
from tests.support.wiring import Quotas, fixed_modes, label_modes, sampler
from tests.unit.enforcer.made import GPU, OTHER_GPU
from tests.unit.enforcer.test_loop import Reader, card

BOTH = frozenset({GPU, OTHER_GPU})


class Claims(NoClaims):
    def __init__(self, node: "Node") -> None:
        self._node = node

    def gpus(self) -> frozenset[str] | None:  # type: ignore[override] # answers for the test
        return None if self._node.claims is None else frozenset(self._node.claims)


class Tools(DriverTools):
    def __init__(self, node: "Node") -> None:
        self._node = node

    def find(self) -> MakeDaemon:
        if not self._node.driver:
            raise MpsError("no program below /driver")
        # Stand-ins take the place of the declared types.
        modes: Any = Reader()  # it has what a daemon calls
        return partial(MpsDaemon, binary=Path("/driver/usr/bin/control"), modes=modes, environment={"A": "b"})


class Node:
    """What a roster is drawn up from, and an API server that knows the node's object."""

    def __init__(self, run: Path, *notes: str) -> None:
        self.run, self.now = run, 1000.0
        self.cards: list[Gpu] = [card(GPU, 0), card(OTHER_GPU, 1)]
        self.nvml = self.driver = self.api = True
        self.object: dict[str, Any] = {"metadata": {"labels": {contract.NODE_LABEL: "true"}, "annotations": {}}}
        self.rivals: set[str] = set()
        self.claims: set[str] | None = set()
        self.policy, self.upgrade = InventoryPolicy(), DriverUpgrade()
        for gpu in notes:
            folder = run / "mps" / folder_of(gpu)
            folder.mkdir(parents=True)
            DaemonStateFile(folder, gpu).write(DaemonRecord(pid=4711, start=1))
        self.manager, self.held = MpsManager(), dict[str, Mode]()
        self.modes = label_modes(self.held)
        self.roster = self.made()

    def made(self) -> DaemonPlanner:
        shared = ShareableGpus(self, "n", self, self.modes)  # type: ignore[arg-type] # a stand-in
        sources = PlannerInputs(
            watch=sampler(lambda: [GpuSnapshot(gpu=each) for each in self.gpus()]), shared=shared, modes=self.modes,
            policy=self.policy, claims=Claims(self), checkpoint=Quotas(tuple), tools=Tools(self), upgrade=self.upgrade,
        )  # fmt: skip
        return DaemonPlanner(self.manager, self.run, sources, FakeClock(lambda: self.now))

    def get(self, _: str) -> dict[str, Any]:
        if not self.api:
            raise ClusterError("the API server does not answer")
        return self.object

    def check(self, _: object) -> Collection[str]:
        """See ``ContentionMonitor``."""
        return self.rivals

    def gpus(self) -> list[Gpu]:
        if not self.nvml:
            raise NvmlError("the driver is not loaded")
        return self.cards

    def annotate(self, **annotations: str) -> None:
        self.object["metadata"]["annotations"] = annotations

    def label(self, value: str) -> None:
        self.object["metadata"]["labels"] = {contract.NODE_LABEL: value}

    def turn(self, later: float = 0) -> DaemonPlan:
        self.now += later
        return self.roster.plan()

    def leaves(self, gpu: str) -> bool:
        with self.roster.leaving(gpu) as so:
            return so

    @property
    def there(self) -> set[str]:
        return set(self.manager.daemons)


@pytest.fixture(name="node")
def _node(short_path: Path) -> Node:
    return Node(short_path)


def test_every_gpu_that_can_be_shared_gets_a_daemon_of_its_own(node: Node) -> None:
    assert node.turn() == DaemonPlan(BOTH)
    daemons = node.manager.daemons.values()
    assert {str(daemon.directory.relative_to(node.run)) for daemon in daemons} == {
        f"mps/{folder_of(gpu)}" for gpu in BOTH
    }
    assert {str(daemon._binary) for daemon in daemons} == {"/driver/usr/bin/control"}
    assert {daemon._environment["A"] for daemon in daemons} == {"b"}
    assert {daemon.limit_mib for daemon in daemons} == {whole_gib(capacity_mib(node.cards[0], node.policy))}


def test_those_that_label_and_annotation_do_not_give_away_get_none(node: Node) -> None:
    node.annotate(**{contract.NODE_GPUS: "1"})
    assert (node.turn(), node.there) == (DaemonPlan(frozenset({OTHER_GPU})), {OTHER_GPU})


def test_contested_ones_and_those_mps_cannot_share_get_none(node: Node) -> None:
    node.rivals = {GPU}
    node.cards[1] = node.cards[1]._replace(mig_enabled=True)
    assert (node.turn(), node.there) == (DaemonPlan(), set())
    node.cards[1] = node.cards[1]._replace(mig_enabled=False)
    node.policy = InventoryPolicy(context_mib=2048)
    node.roster = node.made()
    node.rivals = set()
    assert node.turn() == DaemonPlan(BOTH)


def test_one_that_comes_later_gets_a_daemon(node: Node) -> None:
    late = node.cards.pop()
    assert node.turn() == DaemonPlan(frozenset({GPU}))
    node.cards.append(late)
    assert (node.turn(), node.there) == (DaemonPlan(BOTH), set(BOTH))


def test_without_nvml_nothing_is_decided_until_it_answers(short_path: Path) -> None:
    node = Node(short_path, GPU)
    node.nvml = False
    assert node.roster.before == {GPU}
    assert (node.turn(), node.turn(QUIET + 1), node.there) == (DaemonPlan(), DaemonPlan(), {GPU})
    assert node.manager.daemons[GPU].limit_mib == 0, "what it may give away is not known"
    node.nvml = True
    assert node.turn() == DaemonPlan(BOTH)
    assert {daemon.limit_mib for daemon in node.manager.daemons.values()} == {15360}
    node.nvml = False
    assert node.turn(QUIET + 1) == DaemonPlan(BOTH), "what was seen still stands"


def test_without_the_drivers_program_nothing_is_decided(short_path: Path) -> None:
    node = Node(short_path, GPU)
    node.driver = False
    assert (node.turn(), node.there, node.roster.problem) == (DaemonPlan(), set(), "no program below /driver")
    node.driver = True
    assert (node.turn(), node.there, node.roster.problem) == (DaemonPlan(BOTH), set(BOTH), None)
    node.driver = False
    node.label("false")
    assert (node.turn(), node.turn(QUIET + 1)) == (DaemonPlan(), DaemonPlan())


def test_with_the_api_server_away_those_with_a_daemon_keep_it_and_no_other_gets_one(short_path: Path) -> None:
    node = Node(short_path, GPU)
    node.api = False
    assert (node.turn(), node.turn(QUIET + 1), node.there) == (DaemonPlan(), DaemonPlan(), {GPU})
    node.held[GPU] = Mode.MPS
    assert (node.turn(), node.there) == (DaemonPlan(frozenset({GPU})), {GPU}), "its claims say how it is shared"
    node.api = True
    assert node.turn() == DaemonPlan(BOTH)
    node.api = False
    assert node.turn(QUIET + 1) == DaemonPlan(BOTH)


def test_one_that_is_not_shared_any_more_goes_a_while_after_its_last_claim(node: Node) -> None:
    node.claims = {GPU}
    node.turn()
    node.label("false")
    assert node.turn() == DaemonPlan(frozenset({GPU})), "its tenants are looked after"
    assert node.turn(QUIET) == DaemonPlan(frozenset({GPU}), frozenset({OTHER_GPU}))
    node.claims = set()
    assert node.turn() == DaemonPlan(frozenset(), frozenset({OTHER_GPU}))
    assert node.turn(QUIET - 1) == DaemonPlan(frozenset(), frozenset({OTHER_GPU}))
    assert node.turn(1) == DaemonPlan(frozenset(), BOTH)
    assert node.leaves(GPU)


def test_one_that_a_pod_asks_for_has_its_time_again(node: Node) -> None:
    node.turn()
    node.label("false")
    node.turn()
    node.turn(QUIET)
    node.roster.used(GPU)
    assert (node.leaves(GPU), node.leaves(OTHER_GPU)) == (False, True)
    assert node.turn(QUIET - 1).leaving == {OTHER_GPU}
    assert node.turn(1).leaving == BOTH
    node.claims = {GPU}
    assert not node.leaves(GPU), "it was prepared meanwhile"


def test_one_that_is_shared_again_in_time_stays(node: Node) -> None:
    node.turn()
    node.label("false")
    node.turn()
    node.label("true")
    assert node.turn(QUIET) == DaemonPlan(BOTH)
    node.label("false")
    assert node.turn(QUIET) == DaemonPlan(), "its time begins anew"


def test_while_claims_are_not_known_none_goes(node: Node) -> None:
    node.turn()
    node.label("false")
    node.claims = None
    assert (node.turn(), node.turn(QUIET + 1)) == (DaemonPlan(), DaemonPlan())
    assert not node.leaves(GPU)


def test_a_contested_one_is_left_as_it_is_while_it_has_tenants(node: Node) -> None:
    node.claims = {GPU}
    node.turn()
    node.rivals = {GPU, OTHER_GPU}
    assert (node.turn(), node.turn(QUIET)) == (DaemonPlan(), DaemonPlan(frozenset(), frozenset({OTHER_GPU})))
    assert GPU in node.there
    node.rivals = set()
    assert node.turn() == DaemonPlan(BOTH)


def test_a_daemon_of_a_card_that_is_gone_goes_after_a_while(short_path: Path) -> None:
    node = Node(short_path, "GPU-00000000-0000-0000-0000-00000000dead")
    (gone,) = node.roster.before
    assert node.turn() == DaemonPlan(BOTH)
    assert node.roster.gone(gone)
    assert not node.roster.gone(GPU)
    assert node.turn(QUIET) == DaemonPlan(BOTH, frozenset({gone}))


def test_notes_in_other_places_are_nobodys(short_path: Path) -> None:
    for folder, gpu in (("0", GPU), (folder_of(OTHER_GPU), GPU)):
        (short_path / "mps" / folder).mkdir(parents=True)
        DaemonStateFile(short_path / "mps" / folder, gpu).write(DaemonRecord(pid=4711, start=1))
    assert Node(short_path).roster.before == frozenset()


def test_without_a_cluster_every_gpu_is_shared_but_contested_ones() -> None:
    contention: Any = SimpleNamespace(check=lambda _: {GPU})
    shared = ShareableGpus(None, "n", contention, fixed_modes())
    cards = [card(GPU, 0), card(OTHER_GPU, 1)]
    assert (shared.named(cards), shared.contended(cards)) == (BOTH, frozenset({GPU}))


def test_a_node_that_shares_by_turns_needs_no_program_and_has_no_daemon(node: Node) -> None:
    node.driver = False
    node.object["metadata"]["labels"][contract.NODE_MODE] = "time-slicing"
    assert (node.turn(), node.there, node.roster.problem) == (DaemonPlan(), set(), None)


def test_a_daemon_of_a_gpu_that_is_shared_in_another_way_goes_with_its_last_claim(short_path: Path) -> None:
    node = Node(short_path, GPU)
    node.held[GPU] = Mode.MPS
    node.claims = {GPU}
    assert node.turn() == DaemonPlan(BOTH)
    node.object["metadata"]["labels"][contract.NODE_MODE] = "time-slicing"
    assert (node.turn(), node.leaves(GPU)) == (DaemonPlan(frozenset({GPU})), False)
    node.held.clear()
    node.claims = set()
    assert (node.turn(), node.leaves(GPU)) == (DaemonPlan(frozenset(), frozenset({GPU})), True)


def test_none_goes_while_nobody_can_say_how_its_gpu_is_shared(short_path: Path) -> None:
    node = Node(short_path, GPU)
    node.turn()
    node.object["metadata"]["labels"][contract.NODE_MODE] = "time-sliced"
    node.label("false")
    node.object["metadata"]["labels"][contract.NODE_MODE] = "time-sliced"
    assert (node.turn(), node.turn(QUIET), node.leaves(GPU)) == (DaemonPlan(), DaemonPlan(), False)


def test_while_the_node_drains_for_a_driver_upgrade_only_daemons_with_tenants_stay(node: Node) -> None:
    node.claims = {GPU}
    assert node.turn() == DaemonPlan(BOTH)
    node.upgrade.observe({"metadata": {"labels": {STATE: "pod-restart-required"}}})
    assert node.turn() == DaemonPlan(frozenset({GPU}), frozenset({OTHER_GPU}))
    assert (node.leaves(GPU), node.leaves(OTHER_GPU)) == (False, True)
    node.claims = set()
    assert node.turn() == DaemonPlan(frozenset(), BOTH)
    node.upgrade.observe({"metadata": {"labels": {STATE: "upgrade-done"}}})
    assert node.turn() == DaemonPlan(BOTH)
