"""What the programs of a prepared claim are told of their memory, and which variables of frameworks they get."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.cdi import variables
from enforcer.dra.prepared_claim import PreparedClaim, decode, encode
from enforcer.dra.program_view import following, with_view
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.nvml.types import Gpu
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.memory_fraction import Reserve
from tests.support.quotas import of_containers
from tests.unit.enforcer.dra.objects import NODE, Object, claim, container, namespace, pod
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import DEVICE, GPU, OTHER_DEVICE, OTHER_GPU
from tests.unit.enforcer.test_loop import CARD, card

DEVICES = {DEVICE: card(GPU, 0), OTHER_DEVICE: card(OTHER_GPU, 1)}
SEEN = CARD - 512
"""MiB that CUDA reports."""
INSTANCE = card(GPU, 0)._replace(parent=OTHER_GPU, memory_mib=9984, reserved_mib=0, profile="1g.10gb")
USUAL = ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH", "CUDF_PANDAS_RMM_MODE")
JAX = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def viewed(
    made: Object, policy: dict[str, str] | None = None, backend: str = "mps-v2", gpu: Gpu | None = None, **more: bool
) -> PreparedClaim:
    asked = PrepareRequest(claim(made), made, namespace(policy))
    devices = DEVICES | ({DEVICE: gpu} if gpu else {})
    return with_view(compute_limits(NODE, asked, devices), asked, devices.values(), {GPU: backend}, **more)


def env(found: PreparedClaim, mode: Mode = Mode.MPS, request: str = "model", **more: Any) -> dict[str, str]:
    shared = found.shared_by({GPU: mode})
    return variables(shared, shared.of(request), mps=mode is Mode.MPS, **more)


def told(found: dict[str, str]) -> tuple[str, str, str]:
    return found[contract.USABLE_MIB], found[contract.MEMORY_FRACTION], found[contract.FREE_FRACTION]


@pytest.mark.parametrize(
    ("backend", "mode", "fractions"),
    [
        ("mps-v2", Mode.MPS, ("0.223160", "0.864746")),
        ("watch-only", Mode.TIME_SLICING, ("0.223160", "0.223160")),
        ("driver-cgroup", Mode.MPS, ("0.864746", "0.864746")),
        ("driver-cgroup", Mode.TIME_SLICING, ("0.864746", "0.864746")),
        ("", Mode.MPS, ("0.223160", "0.864746")),
    ],
)
def test_the_fraction_is_of_what_cuda_reports(backend: str, mode: Mode, fractions: tuple[str, str]) -> None:
    found = viewed(pod("llm", {contract.MEMORY: "4Gi"}), backend=backend)
    assert decode(encode(found)) == found
    assert told(env(found, mode)) == ("3542", *fractions)


def test_a_share_reads_how_many_mps_clients_its_claim_consumed_and_so_does_the_enforcer() -> None:
    made = pod("llm", {contract.MEMORY: "4Gi"})
    asked = PrepareRequest(claim(made), made, namespace())
    for each in asked.claim["status"]["allocation"]["devices"]["results"]:
        each.get("consumedCapacity", {})[contract.CAPACITY_CLIENTS] = "3"
    found = with_view(compute_limits(NODE, asked, DEVICES), asked, DEVICES.values(), {})
    assert decode(encode(found)) == found
    assert env(found)[contract.MPS_CLIENTS] == "3"
    assert contract.MPS_CLIENTS not in env(found, Mode.TIME_SLICING)
    assert [each.clients for each in of_containers(quotas_of_prepared([found], [], [], ()))] == [3]
    assert contract.MPS_CLIENTS not in env(viewed(made)), "an older driver published no such capacity"


@pytest.mark.parametrize(
    ("before", "now", "fraction"),
    [
        ("", {GPU: "driver-cgroup"}, "0.864746"),
        ("driver-cgroup", {GPU: "mps-v2"}, "0.223160"),
        ("driver-cgroup", {OTHER_GPU: "mps-v2"}, "0.864746"),
        ("driver-cgroup", {}, "0.864746"),
    ],
)
def test_the_fraction_follows_the_back_end_while_it_is_known(before: str, now: dict[str, str], fraction: str) -> None:
    found = following(viewed(pod("llm", {contract.MEMORY: "4Gi"}), backend=before), now)
    assert env(found)[contract.MEMORY_FRACTION] == fraction


def test_of_a_mig_instance_it_is_of_the_instance() -> None:
    found = viewed(pod("llm", {contract.MEMORY: "9984Mi"}), backend="mig-instance", gpu=INSTANCE)
    assert told(env(found, Mode.MIG)) == ("9430", "0.944511", "0.944511")


def test_it_follows_the_reserve_and_another_limit() -> None:
    found = viewed(pod("llm", {contract.MEMORY: "4Gi"}))
    assert told(env(found, reserve=Reserve(1024, 0))) == ("3072", "0.193548", "0.750000")
    smaller = replace(found, limits=tuple(replace(each, memory_mib=2048) for each in found.limits))
    assert told(env(smaller)) == ("1494", "0.094128", "0.729492")


def test_a_claim_of_an_older_enforcer_gets_a_fraction_of_the_card_and_no_variables() -> None:
    found = replace(viewed(pod("llm", {contract.MEMORY: "4Gi"})), seen=(), settings={})
    assert told(env(found)) == ("3584", "0.218750", "0.875000")
    assert not {*USUAL} & env(found).keys()


@pytest.mark.parametrize(("memory", "usable"), [("512Mi", "256"), ("4Gi", "3584"), ("12Gi", "11776")])
def test_a_claim_from_before_the_sms_were_kept_has_the_reserve_that_it_was_prepared_with(
    memory: str, usable: str
) -> None:
    """Its file is written again at the start of an enforcer: a share of 512 MiB must not lose all that is usable."""
    content = json.loads(encode(viewed(pod("llm", {contract.MEMORY: memory}))))
    for each in content["seen"]:
        del each["sms"]
    found = decode(json.dumps(content).encode())
    assert env(found)[contract.USABLE_MIB] == usable
    assert encode(found) == encode(decode(encode(found)))


@pytest.mark.parametrize(("capability", "usable"), [((7, 5), 4096 - 547), ((9, 0), 4096 - 769), ((13, 0), 4096 - 976)])
def test_where_nvml_does_not_say_the_largest_card_of_the_capability_counts(
    capability: tuple[int, int], usable: int
) -> None:
    unknown = card(GPU, 0)._replace(sms=0, compute_capability=capability)
    found = viewed(pod("llm", {contract.MEMORY: "4Gi"}), gpu=unknown)
    assert env(found)[contract.USABLE_MIB] == str(usable)
    assert decode(encode(found)) == found


def test_the_compute_limit_makes_the_reserve_smaller_where_mps_applies_it() -> None:
    h100 = card(GPU, 0)._replace(sms=132)
    quarter = viewed(pod("llm", {contract.MEMORY: "4Gi", contract.COMPUTE: "25%"}), gpu=h100)
    whole = viewed(pod("llm", {contract.MEMORY: "4Gi"}), gpu=h100)
    usable = [
        env(found, mode)[contract.USABLE_MIB] for found in (quarter, whole) for mode in (Mode.MPS, Mode.TIME_SLICING)
    ]
    assert usable == [str(4096 - 403), str(4096 - 769), str(4096 - 769), str(4096 - 769)]


def test_by_default_three_frameworks_get_variables_and_on_request_others() -> None:
    made = pod("llm", {contract.MEMORY: "4Gi"})
    assert {*USUAL} <= env(viewed(made)).keys()
    assert JAX not in env(viewed(made))
    asked = env(viewed(made, {contract.FRAMEWORKS: "jax, torch"}))
    assert (asked[JAX], asked["XLA_CLIENT_MEM_FRACTION"]) == ("0.223160", "")
    assert "PYTORCH_CUDA_ALLOC_CONF" not in asked
    watched = env(viewed(made, {contract.FRAMEWORKS: "torch"}, backend="watch-only"), Mode.TIME_SLICING)
    assert watched["PYTORCH_CUDA_ALLOC_CONF"] == "per_process_memory_fraction:0.223160"


def test_namespace_and_node_can_switch_them_off() -> None:
    made = pod("llm", {contract.MEMORY: "4Gi"})
    for found in (viewed(made, {contract.FRAMEWORKS: "none"}), viewed(made, frameworks=False)):
        assert found.settings == {}
        assert told(env(found)) == ("3542", "0.223160", "0.864746")


def test_a_variable_is_left_to_containers_that_name_it_or_may() -> None:
    own = container("model", env=[{"name": USUAL[0], "value": "true"}])
    made = pod("llm", {contract.MEMORY: "4Gi"}, own)
    assert USUAL[0] not in env(viewed(made))
    assert USUAL[1] in env(viewed(made))
    unseen = container("model", envFrom=[{"secretRef": {"name": "settings"}}])
    assert viewed(pod("llm", {contract.MEMORY: "4Gi"}, unseen)).settings == {}


def test_containers_of_one_request_get_what_all_of_them_leave_free() -> None:
    warm = container("warm", env=[{"name": USUAL[0], "value": "true"}])
    asked = {contract.MEMORY: "4Gi", contract.MEMORY_OF + "warm": "4Gi", contract.MEMORY_OF + "side": "1Gi"}
    found = viewed(pod("llm", asked, container("model"), container("side"), inits=(warm,)))
    assert {each.request for each in found.limits} == {"model", "side"}, "the init container shares a request"
    assert USUAL[0] not in env(found)
    assert USUAL[0] in env(found, request="side")


def test_the_driver_freezes_them_and_writes_the_same_file_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    ref = world.tenant("llm")
    world.driver.prepare(ref)
    written = world.document(ref)
    assert any(f"{USUAL[0]}=false" in each["containerEdits"].get("env", []) for each in written["devices"])
    (kept,) = world.store.prepared()
    assert [(each.gpu, each.total_mib, each.by_cgroup) for each in kept.seen] == [(GPU, SEEN, False)]
    world.restart()
    assert world.document(ref) == written
