"""What is missing and what is left over: worked out change by change as it would be from everything at once."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from webhook.claim_templates.index import TemplateIndex
from webhook.claim_templates.references import Key, TemplateRecord, TemplateReference
from webhook.mutation.template_content import content

RETENTION = 100.0
A: Key = ("team", "gpu-share-a")
B: Key = ("team", "gpu-share-b")
KEYS = st.tuples(st.sampled_from(["team", "other"]), st.sampled_from(["gpu-share-a", "gpu-share-b", "gpu-share-c"]))
UIDS = st.sampled_from(["1", "2", "3", "4"])


def body(name: str, memory: str = "4Gi") -> dict[str, Any]:
    capacity = {"requests": {"memory": memory}}
    requests = [{"name": name, "exactly": {"deviceClassName": "gpu-share.io", "capacity": capacity}}]
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": requests}}}}


def want(key: Key) -> TemplateReference:
    return TemplateReference(key=key, body=body(key[1]))


def forged(key: Key) -> TemplateReference:
    return TemplateReference(key=key, body=None)


def have(key: Key, uid: str = "u", *, ours: bool = True, memory: str = "4Gi") -> TemplateRecord:
    return TemplateRecord(key=key, uid=uid, version="1", ours=ours, content_key=content(body(key[1], memory)))


def left_over(index: TemplateIndex, keys: Iterable[Key]) -> set[Key]:
    return {key for key in keys if index.is_left_over(key)}


def test_a_template_is_missing_until_it_is_there() -> None:
    index = TemplateIndex()
    index.put_pod("1", want(A), 0.0)
    assert list(index.touched()) == [A]
    assert index.is_missing(A)
    assert index.content(A) == body(A[1])

    index.put_template(have(A), 1.0)
    assert not index.is_missing(A)
    assert list(index.touched()) == [A]
    assert list(index.touched()) == []


def test_a_second_pod_of_a_template_changes_nothing_about_another() -> None:
    index = TemplateIndex()
    for number in range(100):
        index.put_pod(str(number), want(A), 0.0)
    list(index.touched())
    index.put_pod("more", want(B), 0.0)

    assert list(index.touched()) == [B]


def test_nothing_is_looked_at_again_for_what_is_known_of_a_pod() -> None:
    index = TemplateIndex()
    index.put_pod("1", want(A), 0.0)
    list(index.touched())
    index.put_pod("1", want(A), 1.0)

    assert list(index.touched()) == []
    assert index.named_by("1") == A


def test_what_nobody_names_is_left_over_after_a_while_and_reported_once() -> None:
    index = TemplateIndex()
    index.put_template(have(A), 5.0)
    index.put_template(have(B), 6.0)

    assert list(index.expire(4.9)) == []
    assert list(index.expire(5.0)) == [A]
    assert list(index.expire(5.0)) == []
    assert left_over(index, [A, B]) == {A}


def test_being_named_again_starts_the_wait_again() -> None:
    index = TemplateIndex()
    index.put_template(have(A), 0.0)
    index.put_pod("1", want(A), 50.0)
    index.put_pod("1", None, 90.0)

    assert list(index.expire(89.0)) == []
    assert list(index.expire(90.0)) == [A]


def test_another_template_of_that_name_waits_for_itself() -> None:
    index = TemplateIndex()
    index.put_template(have(A), 0.0)
    list(index.expire(0.0))
    index.put_template(have(A, "another"), 50.0)

    assert left_over(index, [A]) == set()
    assert list(index.expire(49.0)) == []


def test_a_template_with_a_broken_reference_is_in_use() -> None:
    index = TemplateIndex()
    index.put_template(have(A), 0.0)
    index.put_pod("1", forged(A), 0.0)

    assert list(index.expire(RETENTION)) == []


def test_a_broken_reference_is_never_missing() -> None:
    index = TemplateIndex()
    index.put_pod("1", forged(A), 0.0)
    assert not index.is_missing(A)

    index.put_pod("2", want(A), 0.0)
    assert index.is_missing(A)
    index.put_pod("2", None, 0.0)
    assert not index.is_missing(A)


def test_what_is_not_ours_is_never_left_over() -> None:
    index = TemplateIndex()
    index.put_template(have(A, ours=False), 0.0)

    assert list(index.expire(RETENTION)) == []
    assert index.ours == 0


def test_a_name_is_taken_where_something_else_stands_under_it() -> None:
    index = TemplateIndex()
    index.put_template(have(A, memory="1Mi"), 0.0)
    assert not index.is_taken(A), "nobody wants it"

    index.put_pod("1", want(A), 0.0)
    assert index.is_taken(A)
    assert index.taken == 1
    index.drop_template(A, 0.0)
    assert not index.is_taken(A)
    assert index.is_missing(A)


def test_the_same_content_under_another_label_takes_no_name() -> None:
    index = TemplateIndex()
    index.put_pod("1", want(A), 0.0)
    index.put_template(have(A, ours=False), 0.0)

    assert not index.is_taken(A)
    assert not index.is_missing(A)


def test_a_namespace_that_changes_has_its_own_looked_at_again() -> None:
    index = TemplateIndex()
    index.put_pod("1", want(A), 0.0)
    index.put_pod("2", want(("other", "gpu-share-a")), 0.0)
    list(index.touched())

    index.touch("team")
    assert list(index.touched()) == [A]
    index.touch()
    assert len(list(index.touched())) == 2


def test_waiting_begins_when_it_is_known_who_uses_what() -> None:
    index = TemplateIndex()
    index.put_template(have(A), 0.0)
    index.count_from(50.0)

    assert list(index.expire(49.0)) == []
    assert list(index.expire(50.0)) == [A]


class Everything(RuleBasedStateMachine):
    """The index beside a model that looks at all pods and all templates at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.index, self.now, self.seen_at = TemplateIndex(), 0.0, 0.0
        self.pods: dict[str, TemplateReference] = {}
        self.templates: dict[Key, TemplateRecord] = {}
        self.unused: dict[Key, tuple[str, float]] = {}
        self.told: dict[Key, tuple[bool, bool]] = {}

    @rule(uid=UIDS, key=KEYS, sound=st.booleans())
    def pod(self, uid: str, key: Key, sound: bool) -> None:  # noqa: FBT001 - Hypothesis names it
        self.pods[uid] = want(key) if sound else forged(key)
        self.index.put_pod(uid, self.pods[uid], self.now)

    @rule(uid=UIDS)
    def pod_gone(self, uid: str) -> None:
        self.pods.pop(uid, None)
        self.index.put_pod(uid, None, self.now)

    @rule(uids=st.sets(UIDS))
    def pods_listed(self, uids: set[str]) -> None:
        self.pods = {uid: item for uid, item in self.pods.items() if uid in uids}
        self.index.only_pods(uids, self.now)

    @rule(key=KEYS, uid=st.sampled_from("ab"), ours=st.booleans(), memory=st.sampled_from(["4Gi", "4096Mi", "1Mi"]))
    def template(self, key: Key, uid: str, ours: bool, memory: str) -> None:  # noqa: FBT001 - as above
        self.templates[key] = have(key, uid, ours=ours, memory=memory)
        self.index.put_template(self.templates[key], self.now)

    @rule(key=KEYS)
    def template_gone(self, key: Key) -> None:
        self.templates.pop(key, None)
        self.index.drop_template(key, self.now)

    @rule(keys=st.sets(KEYS))
    def templates_listed(self, keys: set[Key]) -> None:
        self.templates = {key: item for key, item in self.templates.items() if key in keys}
        self.index.only_templates(keys, self.now)

    @rule(seconds=st.sampled_from([1.0, 60.0, RETENTION]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.now > 0)
    @rule()
    def expiring(self) -> None:
        """Each is told once, and is left over from then on: what is left over is compared below."""
        told = Counter(self.index.expire(self.now - RETENTION))
        assert set(told.values()) <= {1}
        self.seen_at = self.now

    @invariant()
    def as_from_everything(self) -> None:
        named = {item.key for item in self.pods.values()}
        given = {item.key for item in self.pods.values() if item.sound}
        missing = {key for key in given if key not in self.templates}
        taken = {
            key for key in given & self.templates.keys() if self.templates[key].content_key != want(key).content_key
        }
        keys = self._keys()
        assert {key for key in keys if self.index.is_missing(key)} == missing
        assert {key for key in keys if self.index.is_taken(key)} == taken
        assert self.index.taken == len(taken)
        assert self.index.ours == sum(item.ours for item in self.templates.values())
        assert all(self.index.content(key) == body(key[1]) for key in missing)
        self._follow_unused(named)
        due = {key for key, (_, since) in self.unused.items() if since <= self.seen_at - RETENTION}
        assert left_over(self.index, keys) == due

    @invariant()
    def whatever_differs_is_touched(self) -> None:
        touched = set(self.index.touched())
        fresh = {key: (self.index.is_missing(key), self.index.is_taken(key)) for key in self._keys()}
        assert {key for key, was in fresh.items() if was != self.told.get(key, (False, False))} <= touched
        self.told = fresh

    def _follow_unused(self, named: set[Key]) -> None:
        unused = {key: item.uid for key, item in self.templates.items() if item.ours and key not in named}
        known = {key: (uid, since) for key, (uid, since) in self.unused.items() if unused.get(key) == uid}
        self.unused = {key: known.get(key, (uid, self.now)) for key, uid in unused.items()}

    def _keys(self) -> list[Key]:
        return [(namespace, f"gpu-share-{name}") for namespace in ("team", "other") for name in "abc"]

    def teardown(self) -> None:
        """When all has gone nothing is kept."""
        self.index.only_pods((), self.now)
        self.index.only_templates((), self.now)
        list(self.index.touched())
        kept = {name: value for name, value in vars(self.index).items() if value}
        assert kept == {}


Everything.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestEverything = Everything.TestCase
