"""A step that cannot be done is a violation, healing is waited for, and what tenants noticed is counted."""

import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.rehearsal import taking, tenants
from tests.rehearsal.api import Api
from tests.rehearsal.journal import Noticed
from tests.rehearsal.sampling import Machine, Place, Sampler, Seen
from tests.rehearsal.state import LABEL, PLAIN, STEADY, Object, State, kind
from tests.rehearsal.steps import Step
from tests.rehearsal.tenants import tenant
from tests.unit.rehearsal.test_sampling import Answering


def steady(uid: str, restarts: int = 0) -> Object:
    status = {"name": "main", "restartCount": restarts, "state": {"running": {}}}
    made = "2026-01-01T00:00:00Z"
    meta = {"name": uid, "namespace": "team", "uid": uid, "labels": {LABEL: STEADY}, "creationTimestamp": made}
    return {"metadata": meta, "spec": {}, "status": {"phase": "Running", "containerStatuses": [status]}}


BEFORE = State(time=100.0, pods=(steady("a"), steady("b")), daemons={"gpu-0": (7,)})


class Looks:
    """States in the order in which they are seen; the last one stays."""

    def __init__(self, *states: State) -> None:
        self._states = list(states)

    def __call__(self, _: Place, __: Seen, *, check: tuple[str, ...] | None = None, red: bool | None = None) -> State:
        found = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        return replace(found, check=check, red=red)


@pytest.fixture(name="stage")
def _stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> taking.Stage:
    for name, value in (("CHURNING", 0.0), ("PAUSE", 0.01), ("HEALED", 0.5), ("wrong", lambda _: ())):
        monkeypatch.setattr(taking, name, value)
    monkeypatch.setattr(Answering, "delete", lambda *_: 200)
    monkeypatch.setattr(Answering, "post", lambda *_: (201, {"spec": {}}))
    api = Answering.__new__(Answering)
    machine = Machine(name="n", home=tmp_path, cgroup="no-such", holder=1)
    place = Place(api=api, machines=(machine,), namespace="team", probe={})
    monkeypatch.setattr(taking, "each_node", lambda site: [site])
    site: Any = None
    return taking.Stage(site, place, Sampler(place))


def step(act: Any) -> Step:
    return Step(name="something", part="webhook", act=act)


def refuse(*_: object) -> None:
    raise AssertionError("helm said no")


def test_all_that_does_not_hold_at_first_is_waited_for(stage: taking.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "look", Looks(BEFORE, replace(BEFORE, cdi=frozenset({"stale"})), BEFORE))
    entry = stage.take(step(lambda *_: None), 1, 2)
    assert (entry.violations, entry.healed is None, entry.number) == ((), False, 2)


@pytest.mark.parametrize(
    ("act", "found", "words"),
    [
        (refuse, BEFORE, "the step failed: helm said no"),
        (lambda *_: None, replace(BEFORE, cdi=frozenset({"stale"})), "CDI file of claim stale"),
        (lambda *_: False, BEFORE, "gpu-share check was green while a part was away"),
    ],
)
def test_what_stays_wrong_is_in_the_entry(
    stage: taking.Stage, monkeypatch: pytest.MonkeyPatch, act: Any, found: State, words: str
) -> None:
    monkeypatch.setattr(taking, "look", Looks(BEFORE, found))
    assert any(words in each for each in stage.take(step(act), 1, 2).violations)


def test_a_step_begins_as_soon_as_the_api_server_answers(stage: taking.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, away = Looks(BEFORE), [LookupError("it is busy")]

    def look(*found: Any, **more: Any) -> State:
        if away:
            raise away.pop()
        return looks(*found, **more)

    monkeypatch.setattr(taking, "look", look)
    assert stage.take(step(lambda *_: None), 1, 2).violations == ()


def test_a_share_that_is_refused_to_the_end_is_a_violation(
    stage: taking.Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "look", Looks(BEFORE))
    monkeypatch.setattr(Answering, "post", lambda *_: (500, {}))
    assert stage.take(step(lambda *_: None), 1, 2).violations == (taking.REFUSED,)


def test_a_step_that_is_not_possible_is_not_taken(stage: taking.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking, "look", Looks(BEFORE))
    entry = stage.take(replace(step(refuse), ready=lambda _: False), 1, 2)
    assert (entry.name, entry.violations) == ("something (not possible)", ())


def test_restarts_losses_and_new_daemons_are_counted() -> None:
    seen = Seen(daemons={"gpu-0": {7: None, 8: None}, "gpu-1": {9: None}}, refused=2.04, unwatched=3.0, waited=5.0)
    now = replace(BEFORE, pods=(steady("a", 2), steady("c")))
    assert taking.noticed(BEFORE, now, seen) == Noticed(
        refused=2.0, unwatched=3.0, waited=5.0, restarts=2, lost=1, daemons=2
    )
    assert taking.noticed(BEFORE, None, seen).lost == 0


class Recording(Api):
    """Notes which pods that stay were created, and are not deleted yet."""

    staying: set[str]

    def post(self, where: str, body: Object) -> tuple[int, Object]:
        if kind(body) == PLAIN:
            self.staying.add(body["metadata"]["name"])
        return 201, {}

    def delete(self, where: str) -> int:
        self.staying.discard(where.rpartition("/")[2])
        return 200


def test_however_long_a_step_takes_few_pods_of_the_churn_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "PAUSE", 0.0)
    monkeypatch.setattr(Recording, "staying", set(), raising=False)
    api = Recording.__new__(Recording)
    with tenants.Churn(api, "team", Random(5), "s") as churn:
        while len(churn.made) < 60:
            time.sleep(0.01)
    assert 0 < len(api.staying) <= tenants.MOST


def test_the_tenants_of_a_seed_are_the_same_each_time() -> None:
    assert tenant("x", STEADY, Random(5)) == tenant("x", STEADY, Random(5))
