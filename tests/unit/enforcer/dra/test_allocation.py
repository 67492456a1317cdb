import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.dra.allocation import PrepareRequest, compute_limits, still_valid
from enforcer.dra.cdi import document
from enforcer.dra.prepared_claim import PreparedClaim, decode, encode
from enforcer.quota.types import Mode, OnExceed
from gpushare import contract
from gpushare.errors import ConfigError, PrepareError
from gpushare.peak_usage import peak_usage
from tests.unit.enforcer.dra.objects import (
    NODE,
    Object,
    allocated,
    by_hand,
    claim,
    container,
    gpu,
    namespace,
    pod,
    using,
)
from tests.unit.enforcer.made import DEVICE, GPU, OTHER_DEVICE, OTHER_GPU
from tests.unit.enforcer.test_loop import CARD, card

DEVICES = {DEVICE: card(GPU, 0), OTHER_DEVICE: card(OTHER_GPU, 1)}
THROUGH_MPS = dict.fromkeys((GPU, OTHER_GPU), Mode.MPS)
PIPES = {GPU: "/run/mps/0/pipe", OTHER_GPU: "/x"}


def prepared(claim: Object, pod: Object, policy: dict[str, str] | None = None) -> PreparedClaim:
    return compute_limits(NODE, PrepareRequest(claim, pod, namespace(policy)), DEVICES)


def limits(found: PreparedClaim) -> dict[str, tuple[int, int | None]]:
    return {each.container: (each.memory_mib, each.compute) for each in found.limits}


def env(found: PreparedClaim, request: str, *, mps: bool = True) -> dict[str, str]:
    return dict(each.split("=", 1) for each in edits(found, request, mps=mps).get("env", []))


def edits(found: PreparedClaim, request: str, *, mps: bool = True) -> Object:
    shared = found.shared_by(dict.fromkeys(PIPES, Mode.MPS if mps else Mode.TIME_SLICING))
    pipes = {each.request: PIPES[each.gpu] for each in shared.granted if each.gpu}
    written = document(shared, pipes, "/run/gpu-share/status/pod")
    by_name = {each["name"]: each["containerEdits"] for each in written["devices"]}
    edit: Object = by_name[f"{found.uid}-{request}"]
    return edit


def refused(claim: Object, pod: Object) -> str:
    with pytest.raises(PrepareError) as error:
        prepared(claim, pod)
    return error.value.message


def test_a_container_gets_what_its_annotations_say() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi", contract.COMPUTE: "25%"})
    found = prepared(claim(made), made)
    assert limits(found) == {"model": (4096, 25)}
    assert (found.gpus, found.has_status, found.mib_on(GPU)) == ((GPU,), True, 4096)


def test_a_container_inserted_after_admission_takes_nothing_of_the_main_one() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    made["spec"]["containers"] = [{"name": "in-house", "image": "a"}, *made["spec"]["containers"]]
    assert limits(prepared(claim(made), made)) == {"model": (4096, None)}


def test_what_its_process_finds() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi", contract.COMPUTE: "25%"})
    found = prepared(claim(made), made)
    assert env(found, "model") == {
        contract.NVIDIA_DRIVER_CAPABILITIES: contract.DRIVER_CAPABILITIES,
        contract.CUDA_VISIBLE_DEVICES: GPU,
        contract.NVIDIA_VISIBLE_DEVICES: GPU,
        contract.DEVICE_MEMORY_MIB: str(CARD),
        contract.USABLE_MIB: "3584",
        contract.MEMORY_FRACTION: "0.218750",
        contract.FREE_FRACTION: "0.875000",
        contract.MEMORY_MIB: "4096",
        contract.MPS_PIPE_DIRECTORY: contract.PIPE_PATH,
        contract.MPS_LOG_DIRECTORY: contract.LOG_PATH,
        contract.MPS_MEMORY_LIMIT: "0=4096M",
        contract.MPS_THREAD_PERCENTAGE: "25",
    }
    mounts = {each["containerPath"]: (each["hostPath"], each["options"][1]) for each in edits(found, "model")["mounts"]}
    assert mounts == {contract.PIPE_PATH: ("/run/mps/0/pipe", "ro")}


def test_the_sidecar_gets_its_status_directory_and_no_gpu() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    found = edits(prepared(claim(made), made), contract.SIDECAR)
    assert found.keys() == {"mounts"}
    assert [(each["hostPath"], each["containerPath"], "ro" in each["options"]) for each in found["mounts"]] == [
        ("/run/gpu-share/status/pod", contract.STATUS_PATH, True)
    ]


@pytest.mark.parametrize("value", [True, False, "yes"])
def test_a_claim_that_an_older_enforcer_kept_with_its_priority_is_read(value: object) -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    kept = prepared(claim(made), made)
    assert decode(json.dumps(json.loads(encode(kept)) | {"lowPriority": value}).encode()) == kept


def test_a_retired_annotation_changes_nothing_that_the_driver_gives() -> None:
    plain, old = (pod("tts", {contract.MEMORY: "4Gi"} | more) for more in ({}, {"gpu-share.io/priority": "low"}))
    assert edits(prepared(claim(old), old), "model") == edits(prepared(claim(plain), plain), "model")


def test_where_gpus_are_only_watched_there_is_nothing_of_mps() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi", contract.COMPUTE: "25%"})
    found = prepared(claim(made), made)
    assert not [name for name in env(found, "model", mps=False) if "MPS" in name]
    assert "mounts" not in edits(found, "model", mps=False)


def test_containers_with_different_limits_of_one_request_keep_their_own() -> None:
    annotations = {contract.MEMORY: "4Gi", contract.MEMORY_OF + "warm": "6Gi", contract.COMPUTE: "25%"}
    made = pod("tts", annotations, inits=(container("warm"),))
    found = prepared(claim(made), made)
    assert limits(found) == {"warm": (6144, None), "model": (4096, 25)}
    variables = env(found, "model")
    assert variables[contract.CUDA_VISIBLE_DEVICES] == GPU
    assert not {contract.MPS_MEMORY_LIMIT, contract.MEMORY_MIB, contract.MPS_THREAD_PERCENTAGE} & variables.keys()
    assert variables[contract.MEMORY_FRACTION] == "0.218750"


def test_one_that_does_not_state_its_own_limit_there_is_refused() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi", contract.MEMORY_OF + "warm": "6Gi"}, inits=(container("warm"),))
    app = made["spec"]["containers"][0]
    app["env"].append({"name": contract.MPS_MEMORY_LIMIT, "value": "0=99999M"})
    said = refused(claim(made), made)
    assert f"set {contract.MPS_MEMORY_LIMIT}=0=4096M in its env" in said


def test_annotations_raised_since_are_refused_naming_both_sums() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    held = claim(made)
    made["metadata"]["annotations"][contract.MEMORY] = "8Gi"
    said = refused(held, made)
    assert "may hold 8Gi of one GPU at once (model 8Gi), but claim tts-gpu-share reserves 4Gi" in said


def test_annotations_lowered_since_lower_the_limit_and_the_variables() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    held = claim(made)
    made["metadata"]["annotations"][contract.MEMORY] = "2Gi"
    assert env(prepared(held, made), "model")[contract.MPS_MEMORY_LIMIT] == "0=2048M"


def test_annotations_nobody_can_read_are_refused_with_their_name() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    held = claim(made)
    made["metadata"]["annotations"][contract.MEMORY] = "lots"
    assert refused(held, made).startswith(f"metadata.annotations[{contract.MEMORY}]: ")


def test_compute_raised_since_is_refused_naming_both_sums() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi", contract.COMPUTE: "25%"})
    held = claim(made)
    made["metadata"]["annotations"][contract.COMPUTE] = "50%"
    assert "may use 50% of one GPU at once (model 50%), but claim tts-gpu-share reserves 25%" in refused(held, made)


def test_a_claim_written_by_hand_is_limited_by_what_it_consumed() -> None:
    made = by_hand("job", {"gpu": "mine"}, using("main", "card"))
    found = prepared(allocated("mine", made, gpu("card", 3000, 30)), made)
    assert limits(found) == {"main": (3000, 30)}
    assert env(found, "card")[contract.MPS_MEMORY_LIMIT] == "0=3000M"


def test_a_container_that_names_no_request_uses_the_only_one() -> None:
    made = by_hand("job", {"gpu": "mine"}, using("main", None))
    assert limits(prepared(allocated("mine", made, gpu("card", 3000)), made)) == {"main": (3000, None)}


def test_requests_by_choice_are_known_by_their_first_name() -> None:
    made = by_hand("job", {"gpu": "mine"}, using("main", "card"))
    found = prepared(allocated("mine", made, gpu("card/large", 3000)), made)
    assert [each.request for each in found.granted] == ["card"]


def test_annotations_hold_for_a_claim_written_by_hand_too() -> None:
    made = by_hand("job", {"gpu": "mine"}, using("main", "card"))
    made["metadata"]["annotations"] = {contract.MEMORY: "1Gi"}
    assert limits(prepared(allocated("mine", made, gpu("card", 3000)), made)) == {"main": (1024, None)}
    made["metadata"]["annotations"] = {contract.MEMORY: "3Gi"}
    with pytest.raises(PrepareError, match=r"hold 3Gi .* but claim mine reserves 3000Mi; reserve more in the claim"):
        prepared(allocated("mine", made, gpu("card", 3000)), made)


HAND = by_hand("job", {"gpu": "mine"}, using("main", "card"))
REFUSALS: list[tuple[Object, Object, str]] = [
    (
        allocated("mine", HAND, gpu("card", 3000)),
        by_hand("job", {"gpu": "mine"}, using("main", "card"), using("side", "card")),
        "may hold 6000Mi of one GPU at once (main 3000Mi, side 3000Mi), but claim mine reserves 3000Mi; reserve more",
    ),
    (
        allocated("mine", HAND, gpu("a", 3000), gpu("b", 3000)),
        by_hand("job", {"gpu": "mine"}, using("main", None)),
        "container main uses 2 requests (a, b) of claim mine; a container can use one request",
    ),
    (
        allocated("mine", HAND, gpu("card", 3000), gpu("card", 3000)),
        HAND,
        "request card of claim mine got the same device 2 times; add the constraint distinctAttribute",
    ),
    (
        allocated("mine", HAND, gpu("card", 3000, device="gpu-9")),
        HAND,
        f"has only the devices: {DEVICE}, {OTHER_DEVICE}; delete the pod",
    ),
    (allocated("mine", HAND, gpu("card", 3000, pool="elsewhere")), HAND, f"device {DEVICE} of pool elsewhere"),
    (
        allocated("mine", HAND, gpu("card", 3000, adminAccess=True)),
        HAND,
        "adminAccess, which the driver does not support",
    ),
    (allocated("mine", HAND, gpu("card", 0)), HAND, f"reserves no memory of {DEVICE}"),
    (allocated("mine", HAND), HAND, "allocated no device of gpu-share.io"),
    (
        allocated("mine", by_hand("other", {}, using("main", "card")), gpu("card", 3000)),
        HAND,
        "is reserved for pod other with UID",
    ),
]


@pytest.mark.parametrize(("claim", "pod", "said"), REFUSALS)
def test_what_cannot_be_limited_is_refused(claim: Object, pod: Object, said: str) -> None:
    assert said in refused(claim, pod)


def test_a_claim_shared_by_pods_is_refused() -> None:
    held = allocated("mine", HAND, gpu("card", 3000))
    held["status"]["reservedFor"].append({"resource": "pods", "name": "two", "uid": "2"})
    assert "claim mine is reserved for 2 users; a share belongs to one pod" in refused(held, HAND)


def test_a_pod_of_another_node_is_refused() -> None:
    for node, words in (("gpu-8", "runs on gpu-8"), (None, "runs on no node")):
        elsewhere = {**HAND, "spec": {**HAND["spec"], "nodeName": node}}
        said = refused(allocated("mine", HAND, gpu("card", 3000)), elsewhere)
        assert f"{words}, not on this node" in said
        assert said.endswith("if this error stays, delete the pod so that it is rescheduled")


def test_an_init_container_and_the_app_after_it_may_use_one_request() -> None:
    made = by_hand("job", {"gpu": "mine"}, using("main", "card"), inits=(using("warm", "card"),))
    assert limits(prepared(allocated("mine", made, gpu("card", 3000)), made)) == {
        "warm": (3000, None), "main": (3000, None),
    }  # fmt: skip


def test_the_namespaces_policy_is_frozen_with_it() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    found = prepared(claim(made), made, {contract.ON_EXCEED: "warn", contract.GRACE_PERIOD: "7s"})
    assert (found.terms.on_exceed, found.terms.grace_seconds) == (OnExceed.WARN, 7.0)


def test_a_claim_is_the_same_until_pod_device_or_amount_change() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    held = claim(made)
    found = prepared(held, made)
    assert still_valid(found, NODE, held, DEVICES)
    joined = {**held["status"], "reservedFor": [*held["status"]["reservedFor"], {"resource": "pods", "uid": "joined"}]}
    assert still_valid(found, NODE, {**held, "status": joined}, DEVICES)
    assert not still_valid(found, NODE, claim(made, OTHER_DEVICE), DEVICES)
    other = pod("tts2", {contract.MEMORY: "4Gi"})
    assert not still_valid(found, NODE, {**held, "status": claim(other)["status"]}, DEVICES)


SHARES = st.lists(st.tuples(st.sampled_from(["init", "sidecar"]), st.integers(1, 9), st.integers(0, 9)), max_size=4)
APPS = st.lists(st.tuples(st.just("app"), st.integers(1, 9), st.integers(0, 9)), max_size=3)


@given(SHARES, APPS)
def test_the_peak_is_what_a_play_of_the_pods_life_holds(first: list[Any], apps: list[Any]) -> None:
    moments, running = [], 0
    for kind, mib, _ in first:
        moments.append(running + mib)
        running += mib if kind == "sidecar" else 0
    moments.append(running + sum(mib for _, mib, _ in apps))
    assert peak_usage([*first, *apps])[0] == max(moments)


AMOUNT = st.integers(1, 9).map(lambda gib: f"{gib}Gi")
PERCENT = st.none() | st.integers(1, 30).map(lambda percent: f"{percent}%")


@st.composite
def pods(draw: st.DrawFn) -> Object:
    inits = [
        container(f"i{n}", **({"restartPolicy": "Always"} if draw(st.booleans()) else {}))
        for n in range(draw(st.integers(0, 2)))
    ]
    apps = [container(f"a{n}") for n in range(draw(st.integers(1, 3)))]
    annotations = {}
    for each in [*inits, *apps]:
        if each is apps[0] or draw(st.booleans()):
            annotations[contract.MEMORY_OF + each["name"]] = draw(AMOUNT)
            if (percent := draw(PERCENT)) is not None:
                annotations[contract.COMPUTE_OF + each["name"]] = percent
    return pod("tts", annotations, *apps, inits=tuple(inits))


@given(pods())
def test_whatever_the_webhook_admits_is_prepared_with_exactly_its_own_limits(made: Object) -> None:
    found = prepared(claim(made), made)
    asked = {
        key.partition("/")[2]: value
        for key, value in made["metadata"]["annotations"].items()
        if key.startswith("memory.")
    }
    assert {name: f"{memory // 1024}Gi" for name, (memory, _) in limits(found).items()} == asked
    for each in [*made["spec"]["initContainers"], *made["spec"]["containers"]]:
        if each["name"] in asked:
            request = each["resources"]["claims"][0]["request"]
            mine = {entry["name"]: entry["value"] for entry in each["env"]} | env(found, request)
            assert mine[contract.MPS_MEMORY_LIMIT] == f"0={limits(found)[each['name']][0]}M"
            assert mine[contract.MEMORY_MIB] == str(limits(found)[each["name"]][0])
            percent = limits(found)[each["name"]][1]
            assert mine.get(contract.MPS_THREAD_PERCENTAGE) == (None if percent is None else str(percent))
            assert float(mine[contract.MEMORY_FRACTION]) * CARD <= limits(found)[each["name"]][0]


@given(pods())
def test_what_is_written_is_read_back(made: Object) -> None:
    found = prepared(claim(made), made)
    assert decode(encode(found)) == found


@given(
    st.binary()
    | st.just(b'{"version": 1, "granted": 3}')
    | st.just(b'{"version": 1, "gra')
    | st.just(b'{"version": 2}')
    | st.just(b"[]")
)
def test_a_file_that_is_none_is_an_error_with_what_to_do_and_nothing_else(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"move the file away|restart the enforcer|a newer release wrote it"):
        decode(data)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda content: content["granted"][0].update(gpu=None, mode=None), "request main"),
        (lambda content: content["granted"][0].update(request=3), "cannot be read"),
        (lambda content: content.pop("granted"), "granted"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_with_what_is_wrong_and_what_to_do(
    change: Callable[[Any], object], names: str
) -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    content = json.loads(encode(prepared(claim(made), made)))
    content["granted"] = content["granted"][:1]
    content["limits"] = [content["limits"][0] | {"request": "main"}]
    content["granted"][0]["request"] = "main"
    change(content)
    with pytest.raises(ConfigError, match=rf"{names}.*; restart the enforcer.*delete the pod"):
        decode(json.dumps(content).encode())


@pytest.mark.parametrize("mode", Mode)
def test_how_a_gpu_is_shared_is_kept_with_the_claim(mode: Mode) -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    found = prepared(claim(made), made).shared_by({GPU: mode})
    assert (decode(encode(found)), found.modes) == (found, {GPU: mode})
    assert still_valid(found, NODE, claim(made), DEVICES), "the API server does not say how"


def test_a_claim_from_before_there_were_modes_is_of_a_gpu_shared_through_mps() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    content = json.loads(encode(prepared(claim(made), made)))
    for row in content["granted"]:
        del row["mode"]
    assert decode(json.dumps(content).encode()).modes == {GPU: Mode.MPS}


def test_a_claim_of_no_known_mode_is_not_read() -> None:
    made = pod("tts", {contract.MEMORY: "4Gi"})
    text = encode(prepared(claim(made), made).shared_by(THROUGH_MPS)).replace(b'"mps"', b'"magic"')
    with pytest.raises(ConfigError, match="magic"):
        decode(text)
