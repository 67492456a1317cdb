"""Questions about feature gates of Kubernetes, asked by trying: without its gate a field is dropped in silence.

A server dry-run says it for certain. Who may not ask for one is answered from what our enforcers have published.
"""

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from gpushare_cli.check.result import CheckResult, failed, ok
from gpushare_cli.check.workloads import slices

PROBE: Final = "gpu-share-check-"
PROBE_DRIVER: Final = f"check.{contract.GROUP}"
"""The webhook that the API server calls for a dry run in the release's own namespace. As a DeviceClass it does not
exist: policies of gpu-share refuse its own classes in most namespaces."""
CONSUMABLE: Final = "DRAConsumableCapacity"
TAINTS: Final = "DRADeviceTaints"
PARTS: Final = "kube-apiserver, kube-scheduler, kube-controller-manager and all kubelets"
Json = Mapping[str, Any]


def consumable_capacity(api: KubeClient) -> CheckResult:
    """Whether parts of a GPU can be asked for, and a GPU be given to several."""
    kept: Json
    try:
        kept = {"a claim's capacity": _asked(api).get("capacity"), **_shared(_device(api))}
    except ClusterError as error:
        kept = _unless_forbidden(error, lambda: _published(api))
    return _result(CONSUMABLE, kept, "every share takes a whole GPU")


def device_taints(api: KubeClient) -> CheckResult:
    """Whether an unhealthy GPU can be kept from new pods."""
    return _result(TAINTS, {"taints": _device(api).get("taints")}, "the scheduler allocates unhealthy GPUs to new pods")


def _result(gate: str, kept: Json, so: str) -> CheckResult:
    dropped = [name for name, value in kept.items() if not value]
    if not dropped:
        return ok()
    return failed(
        f"the API server does not store these fields: {', '.join(dropped)}; therefore {so}",
        f"enable the feature gate {gate} in {PARTS}",
    )


def _unless_forbidden(error: ClusterError, instead: Callable[[], Json | None]) -> Json:
    """Return what is known without that right; raises the refusal where that is nothing."""
    known = instead() if error.status == HTTPStatus.FORBIDDEN else None
    if known is None:
        raise error
    return known


def _asked(api: KubeClient) -> Json:
    """A request for capacity, as the API server would store it."""
    wanted = {"requests": {contract.CAPACITY_MEMORY: "1Gi"}}
    request = {"name": "probe", "exactly": {"deviceClassName": PROBE_DRIVER, "capacity": wanted}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    made = _try(api, "ResourceClaimTemplate", "resourceclaimtemplates", spec, "default")
    exactly: Json = made["spec"]["devices"]["requests"][0]["exactly"]
    return exactly


def _device(api: KubeClient) -> Json:
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
    stored: Json = _try(api, "ResourceSlice", "resourceslices", spec)["devices"][0]
    return stored


def _shared(device: Json) -> Json:
    policy = ((device.get("capacity") or {}).get(contract.CAPACITY_MEMORY) or {}).get("requestPolicy")
    return {"allowMultipleAllocations": device.get("allowMultipleAllocations"), "requestPolicy": policy}


def _try(api: KubeClient, kind: str, plural: str, spec: Json, namespace: str = "") -> Json:
    """Dry-run the creation of an object; returns its ``spec`` as it would be stored."""
    body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"generateName": PROBE}, "spec": spec}
    made: Json = api.create(path(RESOURCE_V1, plural, namespace=namespace), body, dryRun="All")["spec"]
    return made


def _published(api: KubeClient) -> Json | None:
    """What became of our enforcers' devices; ``None`` while there are none. All but MIG instances are for several."""
    devices = [device for item in slices(api) for device in item["spec"].get("devices") or []]
    return {"allowMultipleAllocations": _any(devices)} if devices else None


def _any(devices: Iterable[Json]) -> bool:
    return any(device.get("allowMultipleAllocations") for device in devices)
