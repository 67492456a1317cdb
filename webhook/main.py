"""Entry of ``gpu-share webhook``: reads the options, wires the parts together inside the worker, serves."""

import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from gpushare import metrics_server
from gpushare.errors import ConfigError, GpuShareError
from gpushare.reasons import Reason
from webhook.caches import KnownClaims, NamespacePolicyCache, static_namespaces
from webhook.claim_templates.controller import Controller
from webhook.flags import Options
from webhook.handler import AdmissionHandler
from webhook.metrics import Metrics
from webhook.must_wait import in_thread
from webhook.mutation.demand import Demand
from webhook.mutation.settings import Settings
from webhook.serving.app import create_app
from webhook.serving.gunicorn_conf import Server, settings
from webhook.serving.logs import LogStream, configure
from webhook.serving.tls import Certificates

if TYPE_CHECKING:
    from flask import Flask

log = structlog.get_logger()

WRONG_USE: Final = 2
GC_THRESHOLD: Final = 100_000
"""New containers before a collection: some 100 requests' worth, which are freed by counting anyway."""


Missing = Callable[[], list[str]]
"""Names what of the cluster has not been read yet."""


def main(argv: Sequence[str]) -> int:
    """Run until a signal stops it. Returns 2 when the options cannot be used."""
    try:
        options = Options.read(argv, os.environ)
        check(options)
    except ConfigError as error:
        print(f"gpu-share webhook: {error.message}", file=sys.stderr)  # noqa: T201 - before there is a log
        return WRONG_USE
    worker = Process(options)
    configure(options.settings.log_level, worker.log_stream)
    log.info("effective configuration", **options.effective())
    Server(settings(options, worker.certificates.context, worker.closed, worker.log_stream), worker.load).run()
    return 0


def check(options: Options) -> None:
    """Refuse what would fail later, in the worker, where gunicorn would only start it again and again."""
    if options.namespaces:
        static_namespaces(options.namespaces)


class Process:
    """What lives in the worker process. Built before the fork, started after it."""

    def __init__(self, options: Options) -> None:
        self.metrics = Metrics()
        self.log_stream = LogStream(sys.stderr, self.metrics.log_lines_dropped.inc)
        self.certificates = Certificates(options.certs, self.metrics, clients=options.clients)
        self._options = options

    def load(self) -> "Flask":
        """Start the threads and build the application; called once in the worker."""
        self.log_stream.start()
        respond, missing = self._static() if self._options.namespaces else self._watching()
        metrics_server.serve("--admin", self._options.admin, self.metrics.registry, lambda: self._not_ready(missing()))
        app = create_app(respond, self.metrics)
        _spare_the_collector()
        return app

    def closed(self, reason: str) -> None:
        """Count a connection that was closed before its request was whole."""
        self.metrics.connections_closed.labels(reason).inc()

    def _static(self) -> tuple[AdmissionHandler, Missing]:
        """Answer by policies from a file; there are no claims and nothing to wait for."""
        assert self._options.namespaces is not None
        namespaces = static_namespaces(self._options.namespaces)
        return AdmissionHandler(settings=self._options.settings, namespaces=namespaces, claims=KnownClaims()), list

    def _watching(self) -> tuple[AdmissionHandler, Missing]:
        # Half a second and 40 MB that are not needed without an API server.
        from gpushare.kube_client import KubeClient  # noqa: PLC0415
        from webhook import informers  # noqa: PLC0415

        api = KubeClient.connect(self._options.kubeconfig)
        namespaces, claims = NamespacePolicyCache(informers.live_policies(api)), KnownClaims()
        controller = Controller(
            informers.TemplateWriter(api),
            self.metrics,
            opted_in=namespaces.__contains__,
            refusal=partial(refusal, namespaces, self._options.settings),
            retention=self._options.retention,
            may_wait=in_thread,
        )
        for follower in informers.followers(api, namespaces, claims, controller, self.metrics):
            _daemon(follower.run)
        _daemon(controller.run)
        handler = AdmissionHandler(
            settings=self._options.settings,
            namespaces=namespaces,
            claims=claims,
            standing=controller.standing,
            admitted=controller.admitted,
        )
        return handler, partial(unread, namespaces, claims)

    def _not_ready(self, missing: list[str]) -> str:
        faults = [f"not read yet: {name}" for name in missing]
        if not self.certificates.loaded:
            clients = self._options.clients
            faults.append(
                f"no valid certificate in {self._options.certs}" + (f", or CA in {clients.ca}" if clients else "")
            )
        return "; ".join(faults)


def unread(namespaces: NamespacePolicyCache, claims: KnownClaims) -> list[str]:
    """Name what answers to reviews depend on and has not been listed yet. They do not depend on the list of pods."""
    parts = {"namespaces": namespaces.synced, "claims and templates": claims.synced}
    return [name for name, read in parts.items() if not read]


def refusal(
    namespaces: NamespacePolicyCache, settings: Settings, namespace: str, demand: Demand
) -> tuple[Reason, str] | None:
    """Say why an opted-in namespace does not allow what a stored pod asks for."""
    try:
        return demand.refusal(namespaces.policy(namespace), settings)
    except GpuShareError as error:
        return error.reason, error.message


def _spare_the_collector() -> None:
    """Leave what start-up made out of garbage collection: walking it would cost requests milliseconds for nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


def _daemon(run: Callable[[Callable[[], bool]], None]) -> None:
    """Run until the process ends: nothing these threads do needs an orderly end."""
    threading.Thread(target=run, args=(lambda: False,), daemon=True).start()
