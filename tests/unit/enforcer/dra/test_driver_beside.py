"""What runs beside preparing: quotas, claims that nobody undoes, the claims' status, the wait for MPS."""

import copy
import shutil
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.living_pods import living_pods
from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.dra.cdi import file_name
from enforcer.dra.claim_status import ClaimStatusPublisher, status_of
from enforcer.dra.cleanup import OrphanCleaner, StaleClaimCleaner
from enforcer.dra.driver import ClaimRef
from enforcer.dra.prepared_claim import PreparedClaim
from enforcer.dra.quotas import joined, quotas_of_prepared
from enforcer.nvml.types import GpuSample
from enforcer.quota.kept_fields import kept_pod
from enforcer.quota.types import OnExceed, Quota
from enforcer.resourceslices.controller import reserved_mib
from enforcer.resourceslices.foreign_memory import foreign_mib, terminating_mib
from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import APPLY_PATCH, CORE_V1, path
from gpushare.pod_claims import claim_names
from tests.support.quotas import of_containers
from tests.support.wiring import Pods, supervisor
from tests.unit.enforcer.dra.objects import NAMESPACE, Object, allocated, by_hand, gpu, made_uid, namespace, using
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import DEVICE, GPU, holder, quota
from tests.unit.enforcer.test_loop import card


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def pod_of(world: World, name: str) -> Object:
    return copy.deepcopy(world.api.objects[path(CORE_V1, "pods", name, NAMESPACE)])


def enforced(world: World, *pods: Object, policy: dict[str, str] | None = None, before: Any = ()) -> list[Quota]:
    return list(of_containers(quotas_of_prepared(world.store.prepared(), pods, [namespace(policy)], before)))


def whole_pods(world: World, *pods: Object, before: Sequence[Quota] = ()) -> dict[tuple[str, str], int | None]:
    """What each pod may hold of each GPU in all."""
    found = quotas_of_prepared(world.store.prepared(), pods, [namespace()], before)
    assert all(each.ceiling_mib == 0 for each in found if each.whole_pod)
    return {(each.pod, each.gpu): each.reserved_mib for each in found if each.whole_pod}


def prepared(world: World, name: str = "tts") -> PreparedClaim:
    world.driver.prepare(world.tenant(name))
    return world.published[-1]  # type: ignore[no-any-return]


def test_what_was_frozen_is_enforced_whatever_the_pods_status_says(world: World) -> None:
    claim = prepared(world)
    forged = pod_of(world, "tts")
    (found,) = enforced(world, forged)
    assert (found.pod, found.container, found.gpu, found.memory_mib) == ("tts", "model", GPU, 4096)
    assert (found.claim_uid, found.container_id) == (claim.uid, None)
    ids = [{"name": "model", "containerID": f"containerd://{'a' * 64}"}]
    forged["status"] = {"phase": "Succeeded", "containerStatuses": ids, "resourceClaimStatuses": []}
    assert enforced(world, forged) == [found]
    assert whole_pods(world, forged) == {("tts", GPU): 4096}


def test_later_edits_of_the_pod_change_no_quota(world: World) -> None:
    prepared(world)
    edited = pod_of(world, "tts")
    edited["metadata"]["annotations"] = {contract.MEMORY: "99Gi"}
    edited["spec"]["containers"] = []
    assert [each.memory_mib for each in enforced(world, edited)] == [4096]


def test_a_pod_that_is_gone_from_the_api_server_is_enforced_until_its_claim_is_undone(world: World) -> None:
    claim = prepared(world)
    before = enforced(world, pod_of(world, "tts"))
    assert enforced(world, before=before) == before
    world.driver.unprepare(ClaimRef(claim.namespace, claim.name, claim.uid))
    assert enforced(world, before=before) == []


def test_the_namespaces_policy_is_the_one_of_now(world: World) -> None:
    prepared(world)
    assert [each.on_exceed for each in enforced(world, policy={contract.ON_EXCEED: "warn"})] == [OnExceed.WARN]
    assert [each.on_exceed for each in enforced(world)] == [OnExceed.KILL]


def test_a_pod_that_joins_a_prepared_claim_may_hold_nothing_of_it_and_is_found(world: World) -> None:
    one, two = (by_hand(name, {"gpu": "mine"}, using("main", "card")) for name in ("one", "two"))
    world.driver.prepare(world.add(one, allocated("mine", one, gpu("card", 3000, 30))))
    assert [(each.pod, each.memory_mib, each.ceiling_mib) for each in enforced(world, one, two)] == [
        ("one", 3000, 3256)
    ]
    assert whole_pods(world, one, two) == {("one", GPU): 3000, ("two", GPU): 0}
    (claim,) = world.store.prepared()
    assert [each.pod for each in joined(claim, [one, two])] == ["two"]
    elsewhere = {**two, "metadata": {**two["metadata"], "namespace": "other"}}
    assert list(joined(claim, [one, elsewhere])) == []


def test_one_that_joined_stays_joined_whatever_its_status_says_until_it_or_the_claim_is_gone(world: World) -> None:
    one, two = (by_hand(name, {"gpu": "mine"}, using("main", "card")) for name in ("one", "two"))
    world.driver.prepare(ref := world.add(one, allocated("mine", one, gpu("card", 3000, 30))))
    before = quotas_of_prepared(world.store.prepared(), [one, two], [namespace()], ())
    hidden = kept_pod({**two, "status": {"phase": "Failed"}})
    assert whole_pods(world, one, hidden, before=before) == {("one", GPU): 3000, ("two", GPU): 0}
    assert whole_pods(world, one, before=before) == {("one", GPU): 3000}
    world.driver.unprepare(ref)
    assert whole_pods(world, one, hidden, before=before) == {}


def test_the_card_is_promised_once_however_many_pods_join(world: World) -> None:
    pods = [by_hand(name, {"gpu": "mine"}, using("main", None)) for name in ("one", "two", "three")]
    world.driver.prepare(world.add(pods[0], allocated("mine", pods[0], gpu("card", 3000, 30))))
    found = enforced(world, *pods, policy={contract.TOLERANCE: "1Gi"})
    assert (sum(each.memory_mib for each in found), len(found)) == (3000, 1)
    assert sum(each.ceiling_mib for each in found) == 3000 + 1024
    assert reserved_mib(found) == {GPU: 3000}


def test_a_pod_that_joins_keeps_what_it_has_of_a_claim_of_its_own(world: World) -> None:
    one = by_hand("one", {"gpu": "mine"}, using("main", "card"))
    two = by_hand("two", {"gpu": "mine", "own": "own"}, using("thief", "card"), using("main", "card", entry="own"))
    world.driver.prepare(world.add(one, allocated("mine", one, gpu("card", 3000, 30))))
    world.driver.prepare(world.add(two, allocated("own", two, gpu("card", 2000, 20))))
    found = {(each.pod, each.container): each.memory_mib for each in enforced(world, one, two)}
    assert found == {("one", "main"): 3000, ("two", "main"): 2000}
    assert whole_pods(world, one, two) == {("one", GPU): 3000, ("two", GPU): 2000}


class Living:
    """All processes of this machine are in these pods."""

    def __init__(self, pods: Collection[str]) -> None:
        self._owners: list[ContainerRef | None] = [ContainerRef(each, "c" * 64) for each in pods]

    def identify(self, pid: int) -> Identity | None:
        return Identity(pid=pid, start=1, owner=self._owners[pid % len(self._owners)] if self._owners else None)


def forgotten(world: World, pods: Collection[str] | None, living: Collection[str] = ()) -> StaleClaimCleaner:
    # Stand-ins take the place of the declared types.
    setup = replace(world.setup, attributor=Living(living))  # type: ignore[arg-type] # it has what is asked
    return StaleClaimCleaner(setup, world.driver, Pods(pods))


def test_a_claim_nobody_undoes_is_let_go_after_two_looks(world: World) -> None:
    claim = prepared(world)
    world.forget(ClaimRef(claim.namespace, claim.name, claim.uid), "tts")
    tidy = forgotten(world, ())
    tidy.run_once()
    assert len(world.store.prepared()) == 1
    tidy.run_once()
    assert (world.store.prepared(), world.tree()) == ((), {})


@pytest.mark.parametrize("sign", ["pod listed", "never listed", "processes", "pod exists", "claim exists", "no answer"])
def test_while_there_is_any_sign_of_its_pod_a_claim_stays(world: World, sign: str) -> None:
    claim = prepared(world)
    kept = dict(world.api.objects)
    world.forget(ClaimRef(claim.namespace, claim.name, claim.uid), "tts")
    pods: Collection[str] | None = {"pod listed": {made_uid("tts")}, "never listed": None}.get(sign, ())
    living = {made_uid("tts")} if sign == "processes" else ()
    exists = {"pod exists": "/pods/", "claim exists": "/resourceclaims/"}.get(sign, "nothing")
    world.api.objects |= {where: item for where, item in kept.items() if exists in where}
    world.api.down = sign == "no answer"
    tidy = forgotten(world, pods, living)
    tidy.run_once()
    tidy.run_once()
    assert len(world.store.prepared()) == 1


def test_another_object_of_the_same_name_is_no_sign(world: World) -> None:
    claim = prepared(world)
    for where in (path(CORE_V1, "pods", "tts", NAMESPACE), world.where(claim.name)):
        world.api.objects[where] = {"metadata": {"name": "again", "uid": "another"}}
    tidy = forgotten(world, ())
    tidy.run_once()
    tidy.run_once()
    assert world.store.prepared() == ()


def strays(world: World, pods: Collection[str] | None = ()) -> OrphanCleaner:
    class Shown(Pods):
        def claims(self) -> frozenset[tuple[str, str]]:
            """Of the pods that the watch has shown, whether the API server answers or not."""
            found = [each for where, each in world.api.objects.items() if "/pods/" in where]
            return frozenset((each["metadata"]["namespace"], name) for each in found for name in claim_names(each))

    return OrphanCleaner(world.setup, world.files, world.driver, Shown(pods))


@pytest.mark.parametrize("loss", ["all", "torn"])
def test_a_lost_checkpoint_is_made_again_from_what_is_still_there(world: World, loss: str) -> None:
    prepared(world)
    tree = world.tree()
    for file in (world.state / "claims").iterdir():
        file.unlink() if loss == "all" else file.write_text("{")
    world.restart()
    assert (world.store.prepared(), enforced(world)) == ((), [])
    strays(world, {made_uid("tts")}).run_once()
    assert (world.tree(), len(enforced(world)), list(world.store.problems())) == (tree, 1, [])


def test_a_lost_claim_whose_daemon_does_not_serve_is_given_up_for_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(world)
    shutil.rmtree(world.state / "claims")
    monkeypatch.setattr("enforcer.dra.cleanup.ADOPT_SECONDS", 0.1)
    monkeypatch.setattr("enforcer.dra.driver.CALL_PATIENCE", 3600.0)
    world.mps = supervisor(lambda _: "it is starting")
    world.restart()
    strays(world, {made_uid("tts")}).run_once()
    assert world.store.prepared() == (), "its thread has other tasks"
    world.mps = supervisor()
    world.restart()
    strays(world, {made_uid("tts")}).run_once()
    assert len(world.store.prepared()) == 1


def test_files_in_nobodys_name_go_after_two_looks(world: World) -> None:
    claim = prepared(world)
    shutil.rmtree(world.state / "claims")
    world.restart()
    tree, tidy = world.tree(), strays(world)
    world.api.down = True
    for unsure in (tidy, strays(world, None)):
        unsure.run_once()
        unsure.run_once()
        assert file_name(claim.uid) in {file.name for file in world.cdi.iterdir()}
    world.api.down = False
    world.forget(ClaimRef(claim.namespace, claim.name, claim.uid), "tts")
    tidy.run_once()
    assert "cdi/" + file_name(claim.uid) in tree
    tidy.run_once()
    assert world.tree() == {}


def test_nothing_of_a_claim_that_is_prepared_or_of_a_pod_that_exists_is_stray(world: World) -> None:
    prepared(world)
    (world.run / "status" / "existing").mkdir()
    tree, tidy = world.tree(), strays(world, {"existing"})
    world.api.objects.clear()
    tidy.run_once()
    tidy.run_once()
    assert world.tree() == tree


def test_pods_with_processes_are_found(world: World, tmp_path: Path) -> None:
    for name in ("1", "77", "self"):
        (tmp_path / "proc" / name).mkdir(parents=True)
    world.pods.pids[77] = "pod"
    assert living_pods(world.pods, tmp_path / "proc") == {"pod"}


def test_the_claims_status_names_device_limits_and_nobody_else(world: World) -> None:
    claim = prepared(world)
    body = status_of(claim, datetime(2026, 11, 20, tzinfo=UTC))
    entries = {each["device"]: each for each in body["status"]["devices"]}
    assert entries[DEVICE]["data"] == {
        "uuid": GPU, "mode": "mps", "memoryMiB": 4096, "computePercent": 0,
        "limits": [{"container": "model", "memoryMiB": 4096, "computePercent": None}],
        "pod": claim.pod, "podUid": claim.pod_uid,
    }  # fmt: skip
    condition = entries[DEVICE]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Ready", "True", "ClaimPrepared")
    assert all(each["shareID"] and each["driver"] == contract.DRIVER for each in entries.values())
    assert "data" not in entries["status"]
    (entry, _) = status_of(replace(claim, caps={"model": 60}), datetime.now(UTC))["status"]["devices"]
    assert entry["data"]["limits"][0]["computeCap"] == 60


def test_the_claims_status_says_who_keeps_the_limits_where_that_is_known(world: World) -> None:
    claim = prepared(world)
    (entry, _) = status_of(claim, datetime.now(UTC), {GPU: "driver-cgroup"})["status"]["devices"]
    assert entry["data"]["limitBackend"] == "driver-cgroup"
    (entry, _) = status_of(claim, datetime.now(UTC), {"GPU-other": "driver-cgroup"})["status"]["devices"]
    assert "limitBackend" not in entry["data"]


def publisher(world: World) -> ClaimStatusPublisher:
    return ClaimStatusPublisher(world.setup.cluster, world.setup.writer, world.setup.limiter, world.run / "shm")


def test_a_status_that_is_refused_fails_nobody(world: World) -> None:
    announcer = publisher(world)
    world.api.refuse_patches = True
    claim = prepared(world)
    announcer.publish(claim)
    world.setup.writer.run_once()
    world.api.refuse_patches = False
    announcer.publish(claim)
    world.setup.writer.run_once()
    ((where, body, content_type),) = world.api.patched
    assert (where, content_type) == (f"{world.where(claim.name)}/status", APPLY_PATCH)
    assert body["metadata"]["uid"] == claim.uid


def test_a_status_is_written_once_the_api_server_has_time_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enforcer.status.api_writer.RETRY_SECONDS", 0.01)
    claim, patch = prepared(world), world.api.patch
    busy = [ClusterError("no answer"), ClusterError("too many requests", 429), RuntimeError("bug")]

    def answer(*what: Any, **more: Any) -> Any:
        if busy:
            raise busy.pop(0)
        return patch(*what, **more)

    monkeypatch.setattr(world.api, "patch", answer)
    announcer = publisher(world)
    announcer.publish(claim)
    world.setup.writer.run_once()
    assert busy == []
    assert world.api.patched == []
    announcer.publish(claim)
    world.setup.writer.run_once()
    assert len(world.api.patched) == 1, "a bug is not the end of all later ones"


def test_memory_of_a_pod_that_was_promised_none_is_not_offered() -> None:
    sample = GpuSample(uuid=GPU, total_mib=8000, used_mib=3000, processes=())
    holders = (holder(1, 1000, pod="joined"), holder(2, 2000, pod="first"))
    quotas = [quota(pod_uid="joined", memory_mib=0), quota(pod_uid="first", memory_mib=2000)]
    assert foreign_mib([GpuSnapshot(gpu=card(GPU, 0), sample=sample, holders=holders)], quotas) == {GPU: 1000}


def test_memory_of_processes_that_outlive_their_claim_is_not_offered() -> None:
    seen = [GpuSnapshot(gpu=card(GPU, 0), holders=(holder(1, 1000, pod="leaving"), holder(2, 2000, pod="staying")))]
    assert terminating_mib(seen, ()) == {GPU: 0}
    assert terminating_mib(seen, {"leaving"}) == {GPU: 1024}
