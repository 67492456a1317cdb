"""Who gets the /dev/shm that MPS's daemons have: its clients, unless they bring one of their own."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.cdi import document
from enforcer.dra.cdi_files import CdiFileStore
from enforcer.dra.claim_status import status_of
from enforcer.dra.client_memory import ClientMemory
from enforcer.dra.prepared_claim import PreparedClaim, decode, encode
from enforcer.mps.shared_memory import server_files
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.errors import ConfigError
from gpushare.shared_memory import SharedMemory
from tests.unit.enforcer.dra.objects import NODE, Object, claim, container, namespace, pod
from tests.unit.enforcer.dra.test_allocation import DEVICES
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU

MEMORY = "/run/gpu-share/shm"
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def prepared(*apps: Object, mode: Mode = Mode.MPS, **spec: Any) -> PreparedClaim:
    made = pod("tts", {f"{contract.MEMORY_OF}{each['name']}": "2Gi" for each in apps}, *apps)
    made["spec"] |= spec
    return compute_limits(NODE, PrepareRequest(claim(made), made, namespace()), DEVICES).shared_by({GPU: mode})


def mounts(found: PreparedClaim, memory: str | None = MEMORY) -> dict[str, dict[str, list[str]]]:
    """By request: what is mounted where, and how."""
    pipes = {each.request: "/pipe" for each in found.granted if each.gpu}
    return {
        each["name"].removeprefix(f"{found.uid}-"): {
            mount["containerPath"]: [mount["hostPath"], *mount["options"]]
            for mount in each["containerEdits"].get("mounts", [])
        }
        for each in document(found, pipes, "/status", memory)["devices"]
    }


def with_volume(name: str, *paths: str) -> Object:
    return container(name, volumeMounts=[{"name": "own", "mountPath": path} for path in paths])


def test_clients_get_it_writable_and_nobody_else_does() -> None:
    found = mounts(prepared(container("model")))
    assert found["model"]["/dev/shm"] == [MEMORY, "bind", "rw", "nosuid", "nodev", "noexec"]
    assert found[contract.SIDECAR].keys() == {contract.STATUS_PATH}


def test_by_default_and_without_mps_each_container_keeps_its_own() -> None:
    assert mounts(prepared(container("model")), None)["model"].keys() == {contract.PIPE_PATH}
    assert mounts(prepared(container("model"), mode=Mode.TIME_SLICING))["model"] == {}


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/", "//dev/./shm"])
def test_a_container_that_brings_its_own_keeps_it_and_its_neighbour_does_not_lose_by_it(path: str) -> None:
    found = mounts(
        prepared(with_volume("model", "/data", path), with_volume("other", "/dev/shm-not", "/dev/shm/below"))
    )
    assert found["model"].keys() == {contract.PIPE_PATH}
    assert found["other"].keys() == {contract.PIPE_PATH, "/dev/shm"}


def test_who_brings_its_own_is_kept_on_disk() -> None:
    found = prepared(with_volume("model", "/dev/shm"))
    assert found.own_shared_memory == ("model",)
    assert decode(encode(found)) == found
    older = encode(found).replace(b'"ownSharedMemory"', b'"unknown"')
    assert decode(older).own_shared_memory == ()
    with pytest.raises(ConfigError, match="is not the name of a request"):
        decode(encode(found).replace(b'"ownSharedMemory": [\n  "model"', b'"ownSharedMemory": [\n  "../x"'))


def test_the_node_writes_it_where_it_is_asked_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    assert "/dev/shm" not in str(world.document(ref))
    (kept,) = world.store.prepared()
    memory = ClientMemory(world.run / "shm", SharedMemory.NODE, world.setup.watch)
    files = CdiFileStore(world.cdi, world.run, mps=True, memory=memory)
    files.write(kept)
    assert "/dev/shm" not in str(world.document(ref)), "the MPS pod has not made it yet"
    (world.run / "shm").mkdir(mode=0o755)
    files.write(kept)
    assert "/dev/shm" not in str(world.document(ref)), "nor has it, where the kubelet made the directory of a volume"
    (world.run / "shm").chmod(0o1777)
    files.write(kept)
    assert f"{world.run}/shm" in str(world.document(ref))


def test_containers_that_start_again_get_it_once_the_mps_pod_has_made_it_and_not_after_it_went(tmp_path: Path) -> None:
    """As in an upgrade from a release without it: the enforcer is replaced first, the MPS pod later and by hand."""
    world = World(tmp_path)
    memory = world.run / "shm"
    world.shared_memory = SharedMemory.NODE
    world.restart()
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    world.driver.forget_finished()
    assert "/dev/shm" not in str(world.document(ref))
    memory.mkdir()
    for mode, there in ((0o1777, True), (0o755, False)):
        memory.chmod(mode)
        world.driver.forget_finished()
        assert ("/dev/shm" in str(world.document(ref))) is there


@pytest.mark.parametrize(
    ("choice", "driver", "given"),
    [
        ("auto", "570.86.15", True), ("auto", "579", True), ("auto", "580.65.06", False), ("auto", "1000.1", False),
        ("auto", "", True), ("auto", "new", True), ("node", "580.159.04", True), ("private", "570.86.15", False),
    ],
)  # fmt: skip
def test_by_default_the_driver_decides_who_gets_it(tmp_path: Path, choice: str, driver: str, *, given: bool) -> None:
    world, memory = World(tmp_path), tmp_path / "shm"
    memory.mkdir()
    memory.chmod(0o1777)
    found = ClientMemory(memory, SharedMemory(choice), world.setup.watch)
    assert (found.folder() is None) is (choice == "private"), "before NVML answered every driver serves with it"
    world.reader.driver = driver
    world.setup.watch.sample()
    assert (found.folder() is not None) is given


def test_after_a_driver_upgrade_containers_that_start_again_have_their_own(tmp_path: Path) -> None:
    world = World(tmp_path)
    memory = world.run / "shm"
    memory.mkdir(parents=True)
    memory.chmod(0o1777)
    world.shared_memory = SharedMemory.AUTO
    world.restart()
    ref = world.tenant("tts")
    world.driver.prepare(ref)
    assert "/dev/shm" in str(world.document(ref))
    world.reader.driver = "580.159.04"
    world.restart()
    world.setup.watch.sample()
    world.driver.forget_finished()
    assert "/dev/shm" not in str(world.document(ref))


def test_owner_and_mode_of_the_servers_files_stand_in_the_status_of_claims_that_mps_serves(tmp_path: Path) -> None:
    for name, mode in (("cuda.shm.0.1f.1", 0o600), ("cuda.shm.0.20.1", 0o600), ("batch", 0o666)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    (tmp_path / "cuda.shm.link").symlink_to(tmp_path / "batch")
    files = server_files(tmp_path)
    assert files == ((os.getuid(), 0o600),)
    assert server_files(tmp_path / "none") == ()

    def data(mode: Mode) -> list[Any]:
        entries = status_of(prepared(container("model"), mode=mode), NOW, files=files)["status"]["devices"]
        return [each["data"].get("mpsFiles") for each in entries if "data" in each]

    assert data(Mode.MPS) == [[{"user": os.getuid(), "mode": 0o600}]]
    assert data(Mode.TIME_SLICING) == [None]
