"""Where the time goes: the parts of one request, each timed by itself in this process."""

import io
import sys
import time
from collections.abc import Callable
from typing import Any

from werkzeug.test import EnvironBuilder

from gpushare.namespace_policy import NamespacePolicy
from tests.support import reviews
from webhook.caches import KnownClaims, NamespacePolicyCache
from webhook.handler import AdmissionHandler
from webhook.metrics import Metrics
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings
from webhook.serving import logs, review
from webhook.serving.app import Deps, create_app

ROUNDS, REPEATS = 7, 200


def cpu(work: Callable[[], object]) -> float:
    """Seconds of CPU one call takes: the best of several rounds, as what is slower was disturbed."""
    return min(_round(work) for _ in range(ROUNDS))


def _round(work: Callable[[], object]) -> float:
    started = time.process_time()
    for _ in range(REPEATS):
        work()
    return (time.process_time() - started) / REPEATS


def parts(pod: dict[str, Any]) -> dict[str, float]:
    """Seconds of CPU by part, none of them containing another."""
    logs.configure("error", logs.LogStream(sys.stderr, lambda: None))
    body = reviews.as_sent(pod)
    namespaces = NamespacePolicyCache()
    namespaces.replace([{"metadata": {"name": reviews.NAMESPACE}}])
    respond = AdmissionHandler(settings=Settings(), namespaces=namespaces, claims=KnownClaims())
    app = create_app(Deps(respond=respond, metrics=Metrics()))
    environ = EnvironBuilder(method="POST", path="/mutate", content_type="application/json").get_environ()

    def call() -> object:
        request = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return b"".join(app(request, lambda *_: None))  # type: ignore[arg-type]

    asked, policy, settings = review.parse(body), NamespacePolicy(), Settings()
    parsing = cpu(lambda: review.parse(body))
    deciding = cpu(lambda: mutate_pod(pod, policy=policy, settings=settings))
    answering = cpu(lambda: respond(asked))
    whole = cpu(call)
    return {
        "strict JSON": parsing,
        "mutate_pod": deciding,
        "answer, base64": max(0.0, answering - deciding),
        "Flask, metrics": max(0.0, whole - answering - parsing),
    }
