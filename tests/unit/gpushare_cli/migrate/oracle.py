"""What a pod asks of another GPU system, and what a migrated pod asks of gpu-share, read without the product's code.

Sources are those that the product's table names, read again. Amounts are MiB, compute percent of one GPU.
"""

import math
import re
from fractions import Fraction
from typing import Any

Json = dict[str, Any]
Asked = dict[str, tuple[int, int | None, int]]
"""Of each container: MiB of each GPU, percent of each GPU's compute, number of GPUs."""
CARD = 81920
REPLICAS = 10
MIB_UNITS = {141}
"""Ids of pods whose cluster counts aliyun.com/gpu-mem in MiB: the number is no GiB of any card."""


class Whole(Exception):
    """Whole GPUs, or a MIG instance: no share."""


class Invalid(Exception):
    """Asks for a share in a way that its own system refuses."""


def foreign(pod: Json, number: int) -> Asked:
    """Return what a pod asks; empty for none."""
    spec, meta = pod["spec"], pod["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    each = {c["name"]: limits(c) for key in ("initContainers", "containers") for c in spec.get(key) or []}
    keys = {key for got in each.values() for key in got}
    if any(key.startswith(("nvidia.com/gpumem", "nvidia.com/gpucores")) for key in keys):
        if notes.get("nvidia.com/vgpu-mode") == "mig":
            raise Whole
        names = ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
        return cards(each, *names)
    for vgpu in ("volcano.sh/vgpu-", "nvidia.com/vgpu-"):
        if any(key.startswith(vgpu) for key in keys):
            return cards(each, *(vgpu + part for part in ("number", "memory", "memory-percentage", "cores")))
    if "gpu-fraction" in notes or "gpu-memory" in notes:
        name = notes.get("gpu-fraction-container-name") or spec["containers"][0]["name"]
        part = math.floor(Fraction(str(notes.get("gpu-fraction", 0))) * CARD)
        return {name: (part or int(notes["gpu-memory"]), None, int(notes.get("gpu-fraction-num-devices", 1)))}
    if spec.get("schedulerName") == "kubeshare-scheduler" and "sharedgpu/gpu_request" in labels:
        return kubeshare(spec, labels)
    return by_one_number(each, number)


def by_one_number(each: dict[str, Json], number: int) -> Asked:
    """Read Aliyun's memory and replicas of AWS."""
    found: Asked = {}
    for name, got in each.items():
        if "aliyun.com/gpu-mem" in got:
            found[name] = (int(got["aliyun.com/gpu-mem"]) * (1 if number in MIB_UNITS else 1024), None, 1)
        if int(got.get("k8s.amazonaws.com/vgpu", 0)) == 1:
            found[name] = (CARD // REPLICAS, 100 // REPLICAS, 1)
    return found


def cards(each: dict[str, Json], count: str, memory: str, percent: str, cores: str) -> Asked:
    """Read HAMi's way of asking, which Volcano and vgpu-manager have in common."""
    found: Asked = {}
    for name, got in each.items():
        if not got.keys() & {count, memory, percent, cores}:
            continue
        number, compute = int(got.get(count, 1)), int(got[cores]) if cores in got else None
        mib = int(got[memory]) if memory in got else int(got.get(percent, 100)) * CARD // 100
        if memory not in got and int(got.get(percent, 100)) == 100 and compute in (None, 100):
            raise Whole
        found[name] = (mib, compute, number)
    return found


def kubeshare(spec: Json, labels: Json) -> Asked:
    part, most = Fraction(labels["sharedgpu/gpu_request"]), Fraction(labels["sharedgpu/gpu_limit"])
    if most < part:
        raise Invalid
    if part >= 1:
        raise Whole
    mib = (
        math.ceil(Fraction(labels["sharedgpu/gpu_mem"]) / 2**20) if "sharedgpu/gpu_mem" in labels else part * CARD // 1
    )
    return {spec["containers"][0]["name"]: (int(mib), int(part * 100), 1)}


def ours(pod: Json) -> Asked:
    """Return what a migrated pod asks."""
    notes = pod["metadata"].get("annotations") or {}
    names = [c["name"] for key in ("initContainers", "containers") for c in pod["spec"].get(key) or []]
    found: Asked = {}
    for name in names:
        key = "gpu-share.io/{}" if names == [name] else "{}.gpu-share.io/" + name
        memory, compute, gpus = (notes.get(key.format(word)) for word in ("memory", "compute", "gpus"))
        if memory:
            size = re.fullmatch(r"(\d+)(Mi|Gi)", memory)
            assert size is not None
            mib = int(size[1]) * (1024 if size[2] == "Gi" else 1)
            found[name] = (mib, int(compute.removesuffix("%")) if compute else None, int(gpus or 1))
    return found


def limits(container: Json) -> Json:
    resources = container.get("resources") or {}
    return {**(resources.get("requests") or {}), **(resources.get("limits") or {})}


def rest(pod: Json) -> Json:
    """Return a pod without what a migration may touch; what it touches besides makes a difference."""
    sharing = ("nvidia.com/gpu", "nvidia.com/vgpu-", "volcano.sh/vgpu-", "aliyun.com/gpu-mem")
    resources = (*sharing, "k8s.amazonaws.com/vgpu")
    notes: tuple[str, ...] = (
        "gpu-fraction",
        "gpu-memory",
        "runai",
        "pod-group-name",
        "received-resource-type",
        "nvidia.com/device-top",
    )
    notes += ("gpu-share.io/", "memory.gpu-share.io/", "compute.gpu-share.io/", "gpus.gpu-share.io/")
    meta = {**pod["metadata"], "annotations": without(pod["metadata"].get("annotations"), notes)}
    spec = {key: value for key, value in pod["spec"].items() if key not in ("schedulerName", "hostIPC")}
    for section in ("initContainers", "containers"):
        for index, each in enumerate(spec.get(section) or []):
            left = dict(each.get("resources") or {})
            left |= {part: without(left.get(part), resources) for part in ("limits", "requests")}
            spec[section] = [*spec[section]]
            spec[section][index] = {**each, "resources": {part: got for part, got in left.items() if got}}
    return {**pod, "metadata": meta, "spec": spec}


def without(values: Json | None, beginnings: tuple[str, ...]) -> Json:
    return {key: value for key, value in (values or {}).items() if not key.startswith(beginnings)}
