"""Questions about feature gates of Kubernetes, asked by trying: without its gate a field is dropped in silence.

A server dry-run says it for certain. Who may not ask for one is answered from what our enforcers have published.
"""

from http import HTTPStatus
from typing import Final

from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from gpushare.raw_objects import Object, mapping
from gpushare_cli.check.result import CheckResult, failed, ok
from gpushare_cli.check.workloads import slices

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
