"""``gpu-share explain KIND/NAME``: reads a workload and its pods, with the rights of the user."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpushare import defaults
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, Object, path
from gpushare.raw_objects import mapping, objects, text
from gpushare_cli.explain.kinds import CRON_JOB, DEPLOYMENT, JOB, REPLICA_SET, Kind
from gpushare_cli.explain.pod import Reader, named
from gpushare_cli.explain.pod_record import PodRecord
from gpushare_cli.inject.workloads import PodPlace, pods
from gpushare_cli.lookups import optional

MAX_PODS: Final = 20
"""So many pods of a workload are read whole."""
MAX_JOBS: Final = 20
"""So many jobs of a CronJob, the newest, are looked through for pods."""
JOB_UID: Final = "batch.kubernetes.io/controller-uid"
"""The label by which a Job finds its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """A workload, its first pods (``found`` is how many there are), and the Events about pods that were refused.

    ``place`` is its pod template, ``owned`` are the ReplicaSets or Jobs it made. ``claims`` are the claims and claim
    templates that the pod template names. ``release`` is gpu-share's namespace. ``None``: the user may not read it.
    """

    kind: Kind
    workload: Object
    place: PodPlace | None
    namespace: Object | None
    pods: Sequence[PodRecord]
    found: int
    refused: Sequence[Object] | None
    owned: Sequence[Object] = ()
    claims: Sequence[Object] = ()
    release: str = defaults.SYSTEM_NAMESPACE


def recorded(api: KubeClient, kind: Kind, namespace: str, name: str) -> WorkloadRecord:
    """Read a workload with what belongs to it: what the ``view`` role lets a tenant read.

    Raises:
        GpuShareError: there is no such workload, or the user may not read it.
        ClusterError: the API server cannot be asked.
    """
    workload = named(api, kind, name, namespace)
    reader = Reader(api, namespace)
    uid = text(mapping(workload, "metadata"), "uid")
    owned = list(_owned(api, kind, workload, namespace))
    owners = {uid, *(text(mapping(each, "metadata"), "uid") for each in owned)}
    first, found = _pods(api, namespace, _selector(kind, workload, owned), owners)
    events = optional(lambda: reader.events("reason=FailedCreate"))
    place = next(iter(pods(workload)), None)
    return WorkloadRecord(
        kind=kind, workload=workload, place=place, namespace=reader.namespace,
        pods=[reader.record(each) for each in first], found=found,
        refused=None if events is None else [each for each in events if _about(each) in owners], owned=owned,
        claims=list(_claims(api, namespace, place)), release=reader.release,
    )  # fmt: skip


def _owned(api: KubeClient, kind: Kind, workload: Object, namespace: str) -> Iterator[Object]:
    """Yield what the workload made that makes its pods: ReplicaSets of a Deployment, Jobs of a CronJob."""
    below = {DEPLOYMENT: REPLICA_SET, CRON_JOB: JOB}.get(kind)
    if below is None:
        return
    labels = labels_of(mapping(workload, "spec").get("selector")) if kind is DEPLOYMENT else ""
    query = {"labelSelector": labels} if labels else {}
    uid = text(mapping(workload, "metadata"), "uid")
    for each in api.listing(path(below.base, below.plural, namespace=namespace), **query):
        if _is_owned(each, {uid}):
            yield {key: each.get(key) for key in ("metadata", "status")}


def _pods(api: KubeClient, namespace: str, selector: str, owners: set[str]) -> tuple[list[Object], int]:
    """Read the first pods of these owners, and count them all; each of the others is dropped as it comes."""
    first, found = list[Object](), 0
    if selector:
        for each in api.listing(path(CORE_V1, "pods", namespace=namespace), labelSelector=selector):
            if _is_owned(each, owners):
                found += 1
                first += [each] if len(first) < MAX_PODS else []
    return first, found


def _selector(kind: Kind, workload: Object, owned: Sequence[Object]) -> str:
    if kind is CRON_JOB:
        newest = sorted(owned, key=created)[-MAX_JOBS:]
        uids = ",".join(text(mapping(each, "metadata"), "uid") for each in newest)
        return f"{JOB_UID} in ({uids})" if uids else ""
    return labels_of(mapping(workload, "spec").get("selector"))


def labels_of(selector: object) -> str:
    """Write a selector as a query; empty for none. That of a ReplicationController is its labels themselves."""
    if not isinstance(selector, dict):
        return ""
    plain = "matchLabels" not in selector and "matchExpressions" not in selector
    labels = selector if plain else mapping(selector, "matchLabels")
    found = [f"{key}={value}" for key, value in labels.items()]
    for each in objects(selector, "matchExpressions"):
        key, operator = text(each, "key"), text(each, "operator")
        values = ",".join(str(value) for value in each.get("values") or ())
        forms = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key,
                 "DoesNotExist": f"!{key}"}  # fmt: skip
        found += [forms[operator]] if operator in forms else []
    return ",".join(found)


def _is_owned(item: Object, owners: set[str]) -> bool:
    references = objects(mapping(item, "metadata"), "ownerReferences")
    return any(each.get("uid") in owners for each in references if each.get("controller"))


def _claims(api: KubeClient, namespace: str, place: PodPlace | None) -> Iterator[Object]:
    """Read the claims and claim templates that a pod template names: with claims of its own a pod gets no other."""
    for entry in objects(mapping({} if place is None else place.pod, "spec"), "resourceClaims"):
        for key, plural in KEYS.items():
            if name := text(entry, key):
                found = optional(partial(api.get, path(RESOURCE_V1, plural, name, namespace)))
                yield from filter(None, [found])


KEYS: Final = {"resourceClaimName": "resourceclaims", "resourceClaimTemplateName": "resourceclaimtemplates"}


def _about(event: Object) -> str:
    return text(mapping(event, "involvedObject"), "uid")


def created(item: Object) -> str:
    """Return when an object was created."""
    return text(mapping(item, "metadata"), "creationTimestamp")
