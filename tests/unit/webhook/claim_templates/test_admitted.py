"""Templates of pods that are admitted and not stored yet, against a scripted API server."""

import threading

import pytest

from tests.unit.webhook.claim_templates.test_references import managed, name_in, template
from tests.unit.webhook.controlled import Clock, Server, make, settle
from webhook.claim_templates import controller as controlling
from webhook.claim_templates.controller import EXPECTED_SECONDS, Controller
from webhook.metrics import Metrics
from webhook.must_wait import MustWait

LONG = 30.0
"""Seconds that nobody waits for: a test that depends on them hangs visibly."""


@pytest.fixture(name="at_once")
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controlling, "ADMISSION_WAIT", 0.0)


@pytest.mark.usefixtures("at_once")
def test_an_admitted_pod_has_its_template_made_in_the_namespace_of_the_request(
    server: Server, controller: Controller
) -> None:
    pod = managed(namespace="forged")
    controller.admitted("team", pod)
    settle(controller)

    assert list(server.stored) == [("team", name_in(pod))]


@pytest.mark.usefixtures("at_once")
def test_an_admitted_pod_has_its_template_made_before_the_pods_are_listed(
    server: Server, clock: Clock, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controlling, "MAX_UNUSED", 1)
    controller = make(server, clock, metrics, listed=False)
    controller.reset_templates([template(name="gpu-share-0000000000000000")])
    controller.admitted("team", managed())
    settle(controller)

    assert [action for action, _ in server.writes] == ["create"], "which templates are unused is not known yet"


def test_admission_waits_until_the_template_is_there(
    server: Server, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controlling, "ADMISSION_WAIT", LONG)
    review = threading.Thread(target=controller.admitted, args=("team", managed()), daemon=True)
    review.start()
    while not server.stored:
        settle(controller)
        assert review.is_alive() or server.stored
    review.join(LONG / 2)

    assert not review.is_alive()


def test_a_thread_that_must_not_wait_does_nothing_but_say_so(
    server: Server, clock: Clock, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controlling, "ADMISSION_WAIT", LONG)
    controller = make(server, clock, metrics, may_wait=lambda: False)
    with pytest.raises(MustWait):
        controller.admitted("team", managed())
    settle(controller)
    assert not server.writes

    controller.pod_event("ADDED", managed())
    settle(controller)
    controller.admitted("team", managed(uid="u2"))  # its template is there


def test_a_template_that_is_there_is_not_waited_for(
    server: Server, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.pod_event("ADDED", managed())
    settle(controller)
    monkeypatch.setattr(controlling, "ADMISSION_WAIT", LONG)
    review = threading.Thread(target=controller.admitted, args=("team", managed(uid="u2")), daemon=True)
    review.start()
    review.join(LONG / 2)

    assert not review.is_alive()
    assert len(server.writes) == 1


@pytest.mark.usefixtures("at_once")
def test_the_template_of_a_pod_that_was_denied_later_is_unused_from_then_on(
    server: Server, controller: Controller, clock: Clock
) -> None:
    controller.admitted("team", managed())
    settle(controller)
    clock.now = EXPECTED_SECONDS
    settle(controller)
    clock.now = EXPECTED_SECONDS + 299.0
    settle(controller)
    assert len(server.stored) == 1

    clock.now = EXPECTED_SECONDS + 300.0
    settle(controller)
    assert server.stored == {}


@pytest.mark.usefixtures("at_once")
def test_a_pod_that_was_stored_keeps_its_template(server: Server, controller: Controller, clock: Clock) -> None:
    controller.admitted("team", managed())
    settle(controller)
    controller.pod_event("ADDED", managed())
    for clock.now in (EXPECTED_SECONDS, EXPECTED_SECONDS + 400.0):
        settle(controller)

    assert len(server.stored) == 1


@pytest.mark.usefixtures("at_once")
def test_a_pod_without_a_share_or_with_a_forged_name_has_none_made(server: Server, controller: Controller) -> None:
    forged = managed()
    forged["spec"] = {**forged["spec"], "resourceClaims": [dict(forged["spec"]["resourceClaims"][0])]}
    forged["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "gpu-share-0123456789abcdef"
    controller.admitted("team", forged)
    controller.admitted("team", {"metadata": {"name": "plain"}, "spec": {}})
    settle(controller)

    assert server.writes == []


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("bound", "pause"), [("MAX_EXPECTED", 0.0), ("MAX_UNUSED", EXPECTED_SECONDS)])
def test_reviews_cannot_have_any_number_of_templates_made(
    server: Server, clock: Clock, metrics: Metrics, monkeypatch: pytest.MonkeyPatch, bound: str, pause: float
) -> None:
    monkeypatch.setattr(controlling, bound, 2)
    controller = make(server, clock, metrics, opted_in=lambda _: True)
    for number in range(5):
        controller.admitted(f"team-{number}", managed())
        settle(controller)
        clock.now += pause
        settle(controller)
    assert len(server.stored) == 2

    controller.pod_event("ADDED", managed(namespace="stored"))
    settle(controller)
    assert ("stored", name_in(managed())) in server.stored
