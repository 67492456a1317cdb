"""What ``migrate`` refuses and what it leaves alone; ``manifests`` has what it converts."""

from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.errors import PolicyDenied
from gpushare_cli.migrate.convert import Known, convert
from gpushare_cli.migrate.dialects import DIALECTS, UNKNOWN

Json = dict[str, Any]
GPU, MEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
VGPU, VCORE, VMEM = "k8s.amazonaws.com/vgpu", "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


def pod(*limits: Json, annotations: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    """Return a pod with a container for each mapping of limits: a, b, c."""
    containers = [{"name": name, "resources": {"limits": each}} for name, each in zip("abc", limits, strict=False)]
    metadata = {"name": "p", "annotations": annotations or {}, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers, **spec}}


def share(request: str, limit: str, **more: str) -> Json:
    labels = {f"sharedgpu/gpu_{key}": value for key, value in {"request": request, "limit": limit, **more}.items()}
    return pod({}, labels=labels, schedulerName="kubeshare-scheduler")


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        (pod({GPU: 1, f"{MEM}-percentage": 40}), f"[{MEM}-percentage]", "--card 80Gi"),
        (pod({GPU: 1, CORES: 50}), f"[{GPU}]", "--card 80Gi"),
        (pod({f"{MEM}-percentage": 100, CORES: 100, GPU: 2}), f"[{MEM}-percentage]", "write nvidia.com/gpu: 2"),
        (pod({"aliyun.com/gpu-mem": 3}), "[aliyun.com/gpu-mem]", "--unit aliyun.com/gpu-mem=1Gi"),
        (pod({VGPU: 1}), f"[{VGPU}]", f"--replicas {VGPU}=4"),
        (pod({MEM: 100, f"{MEM}-percentage": 40}), f"[{MEM}-percentage]", "remove one"),
        (pod({MEM: "3Gi"}), f"[{MEM}]", "more than the card has"),
        (pod({MEM: -5}), f"[{MEM}]", "above zero"),
        (pod({MEM: "x"}), f"[{MEM}]", "above zero"),
        (pod({MEM: 100, GPU: 17}), f"[{MEM}]", "17 GPUs"),
        (pod({MEM: 100, CORES: 120}), f"[{MEM}]", "120 %"),
        (pod({MEM: 100}, annotations={"nvidia.com/vgpu-mode": "mig"}), "[nvidia.com/vgpu-mode]", "mig-profile"),
        (pod({MEM: 100}, annotations={"nvidia.com/use-gpuuuid": "GPU-1"}), "[nvidia.com/use-gpuuuid]", "nodeSelector"),
        (pod({MEM: 100}, annotations={"gpu-share.io/memory": "1Gi"}), "[gpu-share.io/memory]", "remove one"),
        (pod({MEM: 100}, {GPU: 1}), f"[{GPU}]", "whole GPUs"),
        (pod({MEM: 100, "volcano.sh/vgpu-memory": 1}), "[volcano.sh/vgpu-memory]", "remove one"),
        (pod({"volcano.sh/vgpu-number": 2}), "[volcano.sh/vgpu-number]", "write nvidia.com/gpu: 2"),
        (pod({VCORE: 200, VMEM: 60}), f"[{VMEM}]", "write nvidia.com/gpu: 2"),
        (pod({VCORE: 30}), f"[{VCORE}]", "asks for no memory"),
        (pod({"nvidia.com/gpu-10gb": 2}), "[nvidia.com/gpu-10gb]", "write 1"),
        (pod({GPU: 1}, annotations={"gpu-memory": "4096"}), f"[{GPU}]", "remove one"),
        (pod({}, annotations={"gpu-fraction": 0.5}), "[gpu-fraction]", "above zero"),
        (pod({}, annotations={"gpu-memory": "9", "gpu-fraction-container-name": "z"}), "-name]", "not a container"),
        (
            pod({}, annotations={"gpu-memory": "9", "gpu-memory.limit": "10Mi"}),
            "[gpu-memory.limit]",
            "write the memory",
        ),
        (pod({}, annotations={"nvidia.com/container.z.gpu-memory.limit": "1Gi"}), "limit]", "does not have"),
        (pod({}, annotations={"gpu-memory": "9", "gpu-sm-cores": "9"}), "[gpu-sm-cores]", "gpu-share.io/compute"),
        (share("0.5", "0.3", mem="1073741824"), "[sharedgpu/gpu_limit]", "less than"),
        (share("0.333", "1.0", mem="1073741824"), "[sharedgpu/gpu_mem]", "33.3 %"),
        (share("1.0", "1.0"), "[sharedgpu/gpu_request]", "write nvidia.com/gpu: 1"),
        (pod({"nvshare.com/gpu": 1}), "[nvshare.com/gpu]", "all memory of a card"),
        (pod({}, annotations={"tensor-fusion.ai/vram-request": "1Gi"}), "[tensor-fusion.ai/vram-request]", "by hand"),
    ],
)
def test_what_cannot_be_converted_without_guessing_is_refused(given: Json, field: str, words: str) -> None:
    """The refusal names the field with its value, and what to do."""
    with pytest.raises(PolicyDenied) as caught:
        convert(given, Known())
    (problem,) = [each for each in caught.value.problems if each.field.endswith(field)]
    assert words in problem.message


def test_the_memory_of_several_containers_needs_a_name() -> None:
    given = pod({}, {}, labels={"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1"})
    given["spec"]["schedulerName"] = "kubeshare-scheduler"
    with pytest.raises(PolicyDenied, match="which container of a, b"):
        convert(given, Known(card=1000))


def test_a_part_of_more_than_the_card_is_refused() -> None:
    with pytest.raises(PolicyDenied, match=r"gpumem-percentage\]: 150 means 1500Mi, more than the card has"):
        convert(pod({f"{MEM}-percentage": 150}), Known(card=1000))


def test_a_limit_of_run_ai_above_the_request_is_refused() -> None:
    given = pod({}, annotations={"gpu-fraction": "0.5"})
    given["spec"]["containers"][0]["env"] = [{"name": "RUNAI_GPU_MEMORY_LIMIT", "value": "0.95"}]
    with pytest.raises(PolicyDenied, match=r"env\[RUNAI_GPU_MEMORY_LIMIT\]: 0.95 is not the 0.5"):
        convert(given, Known(card=1000))


def test_limit_and_request_that_differ_are_refused() -> None:
    given = pod({MEM: 100})
    given["spec"]["containers"][0]["resources"]["requests"] = {MEM: 200}
    with pytest.raises(PolicyDenied, match="differs from the request of 200"):
        convert(given, Known())


@pytest.mark.parametrize(
    "given",
    [
        pod({GPU: 1}),
        pod({GPU: 2}, schedulerName="hami-scheduler"),
        pod({MEM: 0}),
        pod({"nvidia.com/mig-1g.10gb": 1}),
        pod({"cpu": 1}, annotations={"gpu-share.io/memory": "1Gi"}),
        pod({GPU: 1}, labels={"sharedgpu/gpu_request": "0.5"}),
        pod({}, annotations={"runai-job-id": "7", "mps": "true"}, schedulerName="kai-scheduler"),
        {"metadata": None, "spec": {"containers": "none"}},
        {},
    ],
)
def test_pods_that_ask_for_no_share_are_left_alone(given: Json) -> None:
    assert convert(given, Known(card=1000)) is None


def test_replicas_of_whole_gpus_are_a_word_of_the_user() -> None:
    found = convert(pod({GPU: 1}), Known(card=1000, replicas={GPU: 3}))
    assert found is not None
    assert found.written == {"gpu-share.io/memory": "333Mi"}
    assert [each for each in found.lost if "its part of the card" in each]


def test_parts_of_a_card_fit_on_it_together() -> None:
    for parts in range(2, 17):
        found = convert(pod({GPU: 1}), Known(card=81559, replicas={GPU: parts}, mps=True))
        assert found is not None
        assert int(found.written["gpu-share.io/memory"].removesuffix("Mi")) * parts <= 81559
        assert int(found.written["gpu-share.io/compute"].removesuffix("%")) * parts <= 100


def test_each_dialect_has_fields() -> None:
    assert all(each.resources or each.annotations or each.labels for each in DIALECTS)


ROWS = [rows for each in DIALECTS for rows in (each.resources, each.annotations, each.labels, each.variables)]
KEYS = st.sampled_from([*(key.replace("*", "a") for rows in ROWS for key in rows), *UNKNOWN, "cpu", "a/~b"])
JUNK = (
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.lists(st.integers(), max_size=1) | st.text(max_size=3)
)
VALUES = st.integers(-1, 200) | st.sampled_from(["1", "0.5", "25", "1Gi", "a", 1]) | JUNK
FIELDS: st.SearchStrategy[Json] = st.just({}) | st.dictionaries(KEYS, VALUES, min_size=1, max_size=2)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["a", "b", None])},
        optional={
            "resources": JUNK | st.fixed_dictionaries({}, optional={"limits": FIELDS | JUNK, "requests": FIELDS}),
            "env": JUNK | st.lists(st.fixed_dictionaries({"name": KEYS, "value": VALUES}), max_size=1),
        },
    ),
    max_size=2,
)
SCHEDULERS = st.sampled_from([name for each in DIALECTS for name in each.schedulers])
SPEC = {"initContainers": CONTAINERS, "schedulerName": SCHEDULERS, "hostIPC": JUNK}
PODS = st.fixed_dictionaries({
    "metadata": JUNK | st.fixed_dictionaries({}, optional={"annotations": FIELDS | JUNK, "labels": FIELDS}),
    "spec": JUNK | st.fixed_dictionaries({"containers": CONTAINERS}, optional=SPEC),
})  # fmt: skip
EVERYTHING = Known(card=1000, units={"aliyun.com/gpu-mem": 1}, replicas={GPU: 4, VGPU: 2, "nvidia.com/gpu.shared": 3})


@given(PODS, st.sampled_from([Known(), EVERYTHING]))
@settings(deadline=None, max_examples=500)
def test_any_pod_is_refused_left_alone_or_converted_once(given: Json, known: Known) -> None:
    """Also what no API server takes. A converted pod asks no other system any more."""
    try:
        found = convert(given, known)
    except PolicyDenied:
        return
    if found is not None:
        assert convert(jsonpatch.apply_patch(given, found.patch), known) is None
