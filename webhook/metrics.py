"""The webhook's metrics. Names are forever: one prefix, base units, no value a tenant writes ever becomes a label."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from gpushare.reasons import Reason

OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT", "none")
"""``none``: the call could not be read far enough to know."""
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
RELOADS: Final = (("loaded",), ("unreadable",), ("torn",), ("expired",), ("not_yet_valid",))
CLOSED: Final = (("deadline",), ("memory",), ("room",), ("certificate",))
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
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.requests: Final = counter(
            "gpu_share_admission_requests", "Admission reviews answered.", ("operation", "result", "reason")
        )
        self.seconds: Final = Histogram(
            "gpu_share_admission_duration_seconds",
            "Seconds from the receipt of a whole request body until its answer is ready.",
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.in_flight: Final = gauge("gpu_share_admission_requests_in_flight", "Admission reviews being answered.")
        self.log_lines_dropped: Final = counter(
            "gpu_share_log_lines_dropped",
            "Log lines that were dropped because standard error is not read fast enough.",
        )
        self.connections_closed: Final = counter(
            "gpu_share_connections_closed",
            "Connections that the webhook closed before it had read a whole request, by reason.",
            ("reason",),
        )
        self.certificate_expiry: Final = gauge(
            "gpu_share_serving_cert_expiry_timestamp_seconds",
            "Expiry of the serving certificate (Unix time); 0 if the webhook has no certificate.",
        )
        self.certificate_reloads: Final = counter(
            "gpu_share_cert_reloads",
            "New certificate pairs that the webhook found, by result of loading them.",
            ("result",),
        )
        self._templates(counter, gauge)
        # Series that are there from the start: a rate over one that appears with its first event is nothing.
        for found, series in (
            (self.requests, FIRST_LABELS),
            (self.connections_closed, CLOSED),
            (self.certificate_reloads, RELOADS),
            (self.template_operations, tuple(product(TEMPLATE_ACTIONS, TEMPLATE_RESULTS))),
        ):
            for values in series:
                found.labels(*values)

    def _templates(self, counter: Callable[..., Counter], gauge: Callable[..., Gauge]) -> None:
        self.templates = gauge("gpu_share_templates", "ResourceClaimTemplates of gpu-share in the cluster.")
        self.templates_missing = gauge(
            "gpu_share_templates_missing", "ResourceClaimTemplates that pods wait for and that do not exist yet."
        )
        self.templates_taken = gauge(
            "gpu_share_templates_conflicting",
            "ResourceClaimTemplates that pods wait for but the webhook cannot create, because another template has "
            "that name.",
        )
        self.template_operations = counter(
            "gpu_share_template_operations",
            "Writes of ResourceClaimTemplates, by action and result.",
            ("action", "result"),
        )
        self.cluster_errors = counter("gpu_share_api_errors", "Calls to the API server that failed.")
