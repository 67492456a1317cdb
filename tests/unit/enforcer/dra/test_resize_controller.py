"""Wishes for other quotas, carried out on a node: once each, on disk first, whatever fails in between."""

import copy
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from enforcer.dra.claim_status import status_of
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.dra.resize import CurrentUsage, ResizeBounds, apply_resize
from enforcer.dra.resize_controller import ResizeController, quota_of
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.kube_client import CORE_V1, path
from gpushare.reasons import Reason
from tests.support.quotas import of_containers
from tests.support.wiring import supervisor
from tests.unit.enforcer.dra.objects import NAMESPACE, Object, container, made_uid, namespace, pod
from tests.unit.enforcer.dra.objects import claim as claim_of
from tests.unit.enforcer.dra.test_crash import Power
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU

LIMIT = f"{contract.MPS_MEMORY_LIMIT}=0=2048M"


class Node:
    """A world with a resizer, whose tenant ``tts`` runs."""

    def __init__(self, folder: Path, *, at_once: bool = False) -> None:
        self.world, self.at_once = World(folder), at_once
        self.told = self.world.told
        self.ref = self.world.tenant("tts")
        self.world.driver.prepare(self.ref)
        self.annotations: dict[str, str] = {}
        self.policy: dict[str, str] = {}
        self.pod: Object = copy.deepcopy(self.world.api.objects[path(CORE_V1, "pods", "tts", NAMESPACE)])
        self.start()

    def start(self) -> None:
        """A resizer that knows nothing of an earlier one."""
        self.world.backends = {GPU: "watch-only" if self.at_once else "mps-v2"}
        self.resizer = ResizeController(replace(self.world.config(), mps=supervisor()), self.world.driver)

    def restart(self) -> None:
        """A new enforcer on the same disk."""
        self.world.restart()
        self.start()

    def holds(self, mib: int) -> None:
        self.world.pods.pids[77] = made_uid("tts")
        self.world.reader.used[GPU] = {77: mib}

    def wish(self, asked: str | None = None) -> None:
        """Somebody writes it on the pod, and the enforcer sees it."""
        if asked is not None:
            self.annotations[f"{contract.RESIZE_OF}model"] = asked
        metadata = self.pod["metadata"] | {"annotations": self.pod["metadata"]["annotations"] | self.annotations}
        self.resizer.set_objects([{**self.pod, "metadata": metadata}], [namespace(self.policy)])
        self.resizer.run_once()

    @property
    def limit(self) -> int:
        (claim,) = self.world.store.prepared()
        return claim.limits[0].memory_mib

    def variables(self) -> list[str]:
        (device,) = [each for each in self.world.document(self.ref)["devices"] if "env" in each["containerEdits"]]
        found: list[str] = device["containerEdits"]["env"]
        return found


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_resize_request_changes_limit_variables_and_status_and_its_owner_is_notified(node: Node) -> None:
    node.world.quotas_changed.clear()
    node.wish("2Gi;id=1")
    assert node.limit == 2048
    assert LIMIT in node.variables()
    assert node.world.quotas_changed.is_set(), "quotas are worked out anew"
    (notice,) = node.told
    assert (notice.reason, notice.action, notice.warning) == (Reason.RESIZED, "Resize", False)
    assert (notice.quota.pod_uid, notice.quota.container, notice.quota.memory_mib) == (made_uid("tts"), "model", 2048)
    body = status_of(node.world.published[-1], datetime(2026, 11, 22, tzinfo=UTC))
    data = next(each["data"] for each in body["status"]["devices"] if "data" in each)
    assert data["memoryMiB"] == 4096, "what was consumed is what it was"
    assert [each["memoryMiB"] for each in data["limits"]] == [2048]
    assert [(each["asked"], each["done"], each["effect"]) for each in data["resizes"]] == [
        ("2Gi;id=1", True, "at next start")
    ]


@pytest.mark.parametrize(("mode", "words"), [(Mode.MPS, "MPS limit"), (Mode.MIG, "memory of the MIG instance")])
def test_it_says_whose_limit_stays_until_the_next_start(tmp_path: Path, mode: Mode, words: str) -> None:
    node = Node(tmp_path)
    (claim,) = node.world.store.prepared()
    node.world.store.put(replace(claim, granted=tuple(replace(each, mode=mode) for each in claim.granted)))
    node.wish("2Gi;id=1")
    assert words in node.told[0].note


def test_it_is_answered_once_also_after_a_restart(node: Node) -> None:
    node.wish("9Gi")
    assert (node.limit, [each.reason for each in node.told]) == (4096, [Reason.RESIZE_REFUSED])
    node.wish()
    node.restart()
    node.wish()
    assert len(node.told) == 1
    node.wish("9Gi;id=2")
    assert len(node.told) == 2


def test_a_refusal_does_not_become_a_grant_later(node: Node) -> None:
    node.holds(3000)
    node.wish("2Gi")
    node.holds(10)
    node.restart()
    node.wish()
    assert (node.limit, len(node.told)) == (4096, 1)
    node.wish("2Gi;id=2")
    assert node.limit == 2048


def test_asked_by_the_kubelet_again_it_says_what_it_said_with_the_new_limit(node: Node) -> None:
    before = node.world.driver.prepare(node.ref)
    node.wish("2Gi")
    assert node.world.driver.prepare(node.ref) == before
    node.restart()
    assert node.world.driver.prepare(node.ref) == before
    assert (node.limit, LIMIT in node.variables()) == (2048, True)


def test_only_what_this_container_holds_counts(node: Node) -> None:
    node.world.pods.pids |= {77: made_uid("tts"), 78: made_uid("other")}
    node.world.reader.used[GPU] = {77: 1000, 79: 9000}
    node.wish("1Gi")
    assert node.limit == 1024


def test_while_the_gpus_cannot_be_read_nothing_is_lowered(node: Node) -> None:
    node.world.reader.all_broken = True
    node.start()
    node.wish("2Gi")
    assert (node.limit, node.told[0].reason) == (4096, Reason.RESIZE_REFUSED)
    assert "cannot read the GPU memory" in node.told[0].note


def test_what_its_pod_holds_counts_until_the_containers_own_processes_are_known(node: Node) -> None:
    node.holds(3072)
    node.wish("2Gi;id=1")
    assert node.limit == 4096
    (claim,) = node.world.store.prepared()
    known = quota_of(claim, "model")
    node.world.setup.checkpoint.write([replace(known, container_id="d" * 64)])
    node.resizer._means.checkpoint.read()
    node.wish("2Gi;id=2")
    assert node.limit == 2048, "another container of the pod holds it"


def test_a_namespaces_ceiling_holds(node: Node) -> None:
    node.wish("1Gi")
    node.policy = {contract.MAX_MEMORY: "2Gi"}
    node.wish("3Gi")
    assert (node.limit, node.told[-1].reason) == (1024, Reason.RESIZE_REFUSED)
    assert contract.MAX_MEMORY in node.told[-1].note


def test_a_pod_on_its_way_out_and_one_without_a_resize_request_are_left_alone(node: Node) -> None:
    node.wish()
    assert not node.resizer.wanted.is_set()
    node.pod["metadata"]["deletionTimestamp"] = "2026"
    node.wish("2Gi")
    assert (node.limit, node.told, node.resizer.wanted.is_set()) == (4096, [], False)


def test_a_resize_request_wakes_who_answers(node: Node) -> None:
    node.annotations = {f"{contract.RESIZE_OF}model": "2Gi"}
    metadata = node.pod["metadata"] | {"annotations": node.annotations}
    node.resizer.set_objects([{**node.pod, "metadata": metadata}], [])
    assert node.resizer.wanted.is_set()


def test_a_claim_undone_meanwhile_is_no_trouble(node: Node) -> None:
    metadata = node.pod["metadata"] | {"annotations": {f"{contract.RESIZE_OF}model": "2Gi"}}
    node.resizer.set_objects([{**node.pod, "metadata": metadata}], [])
    assert node.world.driver.update("unknown", lambda claim: claim) is None
    node.world.driver.unprepare(node.ref)
    node.resizer.run_once()
    assert node.told == []


@pytest.mark.parametrize("failing", ["store", "files"])
def test_what_the_disk_refuses_is_tried_again_and_reported_once_it_is_done(
    node: Node, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    owner, name = (node.world.store, "put") if failing == "store" else (node.world.files, "write")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        node.wish("2Gi")
        assert node.told == []
    assert LIMIT not in node.variables()
    node.resizer.run_once()
    assert (LIMIT in node.variables(), [each.reason for each in node.told]) == (True, [Reason.RESIZED])
    node.resizer.run_once()
    assert len(node.told) == 1


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> Power:
    return Power(monkeypatch)


def test_after_a_crash_anywhere_the_next_enforcer_brings_it_to_its_end(tmp_path: Path, power: Power) -> None:
    undisturbed = Node(tmp_path / "undisturbed")
    undisturbed.wish("2Gi")
    steps = 0
    while True:
        node = Node(tmp_path / str(steps))
        crashed = power.fails_after(steps, partial(node.wish, "2Gi"))
        node.restart()
        (claim,) = node.world.store.prepared()
        half = LIMIT in node.variables()
        assert half == (claim.limits[0].memory_mib == 2048), "files are what is kept"
        assert half is bool(claim.answers)
        assert not half or node.world.published[-1] == claim, "who waits for the answer gets it"
        node.wish()
        assert node.world.tree() == undisturbed.world.tree()
        if not crashed:
            break
        steps += 1
    assert steps > 5, "the disk was hardly touched: the counting does not see it"


def test_once_quotas_were_moved_in_a_pod_all_it_reserved_counts_as_what_each_could_have(tmp_path: Path) -> None:
    world = World(tmp_path)
    annotations = {contract.MEMORY: "4Gi", contract.MEMORY_OF + "aux": "2Gi"}
    made = pod("pair", annotations, container("model"), container("aux"))
    ref = world.add(made, claim_of(made))
    world.driver.prepare(ref)

    def reserved() -> dict[str, int | None]:
        quotas = of_containers(quotas_of_prepared(world.store.prepared(), [made], [namespace()], ()))
        return {each.container: each.reserved_mib for each in quotas}

    assert reserved() == {"model": 4096, "aux": 2048}
    for name, asked in (("aux", "1Gi"), ("model", "5Gi"), ("model", "4Gi")):
        change = partial(
            apply_resize,
            pod=made,
            container=name,
            asked=asked,
            bounds=ResizeBounds(),
            now=CurrentUsage(used_mib=0, applies_immediately=True),
        )
        world.driver.update(ref.uid, change)
    assert world.store.prepared()[0].limits[0].memory_mib == 4096
    assert reserved() == {"model": 6144, "aux": 6144}, "a process that started in between may have a limit of 5 GiB"
