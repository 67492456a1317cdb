import json
import threading
from pathlib import Path
from typing import Any

import pytest

from enforcer import main as program
from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.audit.retention import Retention
from enforcer.build import build
from enforcer.flags import parse
from enforcer.loop import EnforcementLoop
from enforcer.main import main
from enforcer.nvml.types import GpuSample
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import Mode
from enforcer.resourceslices.controller import SlicePublishing, reserved_mib
from enforcer.resourceslices.devices import InventoryPolicy
from enforcer.runtime.lock import acquire_lock
from enforcer.runtime.manager import Manager, Wake
from gpushare import contract
from gpushare.errors import ConfigError
from gpushare.memory_fraction import Reserve
from gpushare.reasons import Reason
from tests.support.slices import Api, Own, slices
from tests.support.wiring import label_modes
from tests.unit.enforcer.made import DEVICE, GPU, OTHER_DEVICE, OTHER_GPU, holder, neighbour, quota
from tests.unit.enforcer.test_loop import Attributor, Reader, card

BASE = ["--node", "gpu-7"]


def test_the_defaults_are_those_of_the_manifests() -> None:
    options = parse(BASE)
    assert (str(options.state), str(options.run), options.poll_seconds) == ("/var/lib/gpu-share", "/run/gpu-share", 0.5)
    assert (options.no_enforce, options.no_mps, options.no_publish, options.address) == (False, False, False, None)
    roots = (str(options.kubelet_root), str(options.cdi_root))
    assert options.mode is Mode.MPS
    assert (options.no_dra, *roots) == (False, "/var/lib/kubelet", "/var/run/cdi")


def test_what_is_kept_of_the_audit_log_is_an_option() -> None:
    assert parse(BASE).retention == Retention() == Retention(mib=256, segments=0, days=0)
    given = ["--audit-keep-mib", "0", "--audit-keep-segments", "3", "--audit-keep-days", "90"]
    assert parse([*BASE, *given]).retention == Retention(mib=0, segments=3, days=90)


def test_the_reserve_and_the_variables_of_frameworks_are_options() -> None:
    assert (parse(BASE).reserve, parse(BASE).no_framework_variables) == (Reserve(), False)
    assert parse([*BASE, "--memory-reserve", "6%"]).reserve == Reserve(0, 6)
    assert parse([*BASE, "--no-framework-variables"]).no_framework_variables


def test_the_node_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "gpu-9")
    assert parse([]).node == "gpu-9"


ADDRESSES = [("127.0.0.1:9402", ("127.0.0.1", 9402)), ("[::1]:1", ("::1", 1)), (":80", ("", 80))]


@pytest.mark.parametrize(("text", "address"), ADDRESSES)
def test_an_address_is_read(text: str, address: tuple[str, int]) -> None:
    assert parse([*BASE, "--metrics", text]).address == address


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--node is missing"), ([*BASE, "--poll-seconds", "0"], "--poll-seconds 0 is out of range"),
        ([*BASE, "--audit-keep-days", "-1"], "--audit-keep-days -1 is out of range; write 0 for no limit"),
        ([*BASE, "--audit-keep-mib", "9999999"], "or 1 to 1048576"),
        ([*BASE, "--max-kills-per-minute", "0"], "--max-kills-per-minute 0 allows no kill"),
        ([*BASE, "--metrics", "here"], "is not an address"),
        ([*BASE, "--metrics", "x:99999"], "is not an address"),
        ([*BASE, "--poll-seconds", "nan"], "--poll-seconds nan is out of range"),
        ([*BASE, "--poll-seconds", "inf"], "--poll-seconds inf is out of range"),
        ([*BASE, "--poll-seconds", "1e-9"], "is out of range"),
        ([*BASE, "--termination-timeout", "-1"], "--termination-timeout -1 is out of range"),
        ([*BASE, "--termination-timeout", "nan"], "is out of range"),
        ([*BASE, "--termination-timeout", "1e9"], "--termination-timeout 1e+09 is out of range"),
        ([*BASE, "--reclaim-notice-seconds", "0"], "--reclaim-notice-seconds 0 is out of range; write seconds from 1"),
        ([*BASE, "--reclaim-notice-seconds", "15.5"], "--reclaim-notice-seconds 15.5 is out of range"),
        ([*BASE, "--memory-reserve", "512"], "--memory-reserve: '512' is not a quantity of memory; did you mean 512Mi"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_reported(options: list[str], said: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert main(options) == 2
    assert said in capsys.readouterr().err


def test_in_a_pid_namespace_of_its_own_it_refuses(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.setattr(program, "in_initial_pid_namespace", lambda: False)
    options = [*BASE, "--state", str(tmp_path), "--no-cluster", "--no-mps"]
    assert main(options, reader=Reader(), attributor=Attributor()) == 2
    said = capsys.readouterr().err
    assert f"{Reason.NOT_INITIAL_PID_NAMESPACE}: " in said
    assert "hostPID: true" in said


def test_it_starts_without_nvml_says_what_is_missing_and_goes_on_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reader, said = Reader(), list[Any]()
    reader.all_broken = True

    def serve(enforcer: EnforcementLoop, _: Any, manager: Manager) -> None:
        for reader.all_broken in (True, False):
            enforcer.poll()
            said.append((manager.not_ready(), json.loads((tmp_path / "status.json").read_text())))

    monkeypatch.setattr(program, "_serve", serve)
    options = [*BASE, "--state", str(tmp_path), "--run", str(tmp_path), "--no-cluster", "--allow-any-pid-namespace"]
    assert main(options, reader=reader, attributor=Attributor()) == 0
    (hindrance, away), (none, back) = said
    assert (hindrance, none) == ("the enforcer cannot list the GPUs of this node: the driver is gone", None)
    assert ("NVML unavailable for all: the driver is gone" in away["problems"], away["gpus"]) == (True, [])
    assert {gpu["uuid"] for gpu in back["gpus"]} == {GPU, OTHER_GPU}


def test_building_starts_no_thread_and_no_server(tmp_path: Path) -> None:
    before, manager = set(threading.enumerate()), Manager()
    options = parse([*BASE, "--state", str(tmp_path), "--run", str(tmp_path), "--no-cluster", "--metrics", ":1"])
    with acquire_lock(tmp_path) as lock:
        loop = build(options, manager, lock, Reader(), Attributor())
        assert set(threading.enumerate()) <= before
        assert manager.problems() == []
        loop.close()


def test_what_is_promised_is_added_up_for_each_gpu() -> None:
    assert reserved_mib([quota(), neighbour(), neighbour(gpu=OTHER_GPU)]) == {GPU: 8192, OTHER_GPU: 4096}


VIEWS = [GpuSnapshot(gpu=card(GPU, 0)), GpuSnapshot(gpu=card(OTHER_GPU, 1))]
POLICY = InventoryPolicy(mode=Mode.TIME_SLICING)


def test_what_there_is_is_offered_and_narrowed_by_the_nodes_annotation() -> None:
    api = Api()
    offering = slices(api, POLICY)
    offering.reconcile(VIEWS, [])
    assert api.devices() == ["status", DEVICE, OTHER_DEVICE]
    api.node["metadata"]["annotations"] = {contract.NODE_GPUS: "1"}
    offering.reconcile(VIEWS, [])
    assert api.devices() == ["status", OTHER_DEVICE]
    assert offering.problem is None


def test_a_gpu_that_changes_offers_nothing_until_its_last_tenant_has_gone() -> None:
    api, held = Api(), {GPU: Mode.MPS}
    offering = slices(api, InventoryPolicy(), label_modes(held))
    offering.reconcile(VIEWS, [])
    assert api.devices() == ["status", DEVICE, OTHER_DEVICE]
    api.node["metadata"]["labels"][contract.NODE_MODE] = "time-slicing"
    offering.reconcile(VIEWS, [])
    assert api.devices() == ["status", OTHER_DEVICE]
    held.clear()
    offering.reconcile(VIEWS, [])
    assert api.devices() == ["status", DEVICE, OTHER_DEVICE]
    api.node["metadata"]["labels"][contract.NODE_MODE] = "mpss"
    offering.reconcile(VIEWS, [])
    assert api.devices() == ["status"]
    (only,) = api.slices.values()
    assert "'mpss' is not a mode" in only["metadata"]["annotations"][contract.EXCLUDED_GPUS]


def test_a_server_known_once_stays_known_while_it_holds_memory() -> None:
    api, servers = Api(), [[900], []]
    nobody = type(holder(900, 1))(type(holder(900, 1).identity)(pid=900, start=1, owner=None), 1000)
    sample = GpuSample(uuid=GPU, total_mib=16384, used_mib=1000, processes=())
    views = [GpuSnapshot(gpu=card(GPU, 0), holders=(nobody,), sample=sample)]
    offering = slices(api, POLICY, own=Own(lambda: servers.pop(0)))
    for _ in range(2):
        offering.reconcile(views, [])
        device = api.slices["gpu-7-gpu-share.io-0"]["spec"]["devices"][1]
        assert device["capacity"]["memory"]["value"] == "15872Mi"


def test_a_node_without_the_label_offers_nothing_and_takes_back_what_it_offered() -> None:
    api = Api()
    offering = slices(api, POLICY)
    offering.reconcile(VIEWS, [])
    assert api.slices
    api.node["metadata"]["labels"] = {contract.NODE_LABEL: "false"}
    offering.reconcile(VIEWS, [])
    assert api.devices() == []


def test_without_nvml_what_an_enforcer_before_us_offered_is_taken_back(tmp_path: Path) -> None:
    api, reader = Api({contract.NODE_GPUS: "1"}), Reader()
    offering = slices(api, POLICY)
    offering.reconcile(VIEWS, [])
    assert api.slices
    reader.all_broken = True
    turns = SlicePublishing(offering, UsageSampler(reader, Attributor()), Checkpoint(tmp_path), Wake(), None)
    turns.run_once()
    assert (api.devices(), offering.problem) == ([], None)
    reader.all_broken = False
    turns.run_once()
    assert api.devices() == ["status", OTHER_DEVICE]
    reader.all_broken = True
    turns.run_once()
    assert api.devices() == ["status", OTHER_DEVICE], "what was seen once is known"


def test_an_offer_that_cannot_be_made_is_a_problem_until_it_can() -> None:
    api = Api({contract.NODE_GPUS: "7"})
    offering = slices(api, POLICY)
    offering.reconcile(VIEWS, [])
    assert "names no GPU" in (offering.problem or "") or "is not a GPU of this node" in (offering.problem or "")
    assert api.slices == {}
    api.node["metadata"]["annotations"] = {}
    api.down = True
    offering.reconcile(VIEWS, [])
    assert "does not answer" in (offering.problem or "")
    api.down = False
    offering.reconcile(VIEWS, [])
    assert offering.problem is None


class Kubelet:
    def __init__(self, problem: str | None) -> None:
        self.problem = problem

    def terminating_pods(self) -> frozenset[str]:
        return frozenset()

    def withdrawn_mib(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(("problem", "offered"), [("not registered", []), (None, ["status", DEVICE, OTHER_DEVICE])])
def test_nothing_is_offered_that_nobody_would_prepare(problem: str | None, offered: list[str], tmp_path: Path) -> None:
    api = Api()
    offering = slices(api, InventoryPolicy())
    watch, checkpoint = UsageSampler(Reader(), Attributor()), Checkpoint(tmp_path)
    SlicePublishing(offering, watch, checkpoint, Wake(), Kubelet(problem)).run_once()
    assert api.devices() == offered


def test_a_state_that_cannot_be_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert (
        main([*BASE, "--state", str(tmp_path / "file"), "--no-cluster"], reader=Reader(), attributor=Attributor()) == 2
    )


def test_bad_options_are_config_errors() -> None:
    with pytest.raises(ConfigError):
        parse([*BASE, "--poll-seconds", "-1"])
