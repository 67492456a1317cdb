"""All of it together in one process: sockets, checkpoint, CDI, quotas; GPUs, daemons and API server are played."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.dra import plugin
from enforcer.dra.cdi import file_name
from enforcer.dra.checkpoint import ClaimStore
from enforcer.dra.driver import ClaimRef
from enforcer.dra.plugin import DraPlugin
from enforcer.mps.launcher import pipe_of
from enforcer.runtime.manager import Manager
from gpushare import contract
from gpushare.errors import ConfigError
from gpushare.kube_client import CORE_V1, path
from tests.support.kubelet import KubeletCalls
from tests.support.quotas import of_containers
from tests.support.wiring import supervisor
from tests.unit.enforcer.dra.objects import NAMESPACE, allocated, by_hand, gpu, using
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dra-") as made:
        yield Path(made)


def side(world: World) -> tuple[DraPlugin, Manager]:
    """What prepares claims on this node, and what runs it."""
    world.store = ClaimStore(world.state)
    setup = replace(world.config(), mps=supervisor())
    made, manager = DraPlugin(setup), Manager()
    made.add_to(manager)
    world.setup = setup
    return made, manager


def test_containers_that_start_later_see_what_the_back_end_of_then_makes_of_their_gpu(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "SETTLE_EVERY", 0.05)
    world = World(folder)
    _, manager = side(world)
    manager.start()
    ref = world.tenant("tts")
    with KubeletCalls(folder / "kubelet") as calls:
        calls.register()
        assert calls.prepare((ref.namespace, ref.name, ref.uid))[ref.uid].error == ""
    assert fraction(world, ref) == "0.223160"
    world.backends[GPU] = "driver-cgroup"
    deadline = time.monotonic() + 20
    while fraction(world, ref) != "0.864746":
        assert time.monotonic() < deadline, "its containers still see the whole card"
        time.sleep(0.05)
    manager.stop()


def fraction(world: World, ref: ClaimRef) -> str:
    """The memory fraction that containers of a claim get."""
    env = json.loads((world.cdi / file_name(ref.uid)).read_text())["devices"][0]["containerEdits"]["env"]
    return str(dict(each.split("=", 1) for each in env)[contract.MEMORY_FRACTION])


@pytest.mark.parametrize("which", ["cdi", "run/status", "state/claims"])
def test_a_folder_that_takes_no_files_is_named_before_a_claim_comes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    world = World(folder)
    _, manager = side(world)
    world.driver.prepare(world.tenant("tts"))
    before = manager.problems()
    with monkeypatch.context() as patched:  # root may write what is not immutable or on a read-only disk
        patched.setattr(os, "access", lambda file, mode: mode == os.F_OK or file != folder / which)
        (found,) = set(manager.problems()) - set(before)
    assert str(folder / which) in found
    assert manager.problems() == before


def test_a_socket_that_cannot_be_made_again_makes_the_enforcer_not_ready(folder: Path) -> None:
    made, manager = side(World(folder))
    manager.start()
    (folder / "kubelet" / contract.DRIVER_SOCKET).unlink()
    (folder / "kubelet" / contract.DRIVER_SOCKET).mkdir()
    made._settle()
    assert [str(folder / "kubelet") in str(each) for each in (*manager.problems(), manager.not_ready())] == [True, True]
    (folder / "kubelet" / contract.DRIVER_SOCKET).rmdir()
    made._settle()
    assert made.problem == "the kubelet has not registered the driver yet"
    manager.stop()


def test_from_the_kubelets_call_to_a_quota(folder: Path) -> None:
    world = World(folder)
    told = world.told
    kubelet, manager = side(world)
    manager.start()
    assert manager.problems() == ["the kubelet has not registered the driver yet"]
    ref = world.tenant("tts")
    with KubeletCalls(folder / "kubelet") as calls:
        calls.register()
        assert world.setup.registered.is_set()
        assert manager.problems() == []
        assert calls.prepare((ref.namespace, ref.name, ref.uid))[ref.uid].error == ""
    kubelet.books.replace("pods", [])
    kubelet.books.replace("namespaces", [])
    assert [(each.pod, each.gpu, each.memory_mib) for each in of_containers(kubelet.books.quotas() or ())] == [
        ("tts", GPU, 4096)
    ]
    edits = json.loads((world.cdi / file_name(ref.uid)).read_text())["devices"][0]["containerEdits"]
    assert [(each["hostPath"], each["containerPath"]) for each in edits["mounts"]] == [
        (pipe_of(world.run, GPU), contract.PIPE_PATH)
    ]
    pod = world.api.objects[path(CORE_V1, "pods", "tts", NAMESPACE)]
    pod["metadata"]["annotations"][f"{contract.RESIZE_OF}model"] = "2Gi"
    kubelet.books.replace("pods", [pod])
    deadline = time.monotonic() + 20
    while [each.memory_mib for each in of_containers(kubelet.books.quotas() or ())] != [2048] or not told:
        assert time.monotonic() < deadline, "the wish for another quota is not carried out"
        time.sleep(0.05)
    assert [each.note[:30] for each in told] == ["the quota of container model i"]
    manager.stop()
    assert not (folder / "kubelet" / contract.REGISTRATION_SOCKET).exists()


def test_a_pod_that_joins_a_claim_is_told_once_that_it_gets_nothing_and_what_to_do(folder: Path) -> None:
    world = World(folder)
    told = world.told
    one, two = (by_hand(name, {"gpu": "mine"}, using("main", "card")) for name in ("one", "two"))
    world.driver.prepare(world.add(one, allocated("mine", one, gpu("card", 3000, 30))))
    kubelet, manager = side(world)
    manager.start()
    kubelet.books.replace("namespaces", [])
    for pods in ([one], [one, two], [two, one]):
        kubelet.books.replace("pods", pods)
        kubelet.books.quotas()
    (notice,) = told
    assert (notice.quota.pod, notice.quota.memory_mib, notice.warning) == ("two", 0, True)
    assert "pod one uses ResourceClaim mine" in notice.note
    assert "delete this pod and create it again with a ResourceClaim of its own" in notice.note
    said = "claim asr/mine was prepared for pod asr/one; pod asr/two uses the same claim and gets no GPU memory"
    assert any(said in each for each in manager.problems())
    manager.stop()


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "ended"])
def test_one_that_joined_is_notified_what_to_do_when_the_claims_own_pod_has_ended(
    folder: Path, *, deleted: bool
) -> None:
    world = World(folder)
    told = world.told
    one, two = (by_hand(name, {"gpu": "mine"}, using("main", "card")) for name in ("one", "two"))
    world.driver.prepare(world.add(one, allocated("mine", one, gpu("card", 3000, 30))))
    kubelet, manager = side(world)
    manager.start()
    kubelet.books.replace("namespaces", [])
    ended = one | {"status": {"phase": "Succeeded"}}
    for pods in ([one, two], [two] if deleted else [ended, two], [two]):
        kubelet.books.replace("pods", pods)
        quotas = kubelet.books.quotas()
        assert quotas is not None
        assert {each.memory_mib for each in quotas if each.pod == "two"} == {0}, "nothing is handed on"
    _, notice = told
    assert notice.quota.pod == "two"
    assert (
        "was prepared for pod one, which has ended; the kubelet keeps it prepared until no pod uses it" in notice.note
    )
    assert "delete this pod, wait until it is gone, and create it again" in notice.note
    manager.stop()


def test_a_state_that_cannot_hold_claims_is_wrong_use(folder: Path) -> None:
    world = World(folder)
    (world.state / "claims").rmdir()
    (world.state / "claims").write_text("")
    with pytest.raises(ConfigError, match="cannot restore the files of prepared claims"):
        side(world)[1].start()
