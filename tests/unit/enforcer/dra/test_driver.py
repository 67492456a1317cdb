import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from enforcer.dra import cdi_files as files_module
from enforcer.dra import driver as driver_module
from enforcer.dra.cdi import file_name
from enforcer.dra.driver import ClaimRef, PrepareCall
from enforcer.dra.keyed_lock import KeyedLock
from enforcer.dra.prepared_claim import PreparedClaim
from gpushare import contract
from gpushare.errors import ClusterError, PrepareError
from gpushare.formats import CLAIM
from gpushare.kube_client import CORE_V1, path
from gpushare.reasons import Reason
from tests.unit.enforcer.dra.objects import NAMESPACE, allocated, by_hand, gpu, made_uid, pod, using
from tests.unit.enforcer.dra.objects import claim as claim_of
from tests.unit.enforcer.dra.world import Published, World
from tests.unit.enforcer.made import DEVICE, GPU, OTHER_DEVICE, OTHER_GPU


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def refused(world: World, ref: ClaimRef) -> PrepareError:
    with pytest.raises(PrepareError) as error:
        world.driver.prepare(ref)
    return error.value


def test_a_claim_is_prepared_and_undone_without_a_trace(world: World) -> None:
    ref = world.tenant("tts")
    devices = world.driver.prepare(ref)
    assert {each.request: each.cdi_ids for each in devices} == {
        "model": (f"{contract.CDI_KIND}={ref.uid}-model",),
        contract.SIDECAR: (f"{contract.CDI_KIND}={ref.uid}-{contract.SIDECAR}",),
    }
    assert all(each.share_id and each.pool == "gpu-7" for each in devices)
    assert (world.cdi / file_name(ref.uid)).stat().st_mode & 0o777 == 0o644
    assert (world.run / "status" / made_uid("tts")).stat().st_mode & 0o777 == 0o755
    assert [each.name for each in world.published] == [ref.name]
    assert world.quotas_changed.is_set()
    world.quotas_changed.clear()
    world.forget(ref, "tts")
    world.driver.unprepare(ref)
    assert (world.tree(), world.store.prepared(), world.quotas_changed.is_set()) == ({}, (), True)


def test_asked_again_it_says_the_same_and_changes_nothing(world: World) -> None:
    ref = world.tenant("tts")
    first, tree = world.driver.prepare(ref), world.tree()
    world.api.objects[path(CORE_V1, "pods", "tts", NAMESPACE)]["metadata"]["annotations"] = {}
    assert (world.driver.prepare(ref), world.tree()) == (first, tree)
    world.restart()
    assert (world.driver.prepare(ref), world.tree()) == (first, tree)
    assert len(world.published) == 1


def test_what_is_prepared_is_reported_again_while_the_api_server_is_away(world: World) -> None:
    ref = world.tenant("tts")
    first = world.driver.prepare(ref)
    world.api.down = True
    assert world.driver.prepare(ref) == first


def test_a_new_claim_waits_for_the_api_server(world: World) -> None:
    ref = world.tenant("tts")
    world.api.down = True
    error = refused(world, ref)
    assert error.reason is Reason.API_UNREACHABLE
    assert "the kubelet retries" in error.message
    world.api.down = False
    assert world.driver.prepare(ref)


def test_undoing_needs_no_api_server_and_may_come_twice_or_first(world: World) -> None:
    ref, never = world.tenant("tts"), world.tenant("other")
    world.driver.prepare(ref)
    world.api.down = True
    for each in (ref, ref, never, ClaimRef(NAMESPACE, "x", "../../etc/passwd")):
        world.driver.unprepare(each)
    assert world.tree() == {}


def test_a_claim_of_another_uid_is_refused(world: World) -> None:
    ref = world.tenant("tts")
    assert (
        "was deleted; another claim has its name"
        in refused(world, ClaimRef(ref.namespace, ref.name, "other-uid")).message
    )


def test_a_uid_that_is_a_path_is_refused(world: World) -> None:
    assert "invalid claim UID" in refused(world, ClaimRef(NAMESPACE, "x", "../x")).message


def test_a_claim_given_to_another_pod_since_is_prepared_again(world: World) -> None:
    first = by_hand("one", {"gpu": "mine"}, using("main", "card"))
    ref = world.add(first, allocated("mine", first, gpu("card", 3000)))
    world.driver.prepare(ref)
    second = by_hand("two", {"gpu": "mine"}, using("main", "card"))
    world.add(second, allocated("mine", second, gpu("card", 2000, device=OTHER_DEVICE)))
    world.driver.prepare(ref)
    found = world.store.get(ref.uid)
    assert found is not None
    assert (found.pod, found.gpus, found.limits[0].memory_mib) == ("two", (OTHER_GPU,), 2000)


def test_a_force_deleted_pods_memory_is_not_promised_twice(world: World) -> None:
    old, new = world.tenant("old", "12Gi"), world.tenant("new", "8Gi")
    world.driver.prepare(old)
    world.forget(old, "old")
    error = refused(world, new)
    assert error.reason is Reason.GPU_MEMORY_IN_USE
    assert "12Gi of 14848Mi are in use by other" in error.message
    assert "old" not in error.message
    world.driver.unprepare(old)
    assert world.driver.prepare(new)


def test_a_share_waits_for_room_within_the_call(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(driver_module, "CALL_PATIENCE", 60.0)
    old, new = world.tenant("old", "12Gi"), world.tenant("new", "8Gi")
    world.driver.prepare(old)
    timer = threading.Timer(0.3, world.driver.unprepare, (old,))
    before = time.monotonic()
    timer.start()
    assert world.driver.prepare(new)
    assert time.monotonic() - before >= 0.3
    timer.join()


def test_a_call_that_nobody_waits_for_ends_and_leaves_nothing(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(driver_module, "CALL_PATIENCE", 30.0)
    old, new = world.tenant("old", "12Gi"), world.tenant("new", "8Gi")
    world.driver.prepare(old)
    tree, call = world.tree(), PrepareCall()
    threading.Timer(0.3, call.abandoned.set).start()
    with pytest.raises(PrepareError):
        world.driver.prepare(new, call)
    assert (world.tree(), call.abandoned.is_set()) == (tree, True)


def test_a_short_absence_of_the_api_server_is_waited_out(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(driver_module, "API_PATIENCE", 10.0)
    ref = world.tenant("tts")
    world.api.down = True
    timer = threading.Timer(0.2, lambda: setattr(world.api, "down", False))
    timer.start()
    assert world.driver.prepare(ref)
    timer.join()


def test_an_api_server_that_is_asked_too_much_is_asked_again(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(driver_module, "API_PATIENCE", 60.0)
    ref, get, busy = world.tenant("tts"), world.api.get, [ClusterError("too many requests", 429)]

    def answer(where: str, **more: Any) -> Any:
        if busy:
            raise busy.pop()
        return get(where, **more)

    monkeypatch.setattr(world.api, "get", answer)
    assert world.driver.prepare(ref)


def test_a_refusal_of_the_api_server_is_not_waited_out(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr(driver_module, "API_PATIENCE", 30.0)
    ref = world.tenant("tts")
    world.forget(ref, "tts")
    assert refused(world, ref).reason is Reason.CLAIM_UNKNOWN
    assert world.api.asked == 1


def test_processes_that_outlive_their_claim_are_still_counted(world: World) -> None:
    old, new = world.tenant("old", "12Gi"), world.tenant("new", "8Gi")
    world.driver.prepare(old)
    world.reader.used[GPU][77] = 9000
    world.pods.pids[77] = made_uid("old")
    world.driver.unprepare(old)
    assert "9000Mi of 14848Mi are in use by other" in refused(world, new).message
    world.restart()
    assert refused(world, new).reason is Reason.GPU_MEMORY_IN_USE
    world.reader.used[GPU].clear()
    assert world.driver.prepare(new)
    world.driver.forget_finished()
    assert world.store.terminating() == ()
    assert not list((world.state / "claims").glob("*.ending"))


def test_one_that_ends_on_another_gpu_is_in_nobodys_way(world: World) -> None:
    old, new = world.tenant("old", "12Gi", OTHER_DEVICE), world.tenant("new", "12Gi")
    world.driver.prepare(old)
    assert world.driver.prepare(new)


def test_gpus_that_cannot_be_read_fail_with_a_sentence_that_names_nobody(world: World) -> None:
    """What NVML complains of may be another tenant's process."""
    world.reader.all_broken = True
    assert refused(world, world.tenant("tts")).message == "the driver cannot read the node's GPUs; the kubelet retries"


def test_a_claim_of_a_device_with_an_older_name_is_refused_with_a_sentence_and_undone(world: World) -> None:
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    kept = world.state / "claims" / f"{ref.uid}.json"
    kept.write_text(kept.read_text().replace(DEVICE, "gpu-0"))
    world.tenant("tts", device="gpu-0")
    world.restart()
    assert [each.device for each in world.store.prepared()[0].granted if each.gpu] == ["gpu-0"]
    assert "device gpu-0 of pool gpu-7, but node gpu-7 has only" in refused(world, ref).message
    world.driver.unprepare(ref)
    assert world.tree() == {}


def test_a_container_of_two_claims_is_refused(world: World) -> None:
    made = by_hand("job", {"gpu": "one", "more": "two"}, using("main", "card"))
    made["spec"]["containers"][0]["resources"]["claims"].append({"name": "more", "request": "card"})
    one = world.add(made, allocated("one", made, gpu("card", 2000)))
    two = world.add(made, allocated("two", made, gpu("card", 2000)))
    world.driver.prepare(one)
    assert "container main uses claim one and claim two" in refused(world, two).message


def test_the_status_directory_goes_with_the_pods_last_claim(world: World) -> None:
    made = pod("tts", {contract.MEMORY: "2Gi"})
    made["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "two"})
    made["spec"]["containers"].append(using("extra", "card", entry="more"))
    one = world.add(made, claim_of(made))
    two = world.add(made, allocated("two", made, gpu("card", 2000)))
    world.driver.prepare(one)
    world.driver.prepare(two)
    world.driver.unprepare(one)
    assert (world.run / "status" / made_uid("tts")).is_dir()
    (world.run / "status" / made_uid("tts") / "status.json").write_text("{}")
    world.driver.unprepare(two)
    assert world.tree() == {}


def test_a_reboot_takes_the_files_and_they_are_written_again(world: World) -> None:
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    tree, document = world.tree(), world.document(ref)
    (world.cdi / file_name(ref.uid)).unlink()
    (world.run / "status" / made_uid("tts")).rmdir()
    world.restart()
    assert (world.tree(), world.document(ref)) == (tree, document)


def test_what_was_half_written_or_half_removed_goes_at_the_start_and_nothing_else(world: World) -> None:
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    tree = world.tree()
    (world.cdi / f".{file_name('half')}.new").write_text("{")
    (world.cdi / "nvidia.yaml").write_text("kind: nvidia.com/gpu")
    (world.run / "status" / ".leaving-gone").mkdir()
    (world.state / "claims" / ".x.json.new").write_text("{")
    world.restart()
    assert world.tree() == tree | {"cdi/nvidia.yaml": "kind: nvidia.com/gpu"}


@pytest.mark.parametrize("damage", ["", "{", '{"version": 1}', "[]"])
def test_a_torn_file_is_reported_and_healed_by_preparing_again(world: World, damage: str) -> None:
    ref, other = world.tenant("tts"), world.tenant("other")
    world.driver.prepare(ref)
    world.driver.prepare(other)
    tree = world.tree()
    (world.state / "claims" / f"{ref.uid}.json").write_text(damage)
    world.restart()
    assert [each.name for each in world.store.prepared()] == [other.name]
    assert f"cannot read claims/{ref.uid}.json" in next(world.store.problems())
    assert (world.cdi / file_name(ref.uid)).exists()
    world.driver.prepare(ref)
    assert (world.tree(), list(world.store.problems())) == (tree, [])


def test_a_claim_of_a_newer_release_is_known_again_and_its_file_stays_until_it_is_undone(
    world: World,
) -> None:
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    file = world.state / "claims" / f"{ref.uid}.json"
    file.write_text(newer := json.dumps({"version": CLAIM.version + 1, "of": "tomorrow"}))
    world.restart()
    assert world.store.prepared() == ()
    world.driver.prepare(ref)
    assert [each.name for each in world.store.prepared()] == [ref.name]
    assert file.read_text() == newer
    assert f"version {CLAIM.version + 1}" in next(world.store.problems())
    world.driver.unprepare(ref)
    assert (file.exists(), list(world.store.problems())) == (False, [])


def test_a_torn_file_is_undone_as_well(world: World) -> None:
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    (world.state / "claims" / f"{ref.uid}.json").write_text("{")
    world.restart()
    world.driver.unprepare(ref)
    assert list(world.store.problems()) == []
    assert list(world.tree()) == [f"run/status/{made_uid('tts')}"], "whose it was cannot be known any more"


def test_a_full_disk_fails_with_a_sentence_and_undoing_works(world: World, monkeypatch: Any) -> None:
    ref, new = world.tenant("tts"), world.tenant("new")
    world.driver.prepare(ref)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("enforcer.dra.checkpoint.replace", full)
        assert refused(world, new).reason is Reason.FILES_UNWRITABLE
        patch.setattr(files_module, "put", full)
        world.driver.unprepare(ref)
    assert (world.tree(), world.store.prepared()) == ({}, ())


def test_the_toolkits_device_comes_first_where_it_exists(world: World) -> None:
    world.cdi.mkdir()
    (world.cdi / "nvidia.yaml").write_text(f"kind: nvidia.com/gpu\ndevices:\n- name: '0'\n- name: {GPU}\n")
    (world.cdi / "broken.yaml").write_text("{")
    devices = {each.request: each.cdi_ids for each in world.driver.prepare(world.tenant("tts"))}
    assert devices["model"][0] == f"nvidia.com/gpu={GPU}"
    assert devices["model"][1].startswith(contract.CDI_KIND)
    assert len(devices[contract.SIDECAR]) == 1
    other = {each.request: each.cdi_ids for each in world.driver.prepare(world.tenant("two", device=OTHER_DEVICE))}
    assert len(other["model"]) == 1


def test_many_at_once_never_take_more_than_there_is(world: World) -> None:
    refs = [world.tenant(f"pod-{number}", "4Gi") for number in range(6)]
    outcomes: list[bool] = []

    def run(ref: ClaimRef) -> None:
        try:
            world.driver.prepare(ref)
            outcomes.append(True)
        except PrepareError:
            outcomes.append(False)

    threads = [threading.Thread(target=run, args=(ref,)) for ref in refs]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert sorted(outcomes) == [False] * 3 + [True] * 3
    assert len(list(world.cdi.iterdir())) == 3


def test_what_is_notified_of_a_claim_is_notified_while_nobody_else_changes_it(world: World) -> None:
    held: list[bool] = []

    class Publisher:
        def publish(self, claim: PreparedClaim) -> None:
            other = threading.Thread(target=world.driver.update, args=(claim.uid, lambda known: known))
            world.driver._publisher = Published([])  # type: ignore[assignment] # a stand-in
            other.start()
            other.join(0.2)
            held.append(other.is_alive())

    ref = world.tenant("tts")
    for change in (lambda: world.driver.prepare(ref), lambda: world.driver.update(ref.uid, lambda known: known)):
        world.driver._publisher = Publisher()  # type: ignore[assignment] # a stand-in
        change()
    assert held == [True, True]


def test_calls_for_one_claim_wait_for_each_other_and_leave_no_lock() -> None:
    locks, order = KeyedLock(), []

    def hold(number: int) -> None:
        with locks.hold("claim"):
            order.append(number)
            time.sleep(0.05)
            order.append(number)

    threads = [threading.Thread(target=hold, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(5)
    assert order[0::2] == order[1::2]
    assert locks._used == {}
