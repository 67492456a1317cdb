"""The HTTP face, without a server: what becomes of errors and bugs."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpushare.errors import GpuShareError, PolicyDenied
from gpushare.reasons import Reason
from tests.support import reviews
from tests.support.extent import trials
from tests.unit.webhook.generated import pods
from webhook.caches import KnownClaims, NamespacePolicyCache
from webhook.handler import AdmissionHandler
from webhook.metrics import Metrics
from webhook.mutation.settings import Settings
from webhook.serving import review
from webhook.serving.app import JSON, create_app
from webhook.serving.http_request import MAX_BODY
from webhook.serving.review import Answer, Review

Respond = Callable[[Review], Answer]


def client(respond: Respond, metrics: Metrics | None = None) -> FlaskClient:
    return create_app(respond, metrics or Metrics()).test_client()


def allow(asked: Review) -> Answer:
    return review.allowed(asked.uid, Reason.NO_SHARE)


def failing(error: Exception) -> Respond:
    def respond(_: Review) -> Answer:
        raise error

    return respond


def post(respond: Respond, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
    body = reviews.encoded(reviews.pod()) if body is None else body
    return client(respond).post("/mutate", data=body, headers={"Content-Type": "application/json", **(headers or {})})


def test_echoes_the_uid() -> None:
    answer = post(allow, reviews.encoded(reviews.pod(), uid="abc"))

    assert (answer.status_code, answer.content_type) == (200, "application/json")
    assert answer.json["response"] == {"uid": "abc", "allowed": True}


def test_a_refused_pod_is_a_result() -> None:
    answer = post(failing(PolicyDenied("spec.hostPID", "set it to false", Reason.CONFLICTS_WITH_SHARE)))

    response = answer.json["response"]
    assert (answer.status_code, response["allowed"], response["status"]["code"]) == (200, False, 403)
    assert response["status"]["message"] == "spec.hostPID: set it to false"


def test_what_cannot_be_known_now_is_a_500_with_a_sentence() -> None:
    answer = post(failing(GpuShareError("the policy of 'team' is not known", Reason.NAMESPACE_UNKNOWN)))

    assert (answer.status_code, answer.text) == (500, "gpu-share: the policy of 'team' is not known")


@pytest.mark.parametrize("bug", [KeyError("spec"), RecursionError(), RuntimeError("secret"), AttributeError("x")])
def test_a_bug_is_a_500_without_a_traceback(bug: Exception) -> None:
    answer = post(failing(bug))

    assert answer.status_code == 500
    assert "internal error" in answer.text
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": ""},
        {"Content-Type": "application/yaml"},
        {"Content-Encoding": "gzip"},
    ],
)
def test_takes_plain_json_only(headers: dict[str, str]) -> None:
    assert post(allow, headers=headers).status_code == 415


def test_takes_json_with_a_character_set() -> None:
    assert post(allow, headers={"Content-Type": "application/json; charset=utf-8"}).status_code == 200


def test_refuses_more_than_seven_mebibytes() -> None:
    assert post(allow, b" " * (MAX_BODY + 1)).status_code == 413


@pytest.mark.parametrize(
    ("method", "where", "status"), [("GET", "/mutate", 405), ("POST", "/", 404), ("PUT", "/mutate", 405)]
)
def test_there_is_one_route(method: str, where: str, status: int) -> None:
    answer = client(allow).open(where, method=method)

    assert answer.status_code == status
    assert "POST /mutate only" in answer.text


def responder(namespaces: NamespacePolicyCache | None = None) -> AdmissionHandler:
    if namespaces is None:
        namespaces = NamespacePolicyCache()
        namespaces.replace([{"metadata": {"name": "team", "annotations": {"gpu-share.io/max-memory": "8Gi"}}}])
    return AdmissionHandler(settings=Settings(), namespaces=namespaces, claims=KnownClaims())


BODIES = st.one_of(
    pods().map(lambda each: reviews.encoded(each.pod)),
    st.builds(lambda cut: reviews.encoded(reviews.pod())[:-cut], st.integers(0, 2000)),
    st.sampled_from([b"{}", b"", b"null", reviews.encoded(None), reviews.encoded({"spec": 7})]),
    st.binary(max_size=50),
)
RESPONDS = st.sampled_from([allow, failing(KeyError("x")), failing(GpuShareError("not now", Reason.NAMESPACE_UNKNOWN))])


@settings(max_examples=trials(40, 2000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(BODIES, RESPONDS | st.builds(responder))
@example(b" " * (MAX_BODY + 1), allow)
def test_flask_answers_as_the_way_around_it(body: bytes, respond: Respond) -> None:
    """The character set is what sends a review to Flask; the header tells nothing else to the application."""
    around, flask = (
        post(respond, body, {"Content-Type": kind}) for kind in ("application/json", "application/json; charset=utf-8")
    )

    assert (around.status, around.headers.to_wsgi_list(), around.data) == (
        flask.status,
        flask.headers.to_wsgi_list(),
        flask.data,
    )


@pytest.mark.parametrize("host", [".", "a..b", "a" * 64, "webhook:443", "[::1]", ""])
def test_both_ways_answer_whatever_host_is_named(host: str) -> None:
    body = reviews.encoded(reviews.pod())
    answers = [post(allow, body, {"Host": host, "Content-Type": kind}) for kind in (JSON, f"{JSON}; charset=utf-8")]
    assert [each.status_code for each in answers] == [200, 200]
    assert answers[0].data == answers[1].data


def test_a_refused_method_names_those_that_are_allowed() -> None:
    assert {*client(allow).get("/mutate").headers.getlist("Allow")} == {"POST", "OPTIONS"}


def test_plain_reviews_go_around_flask(monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = []
    monkeypatch.setattr(Flask, "request_context", lambda _app, environ: contexts.append(environ))

    assert post(allow).status_code == 200
    assert not contexts


def test_counts_operation_result_and_reason() -> None:
    metrics = Metrics()
    http = client(allow, metrics)
    http.post("/mutate", json=reviews.review(reviews.pod()))
    http.post("/mutate", json={})

    def count(**labels: str) -> float | None:
        return metrics.registry.get_sample_value("gpu_share_admission_requests_total", labels)

    assert count(operation="CREATE", result="allowed", reason="NoShare") == 1
    assert count(operation="none", result="errored", reason="BadRequest") == 1
    assert metrics.registry.get_sample_value("gpu_share_admission_duration_seconds_count") == 2
    assert metrics.registry.get_sample_value("gpu_share_admission_requests_in_flight") == 0


def test_series_are_there_before_anything_happened() -> None:
    labels = {"operation": "CREATE", "result": "denied", "reason": "ConflictsWithShare"}

    assert Metrics().registry.get_sample_value("gpu_share_admission_requests_total", labels) == 0


def test_rewrites_a_sharing_pod() -> None:
    response = post(responder()).json["response"]

    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"


def test_the_ceiling_is_that_of_the_requests_namespace() -> None:
    pod = reviews.pod()
    pod["metadata"]["annotations"]["gpu-share.io/memory"] = "9Gi"
    pod["metadata"]["namespace"] = "elsewhere"

    response = post(responder(), reviews.encoded(pod)).json["response"]

    assert (response["allowed"], response["status"]["reason"]) == (False, "AboveMaximum")


def test_a_sharing_pod_is_never_admitted_without_its_ceiling() -> None:
    answer = post(responder(NamespacePolicyCache()))

    assert answer.status_code == 500
    assert "team" in answer.text


def test_what_keeps_no_ceiling_waits_for_none() -> None:
    pod = reviews.pod()
    del pod["metadata"]["annotations"]

    assert post(responder(NamespacePolicyCache()), reviews.encoded(pod)).json["response"]["allowed"] is True


@pytest.mark.parametrize("operation", ["DELETE", "CONNECT"])
@pytest.mark.parametrize("obj", [None, {}, {"kind": "PodExecOptions"}, {"spec": 7}])
def test_never_blocks_a_delete_or_a_connect(operation: str, obj: object) -> None:
    response = post(responder(), reviews.encoded(obj, operation=operation)).json["response"]

    assert response == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}


def test_what_is_no_pod_is_not_ours() -> None:
    other = {"group": "apps", "version": "v1", "resource": "deployments"}

    assert "patch" not in post(responder(), reviews.encoded(reviews.pod(), resource=other)).json["response"]


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_a_pod_review_without_a_pod_is_malformed(operation: str) -> None:
    assert post(responder(), reviews.encoded(None, operation=operation)).status_code == 400


def test_a_dry_run_is_answered_like_a_run() -> None:
    wet, dry = (post(responder(), reviews.encoded(reviews.pod(), dryRun=dry)).data for dry in (False, True))

    assert json.loads(wet) == json.loads(dry)
