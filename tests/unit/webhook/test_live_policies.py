"""NamespacePolicyCache that no watch has shown: what is kept, how much is asked, what strangers learn."""

import threading
from typing import Any

import pytest

from gpushare.contract import NAMESPACE_LABEL
from gpushare.errors import ClusterError, GpuShareError, PolicyDenied
from webhook import live_policies
from webhook.caches import NamespacePolicyCache
from webhook.live_policies import LivePolicies
from webhook.must_wait import MustWait

Object = dict[str, Any]


def namespace(name: str, *, opted_in: bool = True, **annotations: str) -> Object:
    labels = {NAMESPACE_LABEL: "true"} if opted_in else {}
    ours = {f"gpu-share.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
    return {"metadata": {"name": name, "labels": labels, "annotations": ours}}


class Server:
    """An API server with namespaces, and a clock."""

    def __init__(self, *namespaces: Object) -> None:
        self.namespaces = {each["metadata"]["name"]: each for each in namespaces}
        self.asked: list[str] = []
        self.now, self.status = 100.0, 0

    def get(self, name: str) -> Object:
        self.asked.append(name)
        if self.status:
            raise ClusterError(f"GET {name}: 10.0.0.1 says no", self.status)
        if name not in self.namespaces:
            raise ClusterError(f"GET {name}: not found", 404)
        return self.namespaces[name]

    def policies(self) -> LivePolicies:
        return LivePolicies(self.get, lambda: self.now)


def refusal(known: NamespacePolicyCache, name: str) -> tuple[str, str]:
    with pytest.raises(GpuShareError) as caught:
        known.policy(name)
    assert not isinstance(caught.value, PolicyDenied)
    return caught.value.reason, caught.value.message.replace(name, "NAME") if name else caught.value.message


def test_an_answer_is_kept_for_a_while_and_then_asked_for_again() -> None:
    server = Server(namespace("team", max_memory="2Gi"))
    known = NamespacePolicyCache(server.policies())
    for name in ("team", "none"):
        for _ in range(3):
            if name == "team":
                assert known.policy(name).max_memory_mib == 2048
            else:
                refusal(known, name)
    assert server.asked == ["team", "none"]

    server.now += live_policies.KEPT_SECONDS
    server.namespaces["none"] = namespace("none", max_memory="1Gi")
    assert known.policy("none").max_memory_mib == 1024
    assert known.policy("team").max_memory_mib == 2048
    assert server.asked == ["team", "none", "none", "team"]


def test_missing_and_not_opted_in_are_answered_alike() -> None:
    server = Server(namespace("outside", opted_in=False, max_memory="2Gi"))
    known = NamespacePolicyCache(server.policies())

    assert refusal(known, "outside") == refusal(known, "missing")
    assert len(server.asked) == 2


def test_a_mistake_in_the_annotations_of_others_is_not_shown() -> None:
    server = Server(namespace("outside", opted_in=False, max_memory="lots"), namespace("team", max_memory="lots"))
    known = NamespacePolicyCache(server.policies())

    assert refusal(known, "outside") == refusal(known, "missing")
    with pytest.raises(PolicyDenied, match="max-memory"):
        known.policy("team")


@pytest.mark.parametrize("name", ["", "Team", "a/b", "..", "a" * 64, "-a", "a-", "a\n", "tëam", "a" * 1_000_000])
def test_what_cannot_be_a_namespace_is_not_asked_for(name: str) -> None:
    server = Server()

    assert len(refusal(NamespacePolicyCache(server.policies()), name)[1]) < 300
    assert server.asked == []


def test_calls_are_limited_whoever_asks_for_whatever() -> None:
    server = Server()
    known = NamespacePolicyCache(server.policies())
    answers = [refusal(known, f"n-{number}") for number in range(100)]
    assert len(server.asked) == live_policies.BURST
    assert len(set(answers)) == 2

    server.now += 1
    for number in range(100, 200):
        refusal(known, f"n-{number}")
    assert len(server.asked) == live_policies.BURST + live_policies.READS_PER_SECOND


def test_beyond_the_limit_existing_and_missing_are_answered_alike() -> None:
    server = Server(namespace("team"), namespace("outside", opted_in=False))
    known = NamespacePolicyCache(server.policies())
    for number in range(live_policies.BURST):
        refusal(known, f"n-{number}")

    assert len({refusal(known, name) for name in ("team", "outside", "missing")}) == 1


def test_failures_cost_of_the_limit_and_do_not_name_the_api_server() -> None:
    server = Server()
    server.status = 500
    known = NamespacePolicyCache(server.policies())
    answers = {refusal(known, "team") for _ in range(100)}

    assert len(server.asked) == live_policies.BURST
    assert len(answers) == 1
    assert "10.0.0.1" not in answers.pop()[1]


def test_the_number_of_answers_kept_is_bounded_and_the_oldest_goes() -> None:
    server = Server()
    policies = server.policies()
    for number in range(live_policies.MAX_KEPT + 1):
        server.now += 0.01 if number else 0
        policies._budget = 1.0
        assert policies.policy(f"n-{number}") is None

    assert len(policies._kept) == live_policies.MAX_KEPT
    assert "n-0" not in policies._kept


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"])
def test_the_watchs_word_wins_at_once(kind: str) -> None:
    server = Server()
    known = NamespacePolicyCache(server.policies())
    refusal(known, "team")
    known.on_event(kind, namespace("team", max_memory="3Gi"))

    assert known.policy("team").max_memory_mib == 3072
    assert server.asked == ["team"]


def test_what_was_kept_does_not_outlive_what_the_watch_took_away() -> None:
    server = Server(namespace("team"), namespace("other"))
    known = NamespacePolicyCache(server.policies())
    known.policy("team")
    known.policy("other")
    server.namespaces.clear()

    known.on_event("DELETED", namespace("team"))
    refusal(known, "team")
    known.replace([])
    refusal(known, "other")
    assert server.asked == ["team", "other", "team", "other"]


def test_a_call_under_way_stops_nobody() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def get(name: str) -> Object:
        if name == "slow":
            asked.set()
            assert go_on.wait(30)
        return namespace(name)

    known = NamespacePolicyCache(LivePolicies(get))
    known.replace([namespace("known")])
    slow = threading.Thread(target=known.policy, args=("slow",))
    slow.start()
    try:
        assert asked.wait(30)
        for name in ("known", "new", "new"):
            known.policy(name)
        known.on_event("ADDED", namespace("another"))
    finally:
        go_on.set()
        slow.join()


def test_many_threads_together_stay_within_the_limit() -> None:
    server = Server()
    known = NamespacePolicyCache(server.policies())
    threads = [
        threading.Thread(target=lambda: [refusal(known, f"n-{number}") for number in range(50)]) for _ in range(8)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert len(server.asked) <= live_policies.BURST


def test_a_thread_that_must_not_wait_asks_nothing_and_gets_what_is_kept() -> None:
    server, may_wait = Server(namespace("team")), [False]
    policies = LivePolicies(server.get, lambda: server.now, lambda: may_wait[0])
    for _ in range(2 * live_policies.BURST):
        with pytest.raises(MustWait):
            policies.policy("team")
    assert server.asked == []

    may_wait[0] = True
    read = policies.policy("team")
    may_wait[0] = False

    assert policies.policy("team") is read
    assert server.asked == ["team"]
