"""Claim templates in trouble: nobody answers, names are taken, namespaces come and go, many pods do."""

import threading
from typing import Any

import pytest

from gpushare.errors import ClusterError
from tests.support.patience import holds_within
from tests.unit.webhook.claim_templates.test_references import managed, name_in, template
from tests.unit.webhook.controlled import Clock, Server, make, settle
from webhook.claim_templates.controller import SETTLE_SECONDS, Controller
from webhook.claim_templates.references import TemplateRecord
from webhook.metrics import Metrics


def pods(count: int) -> list[dict[str, Any]]:
    """As many pods, each with a template of its own."""
    made = [managed(uid=f"u{number}", name=f"p{number}", namespace=f"team-{number}") for number in range(count)]
    return [{**pod, "metadata": {**pod["metadata"], "namespace": f"team-{n}"}} for n, pod in enumerate(made)]


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_while_the_api_server_fails_it_is_asked_twice_a_second_and_then_for_everything(
    server: Server, clock: Clock, metrics: Metrics, status: int
) -> None:
    controller = make(server, clock, metrics, opted_in=lambda _: True)
    server.failures = [ClusterError("no", status) for _ in range(20 + 59)]
    controller.reset_pods(pods(20))
    settle(controller)
    for tick in range(1, 300):
        clock.now = tick / 10
        settle(controller)
    assert len(server.writes) == 20 + 59
    assert server.stored == {}

    clock.now = 30.0
    settle(controller)
    settle(controller)
    assert len(server.stored) == 20


def foreign(pod: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A template of the name that the pod's has, but not what it says."""
    return template(name_in(pod), **metadata) | {"spec": {"spec": {"devices": {"requests": []}}}}


@pytest.mark.parametrize("labels", [{}, {"gpu-share.io/managed": "true"}], ids=["unlabelled", "with our label"])
def test_a_name_that_is_taken_is_reported_once_and_what_took_it_stays_until_somebody_deletes_it(
    server: Server,
    controller: Controller,
    clock: Clock,
    metrics: Metrics,
    capsys: pytest.CaptureFixture[str],
    labels: dict[str, str],
) -> None:
    other = foreign(managed(), labels=labels)
    controller.reset_templates([other])
    for number in range(3):
        controller.pod_event("ADDED", managed(uid=f"u{number}"))
        clock.now += 300.0
        settle(controller)
    assert server.writes == []
    assert capsys.readouterr().out.count("TemplateConflict") == 1
    assert metrics.registry.get_sample_value("gpu_share_templates_conflicting") == 1

    controller.template_event("DELETED", other)
    settle(controller)
    assert list(server.stored) == [("team", name_in(managed()))]
    controller.step()
    assert metrics.registry.get_sample_value("gpu_share_templates_conflicting") == 0


def test_a_namespace_that_comes_to_take_part_has_its_templates_made_then(
    server: Server, clock: Clock, metrics: Metrics
) -> None:
    taking_part: set[str] = set()
    controller = make(server, clock, metrics, opted_in=taking_part.__contains__)
    controller.pod_event("ADDED", managed())
    settle(controller)
    assert server.writes == []

    taking_part.add("team")
    controller.namespaces_changed("team")
    settle(controller)
    assert len(server.stored) == 1


def test_a_namespace_that_goes_is_left_alone(server: Server, clock: Clock, metrics: Metrics) -> None:
    taking_part = {"team"}
    controller = make(server, clock, metrics, opted_in=taking_part.__contains__)
    controller.pod_event("ADDED", managed())
    server.failures = [ClusterError("it is being terminated", 403)] * 9
    settle(controller)
    taking_part.clear()
    controller.namespaces_changed()
    clock.now = 100.0
    settle(controller)

    assert len(server.writes) == 1


def test_without_retention_a_template_goes_as_soon_as_it_may_not_be_in_use_unseen(
    server: Server, clock: Clock, metrics: Metrics
) -> None:
    controller = make(server, clock, metrics, retention=0.0)
    controller.template_event("ADDED", template())
    settle(controller)
    clock.now = SETTLE_SECONDS - 0.01
    settle(controller)
    assert server.writes == []

    clock.now = SETTLE_SECONDS
    settle(controller)
    assert [action for action, _ in server.writes] == ["delete"]


def test_what_was_unused_before_the_pods_were_read_waits_from_then(
    server: Server, clock: Clock, metrics: Metrics
) -> None:
    controller = make(server, clock, metrics, listed=False)
    controller.reset_templates([template()])
    clock.now = 1000.0
    controller.reset_pods([])
    settle(controller)
    assert server.writes == []

    clock.now = 1300.0
    settle(controller)
    assert len(server.writes) == 1


class Hanging(Server):
    """One whose answers to deletions do not come."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answers = threading.Semaphore(0), threading.Event()

    def delete(self, item: TemplateRecord) -> str:
        self.asked.release()
        assert self.answers.wait(60)
        return super().delete(item)


def test_what_somebody_waits_for_does_not_stand_behind_what_has_to_go(clock: Clock, metrics: Metrics) -> None:
    server, stop = Hanging(), threading.Event()
    controller = make(server, clock, metrics)
    controller.reset_templates([template(f"gpu-share-{number}", uid=f"t{number}") for number in range(100)])
    thread = threading.Thread(target=controller.run, args=(stop.is_set,))
    thread.start()
    try:
        clock.now = 300.0
        assert server.asked.acquire(timeout=30)
        controller.pod_event("ADDED", managed())
        assert holds_within(lambda: bool(server.stored), 30, 0.01)
    finally:
        stop.set()
        server.answers.set()
        thread.join(60)


def test_of_two_thousand_pods_that_came_and_went_nothing_is_kept(
    server: Server, controller: Controller, clock: Clock
) -> None:
    made = managed()
    for number in range(2000):
        pod = {**made, "metadata": {**made["metadata"], "uid": f"u{number}", "name": f"p{number}"}}
        controller.pod_event("ADDED", pod)
        controller.pod_event("DELETED", pod)
        if number % 500 == 0:
            server.failures = [ClusterError("no", 403)]
            settle(controller)
    clock.now = 400.0
    settle(controller)
    controller.step()

    parts = [controller._index, controller._creating, controller._deleting]
    kept = [name for part in parts for name, value in vars(part).items() if value]
    assert kept == []
    assert not controller._reported
