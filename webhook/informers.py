"""The webhook's dealings with the API server: four watches, one GET, and writing claim templates."""

import hashlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final

import structlog

from gpushare.contract import DRIVER, MANAGED_LABEL, NAMESPACE_LABEL
from gpushare.errors import ClusterError
from gpushare.informer import Informer
from gpushare.kube_client import CORE_V1, EVENTS_V1, RESOURCE_V1, KubeClient, Object, path
from gpushare.reasons import Reason
from webhook.caches import CLAIM, TEMPLATE, KnownClaims, NamespacePolicyCache
from webhook.claim_templates.controller import Controller
from webhook.claim_templates.references import TemplateRecord
from webhook.live_policies import LivePolicies
from webhook.metrics import Metrics
from webhook.must_wait import in_thread

log = structlog.get_logger()

GET_TIMEOUT: Final = 0.5
"""Seconds that a review waits for its namespace: with ``ADMISSION_WAIT`` less than the webhook's least timeout, 1 s."""
CLAIMS: Final = "resourceclaims"
TEMPLATES: Final = "resourceclaimtemplates"
OPTED_IN: Final = f"{NAMESPACE_LABEL}=true"
MANAGED: Final = f"{MANAGED_LABEL}=true"
CONTROLLER: Final = f"{DRIVER}/webhook"
"""Who reports, in Events."""

OnList = Callable[[Iterable[Object]], None]
OnEvent = Callable[[str, Object], None]


class TemplateWriter:
    """Creates and deletes claim templates; both are safe to repeat, and to do from several replicas at once."""

    def __init__(self, cluster: KubeClient) -> None:
        self._cluster = cluster

    def create(self, namespace: str, body: Object) -> str:
        """Create a template. Returns ``ok``, or ``exists`` where somebody was quicker.

        Raises:
            ClusterError: it may not be there.
        """
        try:
            self._cluster.create(path(RESOURCE_V1, TEMPLATES, namespace=namespace), body)
        except ClusterError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return "exists"
        return "ok"

    def delete(self, template: TemplateRecord) -> str:
        """Delete exactly the template that was seen. Returns ``ok``, or ``gone`` where it is another one or none.

        Raises:
            ClusterError: it may still be there.
        """
        namespace, name = template.key
        preconditions = {"uid": template.uid, "resourceVersion": template.version}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        try:
            self._cluster.delete(path(RESOURCE_V1, TEMPLATES, name, namespace), options)
        except ClusterError as error:
            if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise
            return "gone"
        return "ok"

    def tell(self, pod: Object, reason: Reason, note: str) -> None:
        """Write an Event on a pod; every replica writes the same one, so the first wins."""
        about = f"{pod['name'][:180]}.{hashlib.sha256(f'{pod} {reason}'.encode()).hexdigest()[:16]}"
        body = {
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": about, "namespace": pod["namespace"]},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": CONTROLLER, "reportingInstance": CONTROLLER, "regarding": pod,
            "action": "Reserve", "reason": str(reason), "type": "Warning", "note": f"no claim template: {note}"[:1024],
        }  # fmt: skip
        log.warning("claim template not created", reason=reason, namespace=pod["namespace"], pod=pod["name"], why=note)
        try:
            self._cluster.create(path(EVENTS_V1, "events", namespace=pod["namespace"]), body)
        except ClusterError as error:
            if error.status != HTTPStatus.CONFLICT:
                log.warning("event not delivered", reason=str(error.reason), error=error.message)


class _Eager(Informer):
    """One that does not wait long to try again, for pods wait for their templates, and there are few of us."""

    MAX_DELAY = 1.0
    RESUMES = True


def followers(
    cluster: KubeClient,
    namespaces: NamespacePolicyCache,
    claims: KnownClaims,
    books: Controller,
    metrics: Metrics,
) -> list[Informer]:
    """Everything that has to be watched; each is meant to run in a thread of its own."""

    def reset_templates(items: Iterable[Object]) -> None:
        books.reset_templates(claims.listing(TEMPLATE, items))

    def template_event(change: str, item: Object) -> None:
        claims.event(TEMPLATE, change, item)
        books.template_event(change, item)

    def reset_namespaces(items: Iterable[Object]) -> None:
        namespaces.replace(items)
        books.namespaces_changed()

    def namespace_event(change: str, item: Object) -> None:
        namespaces.on_event(change, item)
        books.namespaces_changed(item["metadata"]["name"])

    def failed(error: ClusterError) -> None:
        metrics.cluster_errors.inc()
        log.warning("watch interrupted", reason=error.reason, error=error.message, status=error.status)

    def follow(where: str, on_list: OnList, on_event: OnEvent, **query: str) -> Informer:
        return _Eager(cluster, where, on_list, on_event, failed, **query)

    return [
        follow(path(CORE_V1, "namespaces"), reset_namespaces, namespace_event, labelSelector=OPTED_IN),
        follow(path(CORE_V1, "pods"), books.reset_pods, books.pod_event, labelSelector=MANAGED),
        follow(path(RESOURCE_V1, TEMPLATES), reset_templates, template_event),
        follow(path(RESOURCE_V1, CLAIMS), partial(claims.reset, CLAIM), partial(claims.event, CLAIM)),
    ]


def live_policies(cluster: KubeClient) -> LivePolicies:
    """Read policies with GETs of at most half a second, never in the thread that serves every connection."""
    return LivePolicies(
        lambda name: cluster.get(path(CORE_V1, "namespaces", name), timeout=GET_TIMEOUT), may_wait=in_thread
    )
