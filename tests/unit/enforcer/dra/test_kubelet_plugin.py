import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from enforcer.dra import driver, health_service, kubelet_plugin
from enforcer.dra.checkpoint import ClaimStore
from enforcer.dra.driver import ClaimRef, PrepareCall, PreparedDevice
from enforcer.dra.health_service import HealthService
from enforcer.dra.kubelet_plugin import BUG, PluginService, Sockets
from enforcer.resourceslices.health_monitor import WORDS
from enforcer.runtime.manager import Wake
from enforcer.status.metrics import Metrics
from gpushare.contract import DRIVER, DRIVER_SOCKET, REGISTRATION_SOCKET
from gpushare.errors import ConfigError
from gpushare.reasons import Reason
from tests.support.kubelet import KubeletCalls
from tests.support.patience import holds_within
from tests.support.wiring import availability, supervisor
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import DEVICE, GPU, OTHER_DEVICE

SERVICES = ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]


def no_health(folder: Path) -> HealthService:
    return HealthService(ClaimStore(folder / "other"), availability())


class Served:
    def __init__(self, folder: Path) -> None:
        self.world, self.metrics, self.root = World(folder), Metrics(), folder / "kubelet"
        self.registered = Wake()
        plugin = PluginService(self.world.driver, self.metrics)
        self.gpus: dict[str, Reason | None] = {}
        self.health = HealthService(self.world.store, availability(lambda: self.gpus))
        self.sockets = Sockets(self.root, plugin, self.health, self.registered)
        self.sockets.start()
        self.kubelet = KubeletCalls(self.root)

    def counted(self, text: str) -> bool:
        return text in generate_latest(self.metrics.registry).decode()


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A path short enough for sockets below it."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.kubelet.close()
    made.sockets.stop()


def key(ref: ClaimRef) -> tuple[str, str, str]:
    return ref.namespace, ref.name, ref.uid


def test_the_kubelet_finds_who_it_is(served: Served) -> None:
    assert "has not registered" in (served.sockets.registration.problem or "")
    info = served.kubelet.register()
    assert (info.type, info.name, list(info.supported_versions)) == ("DRAPlugin", DRIVER, SERVICES)
    assert info.endpoint == str(served.root / DRIVER_SOCKET)
    assert (served.registered.is_set(), served.sockets.registration.problem) == (True, None)


def test_a_kubelet_that_refuses_is_reported_and_nothing_is_offered(served: Served) -> None:
    served.kubelet.register(accepted=False, error="version too old")
    assert (served.registered.is_set(), "version too old" in (served.sockets.registration.problem or "")) == (
        False,
        True,
    )


def test_each_claim_of_a_call_has_its_own_answer(served: Served) -> None:
    good, bad = served.world.tenant("tts"), ClaimRef("asr", "missing", "no-such-uid")
    served.kubelet.register()
    answers = served.kubelet.prepare(key(good), key(bad))
    assert "not found" in answers[bad.uid].error
    assert answers[bad.uid].error.startswith(f"{Reason.CLAIM_UNKNOWN}: "), "the kubelet puts it into the pod's Event"
    assert not answers[bad.uid].devices
    devices = {each.request_names[0]: each for each in answers[good.uid].devices}
    assert (answers[good.uid].error, set(devices)) == ("", {"model", "gpu-share"})
    assert devices["model"].cdi_device_ids == [f"gpu-share.io/share={good.uid}-model"]
    assert (devices["model"].pool_name, devices["model"].device_name) == ("gpu-7", DEVICE)
    assert devices["model"].share_id
    assert served.kubelet.unprepare(key(good), key(bad)) == {good.uid: "", bad.uid: ""}
    assert served.world.tree() == {}
    assert served.counted('gpu_share_claim_failures_total{operation="prepare",reason="ClaimUnknown"} 1.0')
    assert served.counted('gpu_share_claim_duration_seconds_count{operation="prepare"} 2.0')


def test_a_bug_is_answered_and_the_next_claim_served(served: Served, monkeypatch: Any) -> None:
    ref = served.world.tenant("tts")
    served.kubelet.register()
    with monkeypatch.context() as patch:
        patch.setattr(served.world.files, "write", lambda _: 1 / 0)
        assert served.kubelet.prepare(key(ref))[ref.uid].error == f"{Reason.INTERNAL}: {BUG}"
    assert served.kubelet.prepare(key(ref))[ref.uid].error == ""


@pytest.mark.parametrize("service", SERVICES[1:])
def test_the_kubelet_follows_the_health_of_prepared_devices(served: Served, service: str) -> None:
    served.gpus = {GPU: None}
    served.kubelet.register()
    stream = served.kubelet.watch_health(service)
    assert next(stream) == {}
    served.kubelet.prepare(key(served.world.tenant("tts")))
    well = {DEVICE: ("HEALTHY", ""), "status": ("HEALTHY", "")}
    assert next(stream) == well
    served.gpus = {GPU: Reason.GPU_LOST}
    lost = next(stream)
    assert lost == {**well, DEVICE: ("UNHEALTHY", f"GpuLost: {WORDS[Reason.GPU_LOST]}")}
    served.gpus = {GPU: None}
    assert next(stream) == well
    served.gpus = {}
    assert next(stream) == {**well, DEVICE: ("UNKNOWN", "")}


def test_health_is_repeated_before_the_kubelet_takes_it_for_unknown(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert health_service.REPEAT_SECONDS * 2 < health_service.TIMEOUT_SECONDS
    monkeypatch.setattr(health_service, "REPEAT_SECONDS", 0.0)
    served.kubelet.register()
    stream = served.kubelet.watch_health(SERVICES[1])
    assert [next(stream), next(stream)] == [{}, {}]


def test_a_stream_keeps_no_server_from_stopping(served: Served) -> None:
    served.kubelet.register()
    stream = served.kubelet.watch_health(SERVICES[1])
    next(stream)
    began = time.monotonic()
    served.sockets.stop()
    assert time.monotonic() - began < kubelet_plugin.GRACE
    assert list(stream) == []


def test_calls_that_wait_keep_nobody_from_being_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "CALL_PATIENCE", 60.0)
    free = threading.Event()
    hindered = {"gpu-0": "starting"}
    made = World(tmp_path)
    made.mps = supervisor(lambda gpu: None if free.is_set() or gpu.endswith("2") else hindered["gpu-0"])
    made.restart()
    sockets = Sockets(tmp_path / "kubelet", PluginService(made.driver, Metrics()), no_health(tmp_path), Wake())
    sockets.start()
    waiting = [made.tenant(f"slow-{number}", "1Gi") for number in range(12)]
    ref = made.tenant("quick", "1Gi", OTHER_DEVICE)
    with KubeletCalls(tmp_path / "kubelet") as kubelet:
        kubelet.register()
        threads = [threading.Thread(target=kubelet.prepare, args=(key(each),)) for each in waiting]
        for each in threads:
            each.start()
        time.sleep(0.3)
        assert kubelet.prepare(key(ref))[ref.uid].error == ""
        assert all(each.is_alive() for each in threads), "while all of them wait"
        free.set()
        for each in threads:
            each.join(20)
    sockets.stop()
    assert len(made.store.prepared()) == 13


def test_a_call_that_the_kubelet_gives_up_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enforcer.dra.driver.CALL_PATIENCE", 60.0)
    prepare, came = served.world.driver.prepare, threading.Event()
    prepare(served.world.tenant("old", "12Gi"))
    new = key(served.world.tenant("new", "8Gi"))

    def noted(ref: ClaimRef, call: PrepareCall) -> tuple[PreparedDevice, ...]:
        came.set()
        return prepare(ref, call)

    def ask() -> None:
        with suppress(grpc.RpcError):
            served.kubelet.prepare(new)

    monkeypatch.setattr(served.world.driver, "prepare", noted)
    served.kubelet.register()
    asking = threading.Thread(target=ask)
    asking.start()
    assert came.wait(20)
    served.kubelet.close()
    assert holds_within(lambda: served.counted('{operation="prepare",reason="GpuMemoryInUse"} 1.0'), 20)
    asking.join()


def test_stale_sockets_are_replaced_and_ours_go_at_the_end(tmp_path: Path) -> None:
    root = tmp_path / "kubelet"
    for name in (DRIVER_SOCKET, REGISTRATION_SOCKET):
        (root / name).parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(root / name))
    served = Served(tmp_path)
    served.kubelet.register()
    assert (root / REGISTRATION_SOCKET).stat().st_mode & 0o777 == 0o600
    served.sockets.stop()
    assert not (root / DRIVER_SOCKET).exists()
    assert not (root / REGISTRATION_SOCKET).exists()


def test_a_socket_that_was_removed_is_made_again(served: Served) -> None:
    (served.root / REGISTRATION_SOCKET).unlink()
    (served.root / DRIVER_SOCKET).unlink()
    served.sockets.check()
    served.kubelet.register()
    ref = served.world.tenant("tts")
    assert served.kubelet.prepare(key(ref))[ref.uid].error == ""


class Lingering:
    """A server that takes its time to go."""

    def __init__(self, server: grpc.Server) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def stop(self, grace: float | None) -> threading.Event:
        gone = threading.Event()

        def go() -> None:
            time.sleep(0.2)
            self._server.stop(grace).wait()
            gone.set()

        threading.Thread(target=go).start()
        return gone


def test_a_server_that_goes_takes_no_socket_of_the_next_with_it(tmp_path: Path, monkeypatch: Any) -> None:
    usual = grpc.server
    monkeypatch.setattr(grpc, "server", lambda *arguments: Lingering(usual(*arguments)))
    served = Served(tmp_path)
    for name in (REGISTRATION_SOCKET, DRIVER_SOCKET):
        (served.root / name).unlink()
    served.sockets.check()
    time.sleep(0.5)
    assert all((served.root / name).exists() for name in (REGISTRATION_SOCKET, DRIVER_SOCKET))
    served.kubelet.close()
    served.sockets.stop()


def test_a_socket_that_could_not_be_made_again_is_tried_each_time(served: Served) -> None:
    folder = (served.root / REGISTRATION_SOCKET).parent
    (served.root / REGISTRATION_SOCKET).unlink()
    folder.rmdir()
    folder.write_text("")
    for _ in range(2):
        served.sockets.check()
        assert "the driver cannot listen on" in str(served.sockets.unserved)
    folder.unlink()
    served.sockets.check()
    assert served.sockets.unserved is None
    served.kubelet.register()
    assert served.registered.is_set()


def test_a_root_whose_sockets_would_be_too_long_is_wrong_use(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    sockets = Sockets(deep, PluginService(World(tmp_path).driver, Metrics()), no_health(tmp_path), Wake())
    with pytest.raises(
        ConfigError, match=r"--kubelet-root \(chart value kubeletRoot\): the socket path .* has more than"
    ):
        sockets.start()


def test_a_root_that_cannot_be_used_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "kubelet").write_text("")
    sockets = Sockets(
        tmp_path / "kubelet", PluginService(World(tmp_path).driver, Metrics()), no_health(tmp_path), Wake()
    )
    with pytest.raises(ConfigError, match="the driver cannot listen on"):
        sockets.start()
