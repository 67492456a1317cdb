"""The enforcer's report stands in its node's slice: written where it changed, and rarely for problems alone."""

import argparse
import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from enforcer.build_audit import AuditParts
from enforcer.resourceslices import enforcer_report
from enforcer.resourceslices.enforcer_report import APART, MAX_PROBLEM, MAX_PROBLEMS, EnforcerState, ReportPublisher
from enforcer.status.metrics import Metrics
from gpushare.contract import ENFORCER
from gpushare.errors import ClusterError
from gpushare.version import installed
from tests.support.clock import FakeClock
from tests.unit.enforcer.resourceslices.test_audit_head_publisher import GPUS, SLICE, Patchable, offered

WELL: Final = EnforcerState(enforcing=True, breaker=None, audit_log=(), problems=())


class Node:
    """A node's report, and the clock it is published by."""

    def __init__(self, server: Any) -> None:
        self.server, self.now, self.state = server, 0.0, WELL
        self.publisher = ReportPublisher(server, "n1", lambda: self.state, FakeClock(lambda: self.now))

    def look(self, **changed: Any) -> dict[str, Any]:
        self.state = replace(self.state, **changed)
        self.publisher.run_once()
        text = self.server.items[SLICE]["metadata"]["annotations"].get(ENFORCER, "{}")
        found: dict[str, Any] = json.loads(text)
        return found


@pytest.fixture
def server() -> Any:
    found = Patchable()
    offered(found)
    return found


@pytest.fixture
def node(server: Any) -> Node:
    return Node(server)


def test_the_report_is_written_once_and_again_when_something_changed(server: Any, node: Node) -> None:
    expected = {"version": installed(), "enforcing": True, "breaker": None, "breakerReason": ""}
    expected |= {"auditLog": "", "problems": []}
    assert node.look() == expected
    node.look()
    assert server.patches == 1
    assert node.look(breaker="2026-11-24T10:00:00Z")["breaker"] == "2026-11-24T10:00:00Z"
    assert node.look(breaker=None) == expected
    assert (
        node.look(audit_log=("no space left", "record 4 is changed"))["auditLog"]
        == "no space left; record 4 is changed"
    )
    assert node.look(enforcing=False)["enforcing"] is False
    assert server.patches == 5


def test_other_problems_alone_are_written_once_a_minute(server: Any, node: Node) -> None:
    node.look()
    for number in range(50):
        node.now += 1
        node.look(problems=(f"silent for {number} s",))
    assert server.patches == 1
    node.now = APART
    assert node.look(problems=("silent",))["problems"] == ["silent"]


def test_the_end_of_all_problems_is_written_at_once(server: Any, node: Node) -> None:
    node.look(problems=("a",))
    assert node.look(problems=())["problems"] == []
    node.now = APART - 1
    assert node.look(problems=("b",))["problems"] == [], "new ones wait: two writes a minute at most"


def test_a_report_has_a_bound(node: Node) -> None:
    found = node.look(problems=("x" * 9999,) * 99, audit_log=("y" * 9999,))
    assert (len(found["problems"]), len(found["problems"][0]), len(found["auditLog"])) == (
        MAX_PROBLEMS, MAX_PROBLEM, MAX_PROBLEM,
    )  # fmt: skip


WRONG: Final = ([None, "no space"], [None, "it is immutable"], [None, "record 4 is changed"], [None, "cut"])


@pytest.mark.parametrize("wrong", list(product(*WRONG)))
def test_each_problem_of_the_audit_log_is_urgent_whatever_else_is_wrong_with_it(
    tmp_path: Path, wrong: tuple[str | None, ...]
) -> None:
    shortage, unwritable, broken, lost = wrong
    writer, verifier = SimpleNamespace(problem=None), SimpleNamespace(problem=broken, unwritable=unwritable)
    parts = SimpleNamespace(records=SimpleNamespace(shortage=shortage), writer=writer, verifier=verifier)
    reported: Any = partial(AuditParts.reported, parts)  # type: ignore[arg-type] # a stand-in
    metrics = Metrics()
    metrics.latest.update({"problems": [*filter(None, wrong), "MPS is away"]})
    options = argparse.Namespace(no_enforce=False, state=tmp_path)
    found = reported(options, metrics, SimpleNamespace(lost=lost))
    assert (found.audit_log, found.problems) == (tuple(filter(None, wrong)), ("MPS is away",))


def test_a_new_offer_keeps_the_report_and_a_new_slice_gets_it_again(server: Any, node: Node) -> None:
    expected = node.look()
    assert not offered(server), "an annotation of another writer is no reason to write the slices"
    assert offered(server, foreign_mib={GPUS[0].uuid: 1024})
    assert json.loads(server.items[SLICE]["metadata"]["annotations"][ENFORCER]) == expected
    server.items[SLICE]["metadata"]["annotations"] = {ENFORCER: "junk"}
    assert node.look() == expected


def test_what_fails_is_tried_again_and_without_a_slice_nothing_is_written(server: Any, node: Node) -> None:
    server.problem = ClusterError("away", 503)
    assert node.look() == {}
    server.problem = None
    assert node.look()["version"] == installed()
    server.items.clear()
    node.publisher.run_once()


def test_a_state_that_cannot_be_read_ends_nothing(server: Any) -> None:
    def away() -> EnforcerState:
        raise OSError("disk")

    enforcer_report.ReportPublisher(server, "n1", away).run_once()
    assert server.patches == 0


def test_a_report_that_cannot_be_published_for_long_makes_the_enforcer_unready(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.look()
    monkeypatch.setattr(node.server, "list", Unreachable().list)
    node.now += enforcer_report.STALE
    node.look()
    assert node.publisher.stale() is None, "an API server may be replaced meanwhile"
    node.now += 1
    why = node.publisher.stale()
    assert why is not None
    assert "away" in why
    monkeypatch.undo()
    node.look()
    assert node.publisher.stale() is None


class Unreachable:
    """An API server that does not answer."""

    def list(self, *_: Any, **__: Any) -> Any:
        raise ClusterError("away", 0)
