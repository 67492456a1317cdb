"""Questions before an installation: what gpu-share needs of a cluster, and what it would find there.

No question is about ports of nodes: nothing of gpu-share opens one. Feature gates are asked for by trying: without its
gate a field is dropped in silence, and a server dry-run says that for certain. Who may not ask for one is answered from
what our enforcers have published.
"""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare.patterns import Pattern
from gpushare.raw_objects import Object, mapping, text
from gpushare_cli.check.connection import OLDEST, Ask, release
from gpushare_cli.check.result import CheckResult, failed, ok, warning
from gpushare_cli.check.workloads import slices
from gpushare_cli.words import clean, some

PROBE: Final = "gpu-share-check-"
PROBE_DRIVER: Final = f"check.{contract.GROUP}"
"""The webhook that the API server calls for a dry run in the release's own namespace. As a DeviceClass it does not
exist: policies of gpu-share refuse its own classes in most namespaces."""
CONSUMABLE: Final = "DRAConsumableCapacity"
TAINTS: Final = "DRADeviceTaints"
PARTS: Final = "kube-apiserver, kube-scheduler, kube-controller-manager and all kubelets"


def consumable_capacity(api: KubeClient) -> CheckResult:
    """Whether parts of a GPU can be asked for, and a GPU be given to several."""
    multiple = "allowMultipleAllocations"
    try:
        asked, device = _asked(api), _device(api)
        policy = mapping(mapping(mapping(device, "capacity"), contract.CAPACITY_MEMORY), "requestPolicy")
        kept = {"a claim's capacity": asked.get("capacity"), multiple: device.get(multiple), "requestPolicy": policy}
    except ClusterError as error:  # then what became of our enforcers' devices; all but MIG instances are for several
        known = slices(api) if error.status == HTTPStatus.FORBIDDEN else []
        devices = [device for item in known for device in item["spec"].get("devices") or []]
        if not devices:
            raise
        kept = {multiple: any(each.get(multiple) for each in devices)}
    return _result(CONSUMABLE, kept, "every share takes a whole GPU")


def device_taints(api: KubeClient) -> CheckResult:
    """Whether an unhealthy GPU can be kept from new pods."""
    return _result(TAINTS, {"taints": _device(api).get("taints")}, "the scheduler allocates unhealthy GPUs to new pods")


def _result(gate: str, kept: Object, so: str) -> CheckResult:
    dropped = [name for name, value in kept.items() if not value]
    if not dropped:
        return ok()
    return failed(
        f"the API server does not store these fields: {', '.join(dropped)}; therefore {so}",
        f"enable the feature gate {gate} in {PARTS}",
    )


def _asked(api: KubeClient) -> Object:
    """A request for capacity, as the API server would store it."""
    wanted = {"requests": {contract.CAPACITY_MEMORY: "1Gi"}}
    request = {"name": "probe", "exactly": {"deviceClassName": PROBE_DRIVER, "capacity": wanted}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    made = _try(api, "ResourceClaimTemplate", "resourceclaimtemplates", spec, "default")
    exactly: Object = made["spec"]["devices"]["requests"][0]["exactly"]
    return exactly


def _device(api: KubeClient) -> Object:
    """A GPU that is shared and unhealthy, as the API server would store it."""
    memory = {"value": "1Gi", "requestPolicy": {"default": "1Gi"}}
    device = {
        "name": "probe",
        "allowMultipleAllocations": True,
        "capacity": {contract.CAPACITY_MEMORY: memory},
        "taints": [{"key": contract.UNHEALTHY, "effect": "NoSchedule"}],
    }
    pool = {"name": "probe", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": PROBE_DRIVER, "pool": pool, "allNodes": True, "devices": [device]}
    stored: Object = _try(api, "ResourceSlice", "resourceslices", spec)["devices"][0]
    return stored


def _try(api: KubeClient, kind: str, plural: str, spec: Object, namespace: str = "") -> Object:
    """Dry-run the creation of an object; returns its ``spec`` as it would be stored."""
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"generateName": PROBE}, "spec": spec}
    made: Object = api.create(path(RESOURCE_V1, plural, namespace=namespace), body, dryRun="All")["spec"]
    return made


GATES: Final[tuple[tuple[str, Ask], ...]] = (
    (f"consumable capacity ({CONSUMABLE})", consumable_capacity),
    (f"device taints ({TAINTS})", device_taints),
)


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
        *GATES,
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
    found, least = [(name, text(info, "kubeletVersion")) for name, info in _info(api)], OLDEST
    old = [f"{name} ({clean(each)})" for name, each in found if (release(each, KUBELET) or least) < least]
    oldest = ".".join(map(str, OLDEST))
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
