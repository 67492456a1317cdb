"""Floors for benchmarks: the least that a webhook on stock gunicorn does: read the review, answer a constant."""

import base64
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from flask import Flask, Response, request

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

PATCH: Final = base64.b64encode(b'[{"op":"add","path":"/metadata/annotations/floor","value":"seen"}]').decode()
REVIEW: Final = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "response": {"uid": "", "allowed": True, "patch": PATCH, "patchType": "JSONPatch"},
}
ANSWER: Final = json.dumps(REVIEW, separators=(",", ":")).encode()
HEADERS: Final = [("Content-Type", "application/json"), ("Content-Length", str(len(ANSWER)))]

flask = Flask(__name__)


@flask.post("/mutate")
def mutate() -> Response:
    request.get_data()
    return Response(ANSWER, mimetype="application/json")


def wsgi(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
    environ["wsgi.input"].read()
    start_response("200 OK", HEADERS)
    return [ANSWER]
