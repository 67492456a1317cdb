"""Hypothesis strategies: pods as tenants, tools and other webhooks write them, with fields nobody knows yet."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

UNKNOWN = st.sampled_from(
    [None, False, True, 0, 7, "", "a/b~c", [], {}, [None], [[1, {"k": None}]], {"l/m": {"~n": ["x"]}}, {"env": None}]
)
"""The value of a field newer than this product."""
PLAIN_VARIABLES = ["MODEL", "LEVEL", "CUDA_DEVICE_ORDER", "PATH"]
REPLACED_VARIABLES = [
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "NVIDIA_DRIVER_CAPABILITIES",
    "GPU_SHARE_MEMORY_MIB",
]
NAMES = ["model", "encoder", "metrics", "warm-up", "compile", "vad", "proxy"]


@dataclass(frozen=True)
class Generated:
    """A pod, and what its containers asked for: MiB and percent, and of how many GPUs where that was said."""

    pod: Json
    wanted: dict[str, tuple[int, int | None]]
    gpus: dict[str, int]
    same_gpu: bool


def fields_of_the_future() -> st.SearchStrategy[Json]:
    keys = st.sampled_from(["futureField", "x-unknown", "a~b/c"])
    return st.just({}) | st.builds(lambda key, value: {key: value}, keys, UNKNOWN)


def variables(names: list[str]) -> st.SearchStrategy[Json]:
    value = st.sampled_from(["", "0", "all", "void", "0=2G,1=4G", "100", "$(MODEL)"])
    literal = st.builds(lambda name, value: {"name": name, "value": value}, st.sampled_from(names), value)
    source = {"fieldRef": {"fieldPath": "metadata.name"}}
    other = st.builds(lambda name: {"name": name, "valueFrom": source}, st.sampled_from(names))
    bare = st.builds(lambda name: {"name": name}, st.sampled_from(names))
    return st.builds(lambda entry, extra: entry | extra, literal | other | bare, fields_of_the_future())


def environments() -> st.SearchStrategy[Json]:
    entries = st.lists(variables(PLAIN_VARIABLES + REPLACED_VARIABLES), max_size=6)
    return st.just({}) | st.just({"env": None}) | st.builds(lambda env: {"env": env}, entries)


def resources() -> st.SearchStrategy[Json]:
    claims = st.sampled_from([{}, {"claims": None}, {"claims": []}, {"claims": [{"name": "nic", "request": "r"}]}])
    limits = st.sampled_from([{}, {"limits": None}, {"limits": {"cpu": "1"}}, {"limits": {"nvidia.com/gpu": "0"}}])
    some = st.builds(
        lambda *parts: {"resources": parts[0] | parts[1] | parts[2]}, claims, limits, fields_of_the_future()
    )
    return st.just({}) | st.just({"resources": None}) | some


def containers(name: str, *, sidecar: bool) -> st.SearchStrategy[Json]:
    def build(*parts: Json) -> Json:
        whole: Json = {"name": name, "image": "example/x:1"} | ({"restartPolicy": "Always"} if sidecar else {})
        for part in parts:
            whole |= part
        return whole

    source = st.sampled_from([{}, {"envFrom": [{"configMapRef": {"name": "gpus"}}]}])
    return st.builds(build, environments(), resources(), source, fields_of_the_future())


@st.composite
def pods(draw: st.DrawFn) -> Generated:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    apps = draw(st.integers(1, len(names)))
    app_list = [draw(containers(name, sidecar=False)) for name in names[:apps]]
    init_list: list[Json] = []
    for name in names[apps:]:
        sidecar = draw(st.booleans())
        init_list.append(draw(containers(name, sidecar=sidecar)))
    sharing = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    same_gpu = draw(st.booleans())
    wanted = {each: (draw(st.integers(512, 4096)), draw(st.none() | st.integers(1, 20))) for each in sharing}
    annotations = {"example.com/note": "stays"} | ({} if same_gpu else {"gpu-share.io/same-gpu": "false"})
    for name, (memory, compute) in wanted.items():
        annotations[f"memory.gpu-share.io/{name}"] = f"{memory}Mi"
        if compute is not None:
            annotations[f"compute.gpu-share.io/{name}"] = f"{compute}%"
    gpus = {each: draw(st.integers(1, 3)) for each in sharing if draw(st.booleans())} if draw(st.booleans()) else {}
    annotations |= {f"gpus.gpu-share.io/{name}": str(count) for name, count in gpus.items()}
    labels: Json = draw(st.sampled_from(LABELS))
    spec: Json = {"containers": app_list} | draw(fields_of_the_future())
    listed: bool = draw(st.booleans())
    if init_list or listed:
        nothing: list[Json] | None = draw(st.sampled_from([None, []]))
        spec["initContainers"] = init_list or nothing
    for field in ("volumes", "tolerations", "resourceClaims", "securityContext"):
        if draw(st.booleans()):
            spec[field] = draw(st.sampled_from(SOME[field]))
    metadata: Json = {"name": "tts", "annotations": annotations} | labels | draw(fields_of_the_future())
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec} | draw(fields_of_the_future())
    return Generated(pod, wanted, gpus, same_gpu)


LABELS: list[Json] = [{}, {"labels": None}, {"labels": {}}, {"labels": {"app": "tts"}}]
SOME: dict[str, list[Any]] = {
    "volumes": [None, [], [{"name": "data", "emptyDir": {}}]],
    "tolerations": [None, [], [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]],
    "resourceClaims": [None, [], [{"name": "nic", "resourceClaimName": "nic"}]],
    "securityContext": [None, {}, {"runAsNonRoot": True}],
}
