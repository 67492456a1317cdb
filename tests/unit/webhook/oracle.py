"""What a sharing pod must look like in the end, worked out again without any code of the product's rewriting.

Reads a pod as the kubelet does: the last variable of a name wins, a variable from elsewhere can be anything.
"""

from collections.abc import Iterator, Mapping
from typing import Any

Pod = Mapping[str, Any]
Wanted = Mapping[str, tuple[int, int | None]]
"""Container to (MiB, percent or None)."""
Counts = Mapping[str, int]
"""Container to number of GPUs, where that was said."""
ONE: Counts = {}
ANYTHING = object()
OURS = "gpu-share"


def containers(pod: Pod) -> Iterator[tuple[str, dict[str, Any]]]:
    for section in ("initContainers", "containers", "ephemeralContainers"):
        for each in pod["spec"].get(section) or []:
            yield section, each


def environment(container: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {}
    for entry in container.get("env") or []:
        found[entry["name"]] = ANYTHING if entry.get("valueFrom") else entry.get("value") or ""
    return found


def problems(pod: Pod, wanted: Wanted, gpus: Counts = ONE) -> list[str]:
    """Every way around the limits that stands open; empty is right."""
    return [
        f"{container['name']}: {problem}"
        for section, container in containers(pod)
        for problem in _problems(
            container,
            None if section == "ephemeralContainers" else wanted.get(container["name"]),
            gpus.get(container["name"], 1),
        )
    ]


def _problems(container: Mapping[str, Any], share: tuple[int, int | None] | None, gpus: int) -> Iterator[str]:
    seen = environment(container)
    if seen.get("CUDA_VISIBLE_DEVICES", ANYTHING) != "" or seen.get("NVIDIA_VISIBLE_DEVICES") != "void":
        yield "sees a GPU"
    claims = [each for each in (container.get("resources") or {}).get("claims") or [] if each["name"] == OURS]
    if share is None:
        if claims and container["name"] != OURS:
            yield "uses the claim"
        return
    memory, compute = share
    if len(claims) != 1 or not claims[0].get("request"):
        yield "uses the claim wrongly"
    limits = {1: f"0={memory}M", 2: f"0={memory}M,1={memory}M", 3: f"0={memory}M,1={memory}M,2={memory}M"}
    if seen.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") != limits[gpus] or seen.get("GPU_SHARE_MEMORY_MIB") != str(memory):
        yield "has another memory limit"
    if seen.get("GPU_SHARE_GPUS") != (str(gpus) if gpus > 1 else None):
        yield "has another number of GPUs"
    if compute is not None and seen.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") != str(compute):
        yield "has another compute limit"
    if not str(seen.get("CUDA_MPS_PIPE_DIRECTORY")).startswith("/run/gpu-share/"):
        yield "talks to another daemon"


def peak_per_request(pod: Pod, wanted: Wanted, gpus: Counts, *, together: bool) -> dict[str, tuple[int, int]]:
    """Live through the pod's start: the most (MiB, percent) held at once through each request.

    Where those of one GPU have to be ``together``, through all of them, under ``*``.
    """
    request_of = {
        container["name"]: next(
            claim["request"]
            for claim in container["resources"]["claims"]
            if claim["name"] == OURS
        )
        for _, container in containers(pod)
        if container["name"] in wanted
    }  # fmt: skip
    running: list[str] = []
    moments: list[list[str]] = []
    for container in pod["spec"].get("initContainers") or []:
        moments.append([*running, container["name"]])
        if container.get("restartPolicy") == "Always":
            running.append(container["name"])
    moments.append(running + [container["name"] for container in pod["spec"]["containers"]])
    peak: dict[str, tuple[int, int]] = {}
    for moment in moments:
        held: dict[str, tuple[int, int]] = {}
        for name in moment:
            if name in wanted:
                key = "*" if together and gpus.get(name, 1) == 1 else request_of[name]
                memory, compute = held.get(key, (0, 0))
                held[key] = (memory + wanted[name][0], compute + (wanted[name][1] or 0))
        for key, (memory, compute) in held.items():
            most = peak.get(key, (0, 0))
            peak[key] = (max(most[0], memory), max(most[1], compute))
    return peak
