import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from enforcer.pod_deletion.terminating_pods import GONE_SECONDS, TerminatingPods
from enforcer.quota.informer import AllocatedClaims, QuotaInformer
from enforcer.runtime.clock import CLOCK
from gpushare.errors import ClusterError
from tests.support.clock import FakeClock
from tests.unit.enforcer.pod_deletion.test_deadlines import WALL, pod


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


@pytest.fixture(name="seen")
def _seen(clock: Clock) -> TerminatingPods:
    return TerminatingPods(FakeClock(clock, WALL.timestamp))


def named(uid: str, source: dict[str, Any]) -> dict[str, Any]:
    source["metadata"]["uid"] = uid
    return source


RUNNING: dict[str, Any] = {"containerStatuses": [{"state": {"running": {}}}]}
ENDED: dict[str, Any] = {"containerStatuses": [{"state": {"terminated": {}}}]}


def test_a_pod_leaves_from_its_deletion_until_its_object_is_gone(seen: TerminatingPods) -> None:
    seen.replace([pod()])
    assert seen.of_gpu({"a"}) == []
    seen.on_event("MODIFIED", pod(30))
    assert [each.end for each in seen.of_gpu({"a"})] == [1030.0]
    assert seen.of_gpu({"b"}) == []
    seen.on_event("DELETED", pod(30, **ENDED))
    assert seen.of_gpu({"a"}) == []


def test_half_of_its_grace_counts_from_when_we_saw_it_begin(seen: TerminatingPods) -> None:
    seen.replace([pod()])
    seen.on_event("MODIFIED", pod(-60))
    (found,) = seen.of_gpu({"a"})
    assert found.earliest == 1015.0


def test_a_forced_deletion_is_followed_until_its_processes_are_dead(seen: TerminatingPods, clock: Clock) -> None:
    seen.replace([pod(**RUNNING)])
    seen.on_event("DELETED", pod(**RUNNING))
    assert [each.due(1) for each in seen.of_gpu({"a"})] == [1000.0]
    clock.now += GONE_SECONDS + 1
    assert seen.of_gpu({"a"}) == []


def refusing(*_: str) -> None:
    raise ClusterError("the API server does not answer")


def test_a_pod_that_one_list_lacks_is_what_it_was(seen: TerminatingPods) -> None:
    """Who is released has lost its GPU for good, and one list may be wrong."""
    seen.replace([named("a", pod()), named("b", pod(30))])
    seen.replace([])
    assert [(each.uid, each.end) for each in seen.of_gpu({"a", "b"})] == [("b", 1030.0)]
    seen.resync(refusing)
    assert [(each.uid, each.end) for each in seen.of_gpu({"a", "b"})] == [("b", 1030.0)]
    seen.on_event("MODIFIED", named("a", pod(-60)))
    assert [each.earliest for each in seen.of_gpu({"a"})] == [1015.0], "it is known to have been alive until now"


def test_a_pod_that_a_list_lacks_is_asked_for_by_its_name(seen: TerminatingPods) -> None:
    asked = list[tuple[str, str]]()
    here = {"a": named("a", pod()), "c": named("another", pod())}
    for uid in "abcd":
        one = named(uid, pod())
        one["metadata"] |= {"namespace": "asr", "name": uid}
        seen.on_event("ADDED", one)
    assert not seen.doubted.is_set()
    seen.replace([named("d", pod())])
    assert seen.doubted.is_set()

    def ask(namespace: str, name: str) -> dict[str, Any] | None:
        asked.append((namespace, name))
        return here.get(name)

    seen.resync(ask)
    assert sorted(asked) == [("asr", "a"), ("asr", "b"), ("asr", "c")]
    assert sorted(each.uid for each in seen.of_gpu({*"abcd"})) == ["b", "c"], "no such pod, and another of that name"
    asked.clear()
    seen.resync(ask)
    assert asked == []
    seen.replace([named("d", pod())])
    assert sorted(each.uid for each in seen.of_gpu({*"abcd"})) == ["b", "c"], "one that was there counts from the start"


def test_what_the_watch_says_meanwhile_counts(seen: TerminatingPods) -> None:
    seen.replace([pod()])
    seen.replace([])

    def ask(*_: str) -> None:
        seen.on_event("MODIFIED", pod())

    seen.resync(ask)
    assert seen.of_gpu({"a"}) == []


def test_a_pod_that_two_lists_lack_was_deleted_by_force_or_is_dead(seen: TerminatingPods, clock: Clock) -> None:
    seen.replace([named("a", pod()), named("b", pod(30)), named("c", pod())])
    seen.replace([named("c", pod())])
    seen.replace([named("c", pod())])
    assert sorted(each.uid for each in seen.of_gpu({"a", "b", "c"})) == ["a", "b"]
    clock.now += GONE_SECONDS - 1
    seen.replace([named("c", pod())])
    clock.now += 2
    assert seen.of_gpu({"a", "b", "c"}) == [], "another list does not begin it anew"


def test_a_pod_that_is_seen_alive_is_not_leaving_whatever_was_taken_for_its_end(
    seen: TerminatingPods, clock: Clock
) -> None:
    seen.replace([named("a", pod()), named("b", pod())])
    seen.replace([named("b", pod())])
    seen.resync(lambda *_: None)
    seen.on_event("DELETED", named("b", pod(**RUNNING)))
    assert sorted(each.uid for each in seen.of_gpu({"a", "b"})) == ["a", "b"]
    seen.replace([named("a", pod())])
    assert [each.uid for each in seen.of_gpu({"a", "b"})] == ["b"]
    seen.on_event("ADDED", named("b", pod()))
    assert seen.of_gpu({"a", "b"}) == []
    seen.on_event("MODIFIED", named("a", pod(30)))
    clock.now += 29
    assert [each.end for each in seen.of_gpu({"a", "b"})] == [1030.0], "and it is forgotten by what it is, not by then"


def test_workers_are_woken_by_a_deletion_and_by_nothing_else(seen: TerminatingPods) -> None:
    woken = threading.Event()
    seen.subscribe(woken)
    seen.replace([pod()])
    seen.on_event("MODIFIED", pod())
    assert not woken.is_set()
    seen.on_event("MODIFIED", pod(30))
    assert woken.is_set()
    woken.clear()
    seen.on_event("MODIFIED", pod(30, **RUNNING))
    assert not woken.is_set()


def test_it_hears_of_pods_from_the_watch_that_quotas_come_from(seen: TerminatingPods) -> None:
    books = QuotaInformer(AllocatedClaims("gpu-7"), threading.Event(), [seen])
    books.replace("claims", [named("x", pod(30))])
    assert seen.of_gpu({"x"}) == []
    books.replace("pods", [pod()])
    books.on_event("pods", "MODIFIED", pod(30))
    assert len(seen.of_gpu({"a"})) == 1


def test_a_listeners_bug_ends_neither_the_watch_nor_the_others(
    seen: TerminatingPods, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken:
        def replace(self, pods: Any) -> None:
            raise RuntimeError("bug")

        def on_event(self, change: str, pod: Any) -> None:
            raise RuntimeError("bug")

    books = QuotaInformer(AllocatedClaims("gpu-7"), threading.Event(), [Broken(), seen])
    books.replace("pods", [pod()])
    books.on_event("pods", "MODIFIED", pod(30))
    assert len(seen.of_gpu({"a"})) == 1
    assert books.pods() == frozenset({"a"})
    assert "InternalError" in capsys.readouterr().out


def test_the_wall_clock_is_read_in_utc() -> None:
    seen = TerminatingPods(FakeClock(lambda: 0.0, CLOCK.wall))
    seen.replace(
        [{"metadata": {"uid": "a", "deletionTimestamp": "2000-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}}]
    )
    (found,) = seen.of_gpu({"a"})
    assert found.end == pytest.approx((datetime(2000, 1, 1, tzinfo=UTC) - datetime.now(UTC)).total_seconds(), abs=5)
