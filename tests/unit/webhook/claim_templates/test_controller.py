"""The loop that keeps claim templates, against a scripted API server."""

import threading
import time

import pytest

from gpushare.errors import ClusterError
from gpushare.reasons import Reason
from tests.unit.webhook.claim_templates.test_references import managed, name_in, template
from tests.unit.webhook.controlled import Clock, Server, make, settle
from webhook.claim_templates.controller import Controller
from webhook.claim_templates.references import TemplateRecord
from webhook.metrics import Metrics
from webhook.mutation.demand import Demand


def test_a_pod_gets_its_template(server: Server, controller: Controller) -> None:
    pod = managed()
    controller.pod_event("ADDED", pod)
    settle(controller)

    assert list(server.stored) == [("team", name_in(pod))]
    assert server.stored[("team", name_in(pod))]["metadata"]["labels"]["gpu-share.io/managed"] == "true"


def test_a_share_that_its_namespace_does_not_allow_gets_no_template_until_it_does(
    server: Server, clock: Clock, metrics: Metrics
) -> None:
    allowed: list[bool] = []

    def refusal(_namespace: str, demand: Demand) -> tuple[Reason, str] | None:
        return None if allowed else (Reason.ABOVE_MAXIMUM, str(demand.memory_mib))

    controller = make(server, clock, metrics, refusal=refusal)
    pod = managed()
    for _ in range(2):
        controller.pod_event("MODIFIED", pod)
        settle(controller)
    assert server.writes == []
    assert server.told == [(pod["metadata"]["name"], Reason.ABOVE_MAXIMUM, "4096")]

    allowed.append(True)
    controller.namespaces_changed("team")
    settle(controller)
    assert list(server.stored) == [("team", name_in(pod))]


def test_nothing_is_written_before_the_templates_are_listed(server: Server, clock: Clock, metrics: Metrics) -> None:
    controller = make(server, clock, metrics, listed=False)
    controller.pod_event("ADDED", managed())
    controller.reset_pods([managed()])
    controller.admitted("team", managed(uid="u2"))
    settle(controller)
    assert server.writes == []

    controller.reset_templates([])
    settle(controller)
    assert len(server.writes) == 1


def test_a_missing_template_is_made_before_the_pods_are_listed(server: Server, clock: Clock, metrics: Metrics) -> None:
    controller = make(server, clock, metrics, listed=False)
    controller.reset_templates([])
    controller.pod_event("ADDED", managed())
    settle(controller)
    assert [action for action, _ in server.writes] == ["create"]


def test_nothing_is_deleted_before_the_pods_are_listed(server: Server, clock: Clock, metrics: Metrics) -> None:
    controller = make(server, clock, metrics, listed=False)
    controller.reset_templates([template()])
    clock.now = 10_000.0
    settle(controller)
    assert server.writes == []


def test_pods_that_came_while_it_was_away_get_theirs(server: Server, controller: Controller) -> None:
    controller.reset_pods([managed()])
    settle(controller)

    assert len(server.stored) == 1


def test_several_replicas_make_one(server: Server, clock: Clock, metrics: Metrics) -> None:
    replicas = [make(server, clock, metrics) for _ in range(3)]
    for replica in replicas:
        replica.pod_event("ADDED", managed())
    server.watched = False
    due = [write for replica in replicas for write in replica.step()]
    for write in due:
        write()

    assert len(due) == 3
    assert len(server.stored) == 1
    counted = metrics.registry.get_sample_value
    assert counted("gpu_share_template_operations_total", {"action": "create", "result": "ok"}) == 1
    assert counted("gpu_share_template_operations_total", {"action": "create", "result": "exists"}) == 2


def test_what_another_replica_made_meanwhile_is_not_asked_for(server: Server, clock: Clock, metrics: Metrics) -> None:
    replicas = [make(server, clock, metrics) for _ in range(3)]
    for replica in replicas:
        replica.pod_event("ADDED", managed())
    for write in [write for replica in replicas for write in replica.step()]:
        write()

    assert len(server.writes) == 1
    assert all(replica.step() == [] for replica in replicas)


def test_a_refused_write_is_tried_again_with_pauses(server: Server, controller: Controller, clock: Clock) -> None:
    server.failures = [ClusterError("no", 403), ClusterError("no", 403)]
    controller.pod_event("ADDED", managed())
    for moment in (0.0, 0.5, 1.0, 1.5, 2.5, 3.0):
        clock.now = moment
        settle(controller)

    assert len(server.writes) == 3
    assert len(server.stored) == 1


def test_a_template_that_goes_while_it_is_named_comes_back_at_once(server: Server, controller: Controller) -> None:
    pod = managed()
    controller.pod_event("ADDED", pod)
    settle(controller)
    server.show("DELETED", server.stored.pop(("team", name_in(pod))))
    settle(controller)

    assert list(server.stored) == [("team", name_in(pod))]


def test_an_unused_template_goes_after_its_time(server: Server, controller: Controller, clock: Clock) -> None:
    pod = managed()
    controller.pod_event("ADDED", pod)
    settle(controller)
    controller.pod_event("DELETED", pod)
    settle(controller)
    clock.now = 299.0
    settle(controller)
    assert len(server.stored) == 1

    clock.now = 300.0
    settle(controller)
    assert server.stored == {}


def test_a_finished_pod_uses_its_template_no_longer(server: Server, controller: Controller, clock: Clock) -> None:
    controller.pod_event("ADDED", managed())
    settle(controller)
    controller.pod_event("MODIFIED", {**managed(), "status": {"phase": "Succeeded"}})
    settle(controller)
    clock.now = 300.0
    settle(controller)

    assert server.stored == {}


def test_a_pod_that_appears_while_its_template_goes_gets_a_new_one(
    server: Server, controller: Controller, clock: Clock
) -> None:
    controller.pod_event("ADDED", managed())
    settle(controller)
    controller.pod_event("DELETED", managed())
    settle(controller)
    clock.now = 300.0
    deletion = controller.step()
    controller.pod_event("ADDED", managed(uid="u2"))
    settle(controller)
    for write in deletion:
        write()
    assert [action for action, _ in server.writes] == ["create"], "it is in use again"
    assert controller.step() == []

    server.delete(TemplateRecord(key=("team", name_in(managed())), uid="t1", version="1"))  # by another replica
    assert server.stored == {}
    settle(controller)
    assert len(server.stored) == 1


def test_another_template_of_that_name_is_not_deleted(server: Server, controller: Controller, clock: Clock) -> None:
    controller.reset_templates([template(uid="old")])
    settle(controller)
    server.stored[("team", "gpu-share-1")] = template(uid="new")
    clock.now = 300.0
    settle(controller)

    assert server.writes == [("delete", ("team", "gpu-share-1"))]
    assert list(server.stored) == [("team", "gpu-share-1")]


def test_what_is_not_ours_stays(server: Server, controller: Controller, clock: Clock) -> None:
    controller.reset_templates([template(labels={}), template("mine")])
    settle(controller)
    clock.now = 1000.0
    settle(controller)

    assert server.writes == []


def test_a_forged_reference_is_reported_once_and_not_created(
    server: Server, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = managed()
    pod["spec"] = {
        **pod["spec"],
        "resourceClaims": [{"name": "gpu-share", "resourceClaimTemplateName": "gpu-share-ff"}],
    }
    for _ in range(3):
        controller.pod_event("MODIFIED", pod)
        settle(controller)

    assert server.writes == []
    assert capsys.readouterr().out.count("TemplateMismatch") == 1


def test_says_how_many_pods_wait(controller: Controller, metrics: Metrics) -> None:
    controller.pod_event("ADDED", managed())
    controller.step()

    assert metrics.registry.get_sample_value("gpu_share_templates_missing") == 1


def test_a_template_is_there_at_once_and_not_when_it_is_looked_again(
    server: Server, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.claim_templates.controller.IDLE_SECONDS", 60.0)
    controller = make(server, time.monotonic, metrics)
    stop = threading.Event()
    thread = threading.Thread(target=controller.run, args=(stop.is_set,))
    thread.start()
    try:
        controller.pod_event("ADDED", managed())
        deadline = time.monotonic() + 30
        while not server.stored and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.stored
    finally:
        stop.set()
        controller._wake.set()
        thread.join(30)
