"""Questions before an installation: what gpu-share needs of a cluster, and what it would find there.

No question is about ports of nodes: nothing of gpu-share opens one.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import contract
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare.patterns import Pattern
from gpushare.raw_objects import Object, mapping, text
from gpushare_cli.check import cluster
from gpushare_cli.check.connection import Ask
from gpushare_cli.check.result import CheckResult, failed, ok, warning
from gpushare_cli.check.workloads import release, slices
from gpushare_cli.words import clean, some

NODE_V1: Final = "/apis/node.k8s.io/v1"
RUNTIME_CLASS: Final = "nvidia"
GPU_LABELS: Final = ("nvidia.com/gpu.present", contract.NODE_LABEL)
"""Labels of nodes with GPUs: of NVIDIA's feature discovery, and of gpu-share."""
CONTAINERD: Final = Pattern(r"containerd://v?(\d{1,4})\.(\d{1,4})", 128)
KUBELET: Final = Pattern(r"v(\d{1,4})\.(\d{1,4})", 128)
CDI_BY_DEFAULT: Final = 2
"""Major version of containerd from which CDI is on by default."""
CDI_SINCE: Final = (1, 7)


def questions() -> list[tuple[str, Ask]]:
    """Return the questions, which need no installation."""
    return [
        *cluster.GATES,
        ("nodes with GPUs", gpu_nodes),
        ("kubelets", kubelets),
        ("container runtimes (CDI)", runtimes),
        (f"RuntimeClass {RUNTIME_CLASS}", runtime_class),
        ("other owners of GPUs", owners),
    ]


def gpu_nodes(api: KubeClient) -> CheckResult:
    """Count the nodes that are known to have GPUs."""
    found = len(list(_nodes(api)))
    hint = f"gpu-share works on nodes that you label: kubectl label node NAME {contract.NODE_LABEL}=true"
    return ok(str(found)) if found else warning("no node reports a GPU", hint)


def kubelets(api: KubeClient) -> CheckResult:
    """Name the nodes with GPUs whose kubelet is too old."""
    found, least = [(name, text(info, "kubeletVersion")) for name, info in _info(api)], cluster.OLDEST
    old = [f"{name} ({clean(each)})" for name, each in found if (release(each, KUBELET) or least) < least]
    oldest = ".".join(map(str, cluster.OLDEST))
    return failed(f"older than {oldest}: {some(old)}", f"upgrade them to {oldest} or newer") if old else ok()


def runtimes(api: KubeClient) -> CheckResult:
    """Name the nodes with GPUs whose container runtime has no CDI, or has it off by default."""
    without, off = list[str](), list[str]()
    for name, info in _info(api):
        number = release(version := text(info, "containerRuntimeVersion"), CONTAINERD)
        if number is not None and number[0] < CDI_BY_DEFAULT:
            (without if number < CDI_SINCE else off).append(f"{name} ({clean(version)})")
    if without:
        return failed(f"no CDI: {some(without)}", "upgrade containerd to 2.0 or newer")
    if off:
        return warning(
            f"CDI is off by default before containerd 2.0: {some(off)}",
            "set enable_cdi = true for the CRI plugin in containerd's config.toml, and restart containerd",
        )
    return ok()


def runtime_class(api: KubeClient) -> CheckResult:
    """Find out whether the RuntimeClass of NVIDIA's container toolkit is there; its name is a chart value then."""
    names = [text(mapping(each, "metadata"), "name") for each in api.list(path(NODE_V1, "runtimeclasses"))[0]]
    if RUNTIME_CLASS in names:
        return ok(
            f"exists: set the chart value runtimeClassName={RUNTIME_CLASS}, unless it is the nodes' default runtime"
        )
    return ok(
        "does not exist: make NVIDIA's runtime the nodes' default, and leave the chart value runtimeClassName empty"
    )


def owners(api: KubeClient) -> CheckResult:
    """Name who hands out GPUs already: device plugins, by the nodes' resources, and other DRA drivers."""
    found = [f"{name}: a device plugin ({key})" for name, key in _plugins(api)]
    classes = contract.OTHER_GPU_CLASSES
    for item in slices(api, ours=False):
        spec = mapping(item, "spec")
        if text(spec, "driver") in classes:
            found.append(f"{text(spec, 'nodeName')}: the DRA driver {text(spec, 'driver')}")
    hint = "remove that plugin or driver from the nodes that gpu-share shares: docs/operators/platforms.md"
    return warning(some(list(dict.fromkeys(found))), hint) if found else ok("none")


def _plugins(api: KubeClient) -> Iterator[tuple[str, str]]:
    for node in _nodes(api):
        allocatable = mapping(mapping(node, "status"), "allocatable")
        for key in allocatable:
            if key.startswith("nvidia.com/") and allocatable[key] != "0":
                yield text(mapping(node, "metadata"), "name"), key


def _nodes(api: KubeClient) -> Iterator[Object]:
    for node in api.list(path(CORE_V1, "nodes"))[0]:
        labels, status = mapping(mapping(node, "metadata"), "labels"), mapping(node, "status")
        if any(labels.get(each) == "true" for each in GPU_LABELS) or contract.WHOLE_GPU in mapping(status, "capacity"):
            yield node


def _info(api: KubeClient) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for node in _nodes(api):
        yield text(mapping(node, "metadata"), "name"), mapping(mapping(node, "status"), "nodeInfo")
