"""The webhook's metrics. Names are forever: one prefix, base units, no value a tenant writes ever becomes a label."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from gpushare.reasons import Reason

OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT", "none")
"""``none``: the call could not be read far enough to know."""
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
RELOADS: Final = ("loaded", "unreadable", "torn", "expired", "not_yet_valid")
TEMPLATE_ACTIONS: Final = ("create", "delete")
TEMPLATE_RESULTS: Final = ("ok", "exists", "gone", "error")
FIRST_LABELS: Final = (
    ("CREATE", "patched", Reason.APPLIED),
    ("CREATE", "allowed", Reason.UNCHANGED),
    ("CREATE", "allowed", Reason.NO_SHARE),
    ("CREATE", "denied", Reason.CONFLICTS_WITH_SHARE),
    ("none", "errored", Reason.BAD_REQUEST),
    ("none", "errored", Reason.TOO_LARGE),
    ("CREATE", "errored", Reason.NAMESPACE_UNKNOWN),
    ("none", "errored", Reason.INTERNAL),
)


class Metrics:
    """Every metric of one webhook process, in a registry of its own."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests: Final = Counter(
            "gpu_share_admission_requests",
            "Admission reviews answered.",
            ("operation", "result", "reason"),
            registry=self.registry,
        )
        self.seconds: Final = Histogram(
            "gpu_share_admission_duration_seconds",
            "Seconds from the receipt of a whole request body until its answer is ready.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.in_flight: Final = Gauge(
            "gpu_share_admission_requests_in_flight", "Admission reviews being answered.", registry=self.registry
        )
        self.log_lines_dropped: Final = Counter(
            "gpu_share_log_lines_dropped",
            "Log lines that were dropped because standard error is not read fast enough.",
            registry=self.registry,
        )
        self._connections()
        self._certificates()
        self._templates()
        for labels in FIRST_LABELS:
            self.requests.labels(*labels)

    def _connections(self) -> None:
        self.connections_closed = Counter(
            "gpu_share_connections_closed",
            "Connections that the webhook closed before it had read a whole request, by reason.",
            ("reason",),
            registry=self.registry,
        )
        _zero(self.connections_closed, ((reason,) for reason in ("deadline", "memory", "room", "certificate")))

    def _certificates(self) -> None:
        self.certificate_expiry = Gauge(
            "gpu_share_serving_cert_expiry_timestamp_seconds",
            "Expiry of the serving certificate (Unix time); 0 if the webhook has no certificate.",
            registry=self.registry,
        )
        self.certificate_reloads = Counter(
            "gpu_share_cert_reloads",
            "New certificate pairs that the webhook found, by result of loading them.",
            ("result",),
            registry=self.registry,
        )
        _zero(self.certificate_reloads, ((result,) for result in RELOADS))

    def _templates(self) -> None:
        self.templates = Gauge(
            "gpu_share_templates", "ResourceClaimTemplates of gpu-share in the cluster.", registry=self.registry
        )
        self.templates_missing = Gauge(
            "gpu_share_templates_missing",
            "ResourceClaimTemplates that pods wait for and that do not exist yet.",
            registry=self.registry,
        )
        self.templates_taken = Gauge(
            "gpu_share_templates_conflicting",
            "ResourceClaimTemplates that pods wait for but the webhook cannot create, because another template has "
            "that name.",
            registry=self.registry,
        )
        self.template_operations = Counter(
            "gpu_share_template_operations",
            "Writes of ResourceClaimTemplates, by action and result.",
            ("action", "result"),
            registry=self.registry,
        )
        _zero(self.template_operations, ((a, r) for a in TEMPLATE_ACTIONS for r in TEMPLATE_RESULTS))
        self.cluster_errors = Counter(
            "gpu_share_api_errors", "Calls to the API server that failed.", registry=self.registry
        )


def _zero(counter: Counter, labels: Iterable[tuple[str, ...]]) -> None:
    """A series that is there from the start: a rate over one that appears with its first event is nothing."""
    for values in labels:
        counter.labels(*values)
