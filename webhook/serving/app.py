"""The HTTP face of admission: one route, which reads a review, asks the pure core, and answers.

Served by gunicorn over TLS. Nothing is decided here, and nothing is remembered between requests.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

import structlog
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException

from gpushare.errors import GpuShareError, PolicyDenied, RequestError
from gpushare.reasons import Reason
from webhook.metrics import Metrics
from webhook.must_wait import MustWait
from webhook.serving import review
from webhook.serving.http_request import MAX_BODY
from webhook.serving.review import Answer, Review

log = structlog.get_logger()

LOGGED: Final = 253
"""Characters of a name in the log: no name of a namespace or a pod is longer."""
JSON: Final = "application/json"
TOO_LARGE: Final = f"the body is larger than {MAX_BODY} bytes (7 MiB)"
BUG: Final = "gpu-share: internal error while answering this review; the webhook's log has the details"
UNSUPPORTED: Final = HTTPStatus.UNSUPPORTED_MEDIA_TYPE.value
NO_ANSWER: Final = HTTPStatus.INTERNAL_SERVER_ERROR.value


class Respond(Protocol):
    """What answers a review that could be read: ``webhook.handler.AdmissionHandler``.

    Raises:
        PolicyDenied: the pod breaks a rule.
        GpuShareError: it cannot be answered now (HTTP 500).
    """

    def __call__(self, asked: Review, /) -> Answer:
        """Answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the application needs from outside."""

    respond: Respond
    metrics: Metrics
    clock: Callable[[], float] = time.perf_counter


def create_app(deps: Deps) -> Flask:
    """Build the application. It never shows a traceback: a bug is a plain sentence, and a line in the log."""
    app = Flask("gpu-share-webhook", static_folder=None)
    app.config["PROPAGATE_EXCEPTIONS"] = True  # ``MustWait`` is for the worker; it answers what else is raised

    @app.post("/mutate")
    def mutate() -> Response:
        asked, answer = _measured(deps)
        response = _response(answer)
        # Once the answer is on its way: nobody waits for a line in the log.
        response.call_on_close(lambda: _log(asked, answer))
        return response

    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        return _response(
            review.errored(error.code or NO_ANSWER, Reason.BAD_REQUEST, f"{error.name}: POST /mutate only")
        )

    return app


def _measured(deps: Deps) -> tuple[Review | None, Answer]:
    """Answer the current request, timed and counted from the moment its body is here."""
    metrics, asked = deps.metrics, None
    metrics.in_flight.inc()
    started = deps.clock()
    try:
        body = _body()
        started = deps.clock()
        asked = review.parse(body)
        answer = answer_review(asked, deps.respond)
    except MustWait:
        raise
    except RequestError as error:
        answer = review.errored(error.status, error.reason, f"gpu-share: {error.message}")
    except Exception:
        answer = review.errored(NO_ANSWER, Reason.INTERNAL, BUG)
        log.exception("bug while answering a review", reason=Reason.INTERNAL)
    finally:
        metrics.in_flight.dec()
    metrics.seconds.observe(deps.clock() - started)
    metrics.requests.labels(asked.operation if asked else "none", answer.result, answer.reason).inc()
    return asked, answer


def answer_review(asked: Review, respond: Respond) -> Answer:
    """Answer one review; what the core refuses becomes ``denied``, what it cannot know a 500.

    Raises:
        RequestError: the review lacks something.
    """
    try:
        return respond(asked)
    except PolicyDenied as error:
        return review.denied(asked.uid, error)
    except RequestError:
        raise
    except GpuShareError as error:
        return review.errored(NO_ANSWER, error.reason, f"gpu-share: {error.message}")


def _log(asked: Review | None, answer: Answer) -> None:
    """One line for what was changed, refused or not answered; what passes as it is, is no news."""
    if answer.result == "allowed":
        return
    facts: dict[str, object] = {"reason": answer.reason, "status": answer.status}
    if asked is not None:
        facts |= {"uid": asked.uid, "operation": asked.operation, "dry_run": asked.dry_run}
        # Any client that reaches the port writes these: a review may be 7 MiB, a line in the log may not.
        facts |= {key: getattr(asked, key)[:LOGGED] for key in ("namespace", "name", "user")}
    if answer.message:
        facts["message"] = answer.message[: review.MAX_MESSAGE]
    (log.warning if answer.result == "errored" else log.info)(f"review {answer.result}", **facts)


def _body() -> bytes:
    """The whole body, at most 7 MiB of it. The worker hands on what is larger as soon as it knows, without the rest."""
    if request.mimetype != JSON:
        raise RequestError(f"Content-Type is {request.mimetype[:60]!r}; it has to be {JSON}", status=UNSUPPORTED)
    if request.content_encoding:
        raise RequestError("Content-Encoding is not supported; send plain JSON", status=UNSUPPORTED)
    body: bytes = request.environ["wsgi.input"].read()
    if max(len(body), request.content_length or 0) > MAX_BODY:
        raise RequestError(TOO_LARGE, Reason.TOO_LARGE, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return body


def _response(answer: Answer) -> Response:
    return Response(answer.body, answer.status, content_type=answer.content_type)
