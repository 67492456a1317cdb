"""``gpu-share explain POD``: reads what the cluster has on record about a pod, with the rights of the user."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypeVar

from gpushare.errors import ClusterError, GpuShareError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare.pod_claims import claim_names
from gpushare_cli.api_errors import HIDDEN
from gpushare_cli.explain.cluster_state import PodRecord

Object = dict[str, Any]
T = TypeVar("T")
READ: Final = (
    "involvedObject", "reason", "message", "action", "type", "reportingComponent", "eventTime", "lastTimestamp",
)  # fmt: skip
"""What is read of an Event."""


def recorded(api: KubeClient, namespace: str, name: str) -> PodRecord:
    """Read a pod, its claims and its Events: what the ``view`` role lets a tenant read, and nothing else.

    Raises:
        GpuShareError: there is no such pod, or the user may not read it.
        ClusterError: the API server cannot be asked.
    """
    pod = pod_of(api, namespace, name)
    claims = _allowed(lambda: claims_of(api, namespace, claim_names(pod)))
    # Events of the old group: those of events.k8s.io are the same objects, but no role of Kubernetes' own shows them.
    about = f"involvedObject.uid={pod['metadata']['uid']}"
    where = path(CORE_V1, "events", namespace=namespace)
    events = _allowed(lambda: [_kept(each) for each in api.listing(where, fieldSelector=about)])
    return PodRecord(pod=pod, claims=claims, events=events)


def _kept(event: Object) -> Object:
    """Drop of an Event what nothing reads: whoever may write Events may write large ones."""
    return {key: event[key] for key in READ if key in event}


def pod_of(api: KubeClient, namespace: str, name: str) -> Object:
    """Read a pod.

    Raises:
        GpuShareError: there is none of that name, or the user may not read it.
        ClusterError: the API server cannot be asked.
    """
    try:
        return api.get(path(CORE_V1, "pods", name, namespace))
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise GpuShareError(f"there is no pod {name} in namespace {namespace}; give NAMESPACE/POD or -n") from None
        if error.status in HIDDEN:
            message = f"you may not read pod {name} in namespace {namespace}; ask for the ClusterRole view there"
            raise GpuShareError(message) from None
        raise


def claims_of(api: KubeClient, namespace: str, names: list[str]) -> dict[str, Object]:
    """Read those claims that are there, by name.

    Raises:
        ClusterError: the user may not, or the API server cannot be asked.
    """
    found = {}
    for name in names:
        try:
            found[name] = api.get(path(RESOURCE_V1, "resourceclaims", name, namespace))
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    return found


def _allowed(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except ClusterError as error:
        if error.status in HIDDEN:
            return None
        raise
