import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from enforcer.quota.types import pod_row
from enforcer.runtime.manager import Manager
from enforcer.status import api_writer as module
from enforcer.status.api_writer import QUEUE, ApiWriter
from enforcer.status.events import EventRecorder, NodeEvent, event_of
from enforcer.status.messages import NOTE_BYTES, UserMessage
from gpushare.errors import ClusterError
from gpushare.reasons import Reason
from tests.support.patience import holds_within
from tests.unit.enforcer.made import POD, quota

NODE = "n1"
WHEN = datetime(2026, 11, 20, 22, 16, 5, 123456, UTC)


def notice(note: str = "killed") -> UserMessage:
    return UserMessage(quota=quota(), reason=Reason.KILLED, note=note, action="Kill")


def test_an_event_is_on_the_pod_and_short_enough() -> None:
    event = event_of(NODE, notice("x\n" * 5000), WHEN)
    assert event["eventTime"] == "2026-11-20T22:16:05.123456Z"
    assert event["regarding"]["uid"] == POD
    assert event["metadata"]["namespace"] == event["regarding"]["namespace"] == "asr"
    assert len(event["note"].encode()) <= NOTE_BYTES
    assert (event["type"], event["reason"], event["action"]) == ("Warning", "Killed", "Kill")


def test_an_event_about_a_whole_pod_names_no_container() -> None:
    assert event_of(NODE, notice(), WHEN)["regarding"]["fieldPath"] == "spec.containers{model}"
    whole = replace(notice(), quota=pod_row(quota(), 512))
    assert "fieldPath" not in event_of(NODE, whole, WHEN)["regarding"]


class Api:
    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.created: list[dict[str, Any]] = []
        self.calls = 0

    def create(self, where: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        self.created.append(body | {"where": where})
        return body


def deliver(api: Api, *notices: UserMessage) -> None:
    writer = ApiWriter()
    events = EventRecorder(api, NODE, writer)  # type: ignore[arg-type] # a stand-in
    for each in notices:
        events.record(each)
    writer.run_once()


def test_notices_are_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    api = Api(ClusterError("not there"), ClusterError("busy", 503), ClusterError("too many requests", 429))
    deliver(api, notice("one"), notice("two"))
    assert [event["note"] for event in api.created] == ["one", "two"]
    assert api.created[0]["where"] == "/apis/events.k8s.io/v1/namespaces/asr/events"


def test_a_notice_that_is_refused_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    api = Api(ClusterError("namespace is being terminated", 403))
    deliver(api, notice("one"), notice("two"))
    assert api.calls == 2
    assert [event["note"] for event in api.created] == ["two"]


def test_a_bug_over_one_notice_is_not_the_end_of_telling() -> None:
    api = Api(ValueError("a bug"))
    deliver(api, notice("one"), notice("two"))
    assert [event["note"] for event in api.created] == ["two"]


def test_notices_never_wait_even_if_nobody_takes_them() -> None:
    writer = ApiWriter()
    events = EventRecorder(Api(), NODE, writer)  # type: ignore[arg-type] # a stand-in
    begun = time.monotonic()
    for _ in range(10 * QUEUE):
        events.record(notice())
    assert time.monotonic() - begun < 5
    assert len(writer._writes) == QUEUE
    events.record_on_node(NodeEvent(Reason.CONTENDED, "note"))
    assert len(writer._writes) == QUEUE + 1, "tenants' notices leave room for others"


def test_the_thread_that_writes_is_woken_and_what_is_left_is_written_at_the_end() -> None:
    api, manager, writer = Api(), Manager(), ApiWriter()
    manager.add_server("last writes", None, writer.run_once)
    manager.add("api-writer", writer.run_once, wake=writer.wake)
    manager.start()
    events = EventRecorder(api, NODE, writer)  # type: ignore[arg-type] # a stand-in
    events.record(notice("one"))
    assert holds_within(lambda: api.created, 20)
    manager.stop()
    events.record(notice("two"))
    manager.stop()
    assert [event["note"] for event in api.created] == ["one", "two"]
