"""Warn about what belongs to other GPU sharing systems and schedulers, and deny claims of other GPU drivers. Pure.

A pod that comes from HAMi, KAI or another such system asks by resources and annotations that no part of gpu-share
reads. With them it stays Pending, or it has a second way to a GPU.
"""

from collections.abc import Container as Collection
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from gpushare import contract
from gpushare.annotation_table import PREFIX_OF
from gpushare.fields import objects
from gpushare.findings import Findings
from gpushare.quantity import quoted
from webhook.mutation.podview import Container, PodView, claims_used, names_claim
from webhook.mutation.settings import Settings

RESOURCES: Final = {
    # HAMi
    "nvidia.com/gpumem": contract.MEMORY,
    "nvidia.com/gpumem-percentage": contract.MEMORY,
    "nvidia.com/gpucores": contract.COMPUTE,
    "nvidia.com/priority": "",
    # Alibaba Cloud's cGPU and its gpushare scheduler extender
    "aliyun.com/gpu-mem": contract.MEMORY,
    "aliyun.com/gpu-core.percentage": contract.COMPUTE,
    "aliyun.com/gpu-count": contract.GPUS,
    # Volcano
    "volcano.sh/vgpu-memory": contract.MEMORY,
    "volcano.sh/vgpu-memory-percentage": contract.MEMORY,
    "volcano.sh/vgpu-cores": contract.COMPUTE,
    "volcano.sh/vgpu-number": contract.GPUS,
    "volcano.sh/gpu-memory": contract.MEMORY,
    "volcano.sh/gpu-number": contract.GPUS,
    # Tencent's GPUManager
    "tencent.com/vcuda-memory": contract.MEMORY,
    "tencent.com/vcuda-core": contract.COMPUTE,
    # Koordinator
    "koordinator.sh/gpu-memory": contract.MEMORY,
    "koordinator.sh/gpu-memory-ratio": contract.MEMORY,
    "koordinator.sh/gpu-core": contract.COMPUTE,
    # AWS's virtual GPU device plugin
    "k8s.amazonaws.com/vgpu": contract.MEMORY,
}
"""Extended resource of another system, and the annotation that asks for the same here; empty for none."""
ANNOTATIONS: Final = {
    # KAI Scheduler and Run:ai
    "gpu-memory": contract.MEMORY,
    "gpu-fraction": contract.MEMORY,
    "gpu-fraction-num-devices": contract.GPUS,
    # HAMi
    "nvidia.com/use-gputype": contract.GPU_MODEL,
    # Tencent's GPUManager
    "tencent.com/vcuda-core-limit": contract.COMPUTE,
    # KubeShare
    "sharedgpu/gpu_mem": contract.MEMORY,
    "sharedgpu/gpu_limit": contract.COMPUTE,
    "kubeshare/gpu_mem": contract.MEMORY,
    "kubeshare/gpu_limit": contract.COMPUTE,
}
"""Pod annotation of another system, and the annotation that asks for the same here."""
NAME_SHOWN: Final = 19
"""So many characters of a container's name fit into a warning twice."""
_KEY_SHOWN: Final = 80
"""Of the name of a claim in a field, in characters."""


def warnings(findings: Findings, pod: PodView, main: str, settings: Settings) -> None:
    """Warn of each resource and annotation of another system, and for another scheduler.

    Args:
        findings: get the warnings.
        pod: what asks for a share.
        main: name of its main container.
        settings: of the cluster.
    """
    for container in pod.containers:
        for key in _known(RESOURCES, {*container.limits, *container.requests}):
            instead = _instead(RESOURCES[key], container, main)
            findings.warn(f"remove {key} from {container.name:.{NAME_SHOWN}}: {instead}")
    for key in _known(ANNOTATIONS, pod.annotations.keys()):
        findings.warn(f"remove the annotation {key}: {ANNOTATIONS[key]} replaces it")
    scheduler = pod.spec.get("schedulerName")
    if scheduler and scheduler not in settings.scheduler_names:
        known = ", ".join(settings.scheduler_names)
        findings.warn(f"schedulerName {str(scheduler)!a:.32}: only the stock kube-scheduler places shares; use {known}")


def check_claims(findings: Findings, pod: PodView, sharing: Collection[str], other_claims: Collection[str]) -> None:
    """Find claims of other GPU drivers that sharing containers use.

    Args:
        findings: get the problems.
        pod: what asks for a share.
        sharing: names of the containers that ask.
        other_claims: claims (``claim/<name>``) and templates (``template/<name>``) that ask for GPUs of other drivers.
    """
    entries = objects(pod.spec.get("resourceClaims"), "spec.resourceClaims")
    others = {str(entry.get("name")) for entry in entries if names_claim(entry, other_claims)}
    for container in pod.containers if others else ():
        for name in sorted(others & claims_used(container)) if container.name in sharing else ():
            message = (
                f"{quoted(name)} requests a GPU of another driver in a container with a share; remove the claim, or "
                "the gpu-share annotations"
            )
            field = f"{container.field}.resources.claims[{ascii(name[:_KEY_SHOWN])[1:-1]}]"
            findings.problem(field, message)


def _known(table: Mapping[str, str], keys: AbstractSet[str]) -> list[str]:
    """List the keys of other systems, in the order of their table."""
    return [key for key in table if key in keys] if table.keys() & keys else []


def _instead(annotation: str, container: Container, main: str) -> str:
    """Name the annotation that replaces a resource of a container."""
    if not annotation:
        return "gpu-share has nothing like it"
    prefix = PREFIX_OF.get(annotation)
    if container.name == main or prefix is None:
        return f"{annotation} replaces it"
    name = container.name if len(container.name) <= NAME_SHOWN else "<container>"
    return f"{prefix}{name} replaces it"
