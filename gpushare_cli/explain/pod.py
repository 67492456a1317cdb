"""Which object ``gpu-share explain`` is asked about, and what is on record of a pod, read with the user's rights."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from http import HTTPStatus
from typing import Any, Final, TypeVar

from gpushare.contract import DRIVER, SIDECAR
from gpushare.defaults import SYSTEM_NAMESPACE
from gpushare.errors import ClusterError, ConfigError, GpuShareError
from gpushare.kube_client import APPS_V1, BATCH_V1, CORE_V1, RESOURCE_V1, KubeClient, Object, find, path
from gpushare.pod_claims import claim_names
from gpushare.raw_objects import mapping
from gpushare_cli import node_status
from gpushare_cli.explain.pod_record import PodRecord, Usage, container_statuses
from gpushare_cli.lookups import check_namespace, optional, release_namespace
from gpushare_cli.options import pod_name
from gpushare_cli.placement.placing import NOT_READ, Cluster
from gpushare_cli.words import sentence
from sidecar import pod_status


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that makes pods: its name, where it is, and kubectl's short name if it has one."""

    name: str
    base: str
    plural: str
    short: str = ""


DEPLOYMENT: Final = Kind("Deployment", APPS_V1, "deployments", "deploy")
REPLICA_SET: Final = Kind("ReplicaSet", APPS_V1, "replicasets", "rs")
JOB: Final = Kind("Job", BATCH_V1, "jobs")
CRON_JOB: Final = Kind("CronJob", BATCH_V1, "cronjobs", "cj")
DAEMON_SET: Final = Kind("DaemonSet", APPS_V1, "daemonsets", "ds")
POD: Final = Kind("Pod", CORE_V1, "pods", "po")
KINDS: Final = (
    POD, DEPLOYMENT, REPLICA_SET, JOB, CRON_JOB, DAEMON_SET, Kind("StatefulSet", APPS_V1, "statefulsets", "sts"),
    Kind("ReplicationController", CORE_V1, "replicationcontrollers", "rc"),
)  # fmt: skip
_WORDS: Final = {word: kind for kind in KINDS for word in (kind.name.lower(), kind.plural, kind.short) if word}


def target(words: str, namespace: str | None) -> tuple[Kind, str, str]:
    """Read ``POD``, ``NAMESPACE/POD`` or ``KIND/NAME``; the namespace is empty where none is given.

    ``KIND`` comes first: a pod in a namespace that is called like one, such as ``job``, is named with ``-n``.

    Raises:
        ConfigError: it is none of these.
    """
    before, _, name = words.partition("/")
    # As for kubectl, the API group may follow: deployment.apps.
    kind = _WORDS.get(before.lower().partition(".")[0])
    if kind is None and name and namespace not in {None, "", before}:
        known = ", ".join(each.short or each.name.lower() for each in KINDS)
        raise ConfigError(
            f"{before!r:.80} is neither a kind of workload ({known}) nor the namespace that -n "
            f"names ({namespace}); write POD or KIND/NAME"
        )
    if kind is None or not name:
        return (POD, *pod_name(words, namespace))
    if "/" in name:
        raise ConfigError(f"{words!r:.200} is not a workload; write KIND/NAME, and its namespace with -n")
    return kind, namespace or "", name


T = TypeVar("T")
READ: Final = (
    "involvedObject", "reason", "message", "action", "type", "reportingComponent", "eventTime", "lastTimestamp",
)  # fmt: skip
"""What is read of an Event."""
STATUS: Final = ("gpu-share", "status", "-o", "json")
SILENCE: Final = 5.0
"""Seconds without a word after which a sidecar is given up."""
SECONDS: Final = 10.0
"""Seconds for its whole answer."""
MAX_PROBLEM: Final = 300
NO_RIGHT: Final = "you may not run commands in the sidecar (pods/exec); ask for the ClusterRole edit"
UNREAD: Final = "the sidecar's answer cannot be parsed; the sidecar may be of an older release"


class Reader:
    """Reads what is on record in one namespace; what several pods need is read once."""

    def __init__(self, api: KubeClient, namespace: str) -> None:
        self.api, self.name = api, namespace

    @cached_property
    def namespace(self) -> Object | None:
        """The Namespace; ``None`` where the user may not read it, or it is gone."""
        return optional(lambda: self.api.get(path(CORE_V1, "namespaces", self.name)))

    @cached_property
    def release(self) -> str:
        """The namespace of gpu-share; the usual one where the user may not read the webhook configuration."""
        return optional(lambda: release_namespace(self.api)) or SYSTEM_NAMESPACE

    @cached_property
    def cluster(self) -> Cluster:
        """What decides where a share could start."""
        ours = f"spec.driver={DRIVER}"
        slices = self._all(path(RESOURCE_V1, "resourceslices"), fieldSelector=ours)
        if slices is None:
            return NOT_READ
        nodes, claims = self._all(path(CORE_V1, "nodes")), self._all(path(RESOURCE_V1, "resourceclaims"))
        return Cluster(nodes=nodes, slices=slices, claims=claims)

    @cached_property
    def quotas(self) -> list[Object] | None:
        """The ResourceQuotas of the namespace; ``None`` where the user may not read them."""
        return self._all(path(CORE_V1, "resourcequotas", namespace=self.name))

    def _all(self, where: str, **query: str) -> list[Object] | None:
        return optional(lambda: list(self.api.listing(where, **query)))

    def record(self, pod: Object) -> PodRecord:
        """Read what there is about a pod beside itself.

        Raises:
            ClusterError: the API server cannot be asked.
        """
        claims = optional(lambda: claims_of(self.api, self.name, claim_names(pod)))
        # Of the old group: those of events.k8s.io are the same objects, but no role of Kubernetes' own shows them.
        about = f"involvedObject.uid={mapping(pod, 'metadata').get('uid')}"
        events = optional(lambda: self.events(about))
        found = PodRecord(pod=pod, claims=claims, events=events, namespace=self.namespace)
        if not found.waits_for_node:
            cluster = NOT_READ
        elif found.lacks_claims:
            cluster = Cluster(quotas=self.quotas)
        else:
            cluster = self.cluster if found.known_claims else NOT_READ
        return replace(found, cluster=cluster, release=self.release)

    def events(self, selector: str) -> list[Object]:
        """Read Events, without what nothing reads of them: a user who may write Events may write large ones."""
        where = path(CORE_V1, "events", namespace=self.name)
        found = self.api.listing(where, fieldSelector=selector)
        return [{key: event[key] for key in READ if key in event} for event in found]


def recorded(api: KubeClient, namespace: str, name: str) -> PodRecord:
    """Read a pod, its claims, Events and Namespace: what the ``view`` role lets a tenant read.

    Raises:
        GpuShareError: there is no such pod, or the user may not read it.
        ClusterError: the API server cannot be asked.
    """
    return Reader(api, namespace).record(named(api, POD, name, namespace))


def named(api: KubeClient, kind: Kind, name: str, namespace: str) -> Object:
    """Read an object that the user named.

    Raises:
        GpuShareError: there is none of that name, or the user may not read it.
        ClusterError: the API server cannot be asked.
    """
    what = f"{kind.name.lower()} {name} in namespace {namespace}"
    try:
        found = find(api, path(kind.base, kind.plural, name, namespace))
    except ClusterError as error:
        if error.status == HTTPStatus.FORBIDDEN:
            raise GpuShareError(f"you may not read {what}; ask for the ClusterRole view there") from None
        raise
    if found is None:
        check_namespace(api, namespace)
        raise GpuShareError(f"there is no {what}; give NAMESPACE/POD or -n, or a workload as deploy/NAME")
    return found


def claims_of(api: KubeClient, namespace: str, names: list[str]) -> dict[str, Object]:
    """Read those claims that are there, by name.

    Raises:
        ClusterError: the user may not, or the API server cannot be asked.
    """
    found = {name: find(api, path(RESOURCE_V1, "resourceclaims", name, namespace)) for name in names}
    return {name: claim for name, claim in found.items() if claim is not None}


def usage_of(api: KubeClient, pod: Mapping[str, Any]) -> Usage:
    """Read what a pod's containers hold from its sidecar: no object of the API server has it.

    It needs the right to run commands in the pod, which the ``edit`` role has and ``view`` has not.
    """
    sidecars = (each for each in container_statuses(pod) if each.get("name") == SIDECAR)
    if not any("running" in mapping(each, "state") for each in sidecars):
        return Usage()
    metadata = mapping(pod, "metadata")
    found, problem, ends = b"", "", time.monotonic() + SECONDS
    try:
        for piece in api.run(metadata["name"], metadata["namespace"], SIDECAR, STATUS, silence=SILENCE):
            found += piece
            # A container of that name need not be our sidecar, and may write for ever.
            if len(found) > pod_status.MAX_BYTES or time.monotonic() > ends:
                break
    except ClusterError as error:  # also where the share is not ready, after what is wanted
        problem = NO_RIGHT if error.status == HTTPStatus.FORBIDDEN else sentence(error)[:MAX_PROBLEM]
    status = pod_status.parse(found)
    if status is None:
        return Usage(problem=f"GPU memory use unknown: {problem or UNREAD}")
    age = None if status.written is None else node_status.now().timestamp() - status.written
    return Usage(status=status, age=age)
