"""The HTTP face of admission: one route, which reads a review, asks the pure core, and answers.

Served by gunicorn over TLS. Nothing is decided here, and nothing is remembered between requests.
"""

import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import structlog
from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.http import HTTP_STATUS_CODES

from gpushare.errors import GpuShareError, PolicyDenied, RequestError
from gpushare.reasons import Reason
from webhook.metrics import Metrics
from webhook.must_wait import MustWait
from webhook.serving import review
from webhook.serving.http_request import CHECK, MAX_BODY
from webhook.serving.review import Answer, Review

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

log = structlog.get_logger()

LOGGED: Final = 253
"""Characters of a name in the log: no name of a namespace or a pod is longer."""
JSON: Final = "application/json"
PLAIN: Final = ("POST", "/mutate", JSON, None)
TOO_LARGE: Final = f"the body is larger than {MAX_BODY} bytes (7 MiB)"
REACHED: Final = "gpu-share: the namespace of the release does not share GPUs"
"""The answer to `gpu-share check`, which tries whether each replica is reached. It is neither counted nor logged."""
BUG: Final = "gpu-share: internal error while answering this review; the webhook's log has the details"
UNSUPPORTED: Final = HTTPStatus.UNSUPPORTED_MEDIA_TYPE.value
NO_ANSWER: Final = HTTPStatus.INTERNAL_SERVER_ERROR.value

Respond = Callable[[Review], Answer]
"""Answers a review that could be read: ``webhook.handler.AdmissionHandler``.

It raises ``PolicyDenied`` where the pod breaks a rule, and another ``GpuShareError`` where it cannot answer now.
"""


def create_app(respond: Respond, metrics: Metrics) -> Flask:
    """Build the application. It never shows a traceback: a bug is a plain sentence, and a line in the log.

    Plain reviews, which are all that an API server sends, are answered before Flask makes its contexts, which cost a
    third of a review's time. The route answers them alike, and everything else.
    """
    app = Flask("gpu-share-webhook", static_folder=None)
    app.config["PROPAGATE_EXCEPTIONS"] = True  # ``MustWait`` is for the worker; it answers what else is raised
    flask = app.wsgi_app

    def plain_first(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        named = (environ.get(each) for each in ("REQUEST_METHOD", "PATH_INFO", "CONTENT_TYPE", "HTTP_CONTENT_ENCODING"))
        if tuple(named) != PLAIN:
            return flask(environ | {"HTTP_HOST": "webhook"}, start)  # no route depends on it; werkzeug refuses odd ones
        answer = _measured(respond, metrics, lambda: _body(environ))
        headers = [("Content-Type", answer.content_type), ("Content-Length", str(len(answer.body)))]
        start(f"{answer.status} {HTTP_STATUS_CODES[answer.status].upper()}", headers)
        return [answer.body]

    app.wsgi_app = plain_first  # type: ignore[assignment,method-assign] # Flask's documented way to wrap an application

    @app.post("/mutate")
    def mutate() -> Response:
        return _response(_measured(respond, metrics, _checked_body))

    @app.post(CHECK)
    def check() -> Response:
        return _response(review.errored(NO_ANSWER, Reason.NAMESPACE_UNKNOWN, REACHED))

    @app.errorhandler(HTTPException)
    def refuse(error: HTTPException) -> Response:
        answer = review.errored(error.code or NO_ANSWER, Reason.BAD_REQUEST, f"{error.name}: POST /mutate only")
        return _response(answer, getattr(error, "valid_methods", ()))

    return app


def _measured(respond: Respond, metrics: Metrics, read: Callable[[], bytes]) -> Answer:
    """Answer one review, timed, counted and logged."""
    asked, started = None, time.perf_counter()
    with metrics.in_flight.track_inprogress():
        try:
            asked = review.parse(read())
            answer = respond(asked)
        except MustWait:
            raise
        except PolicyDenied as error:
            answer = review.denied(asked.uid if asked else "", error)
        except GpuShareError as error:
            answer = review.errored(getattr(error, "status", NO_ANSWER), error.reason, f"gpu-share: {error.message}")
        except Exception:
            answer = review.errored(NO_ANSWER, Reason.INTERNAL, BUG)
            log.exception("bug while answering a review", reason=Reason.INTERNAL)
    metrics.seconds.observe(time.perf_counter() - started)
    metrics.requests.labels(asked.operation if asked else "none", answer.result, answer.reason).inc()
    _log(asked, answer)
    return answer


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


def _checked_body() -> bytes:
    if request.mimetype != JSON:
        raise RequestError(f"Content-Type is {request.mimetype[:60]!r}; it has to be {JSON}", status=UNSUPPORTED)
    if request.content_encoding:
        raise RequestError("Content-Encoding is not supported; send plain JSON", status=UNSUPPORTED)
    return _body(request.environ)


def _body(environ: "WSGIEnvironment") -> bytes:
    """The whole body, at most 7 MiB of it. The worker hands on what is larger as soon as it knows, without the rest."""
    body: bytes = environ["wsgi.input"].read()
    if max(len(body), int(environ.get("CONTENT_LENGTH") or 0)) > MAX_BODY:
        raise RequestError(TOO_LARGE, Reason.TOO_LARGE, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    return body


def _response(answer: Answer, methods: Iterable[str] = ()) -> Response:
    return Response(answer.body, answer.status, [("Allow", each) for each in methods], content_type=answer.content_type)
