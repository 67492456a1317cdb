import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from enforcer.quota import informer
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.informer import WITH_KUBELET, AllocatedClaims, QuotaInformer, QuotaRule
from enforcer.quota.types import Quota
from enforcer.runtime.manager import Manager, Wake
from tests.support.patience import holds_within
from tests.support.quotas import of_containers
from tests.support.wiring import Ids, Rule
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, POD, quota
from tests.unit.enforcer.quota.test_from_claims import NODE, claim, container, namespace, piece, pod, result

KINDS = ("claims", "pods", "namespaces", "slices")


def informer_of(rule: QuotaRule) -> QuotaInformer:
    return QuotaInformer(rule, threading.Event())


def full() -> QuotaInformer:
    books = informer_of(AllocatedClaims(NODE))
    lists: dict[str, list[dict[str, Any]]] = {
        "claims": [claim(result("model", "gpu-0"))],
        "pods": [pod(container("model", "4096"))],
        "namespaces": [uid(namespace(grace_period="9s"), "n")],
        "slices": [{"metadata": {"uid": "s"}} | piece()],
    }
    for kind, items in lists.items():
        books.replace(kind, items)
    return books


def uid(item: dict[str, Any], value: str) -> dict[str, Any]:
    return item | {"metadata": item["metadata"] | {"uid": value}}


def test_nothing_is_reported_before_everything_was_listed_once() -> None:
    books = informer_of(AllocatedClaims(NODE))
    for kind in KINDS:
        assert books.quotas() is None, "a quota that vanishes because a list is late would free a container"
        books.replace(kind, [])
    assert books.quotas() == ()


def test_events_change_the_quotas() -> None:
    books = full()
    found = books.quotas()
    assert found is not None
    assert [(each.gpu, each.memory_mib, each.grace_seconds) for each in of_containers(found)] == [(GPU, 4096, 9.0)]
    books.on_event("namespaces", "MODIFIED", uid(namespace(grace_period="1s"), "n"))
    found = books.quotas()
    assert found
    assert found[0].grace_seconds == 1.0
    books.on_event("pods", "DELETED", pod(container("model", "4096")))
    assert books.quotas() == ()


def test_an_event_before_the_first_list_is_passed_over() -> None:
    books = informer_of(AllocatedClaims(NODE))
    books.on_event("pods", "ADDED", pod(container("model", "4096")))
    assert books.quotas() is None


def test_namespaces_that_do_not_matter_here_cost_nothing() -> None:
    seen: list[Any] = []

    def rule(kinds: Any) -> tuple[Any, ...]:
        seen.append([each["metadata"]["name"] for each in kinds["namespaces"]])
        return ()

    books = informer_of(Rule(rule, "of-a-claim", "unknown"))
    books.replace("pods", [pod(container("model", "4096"))])
    names = ["asr", "of-a-claim", "elsewhere"]
    made = [{"metadata": namespace()["metadata"] | {"name": name, "uid": name}} for name in names]
    assert pod(container("model", "4096"))["metadata"]["namespace"] == "asr"
    books.replace("namespaces", made)
    books.quotas()
    books.on_event("namespaces", "DELETED", made[1])
    books.quotas()

    assert seen == [["asr", "of-a-claim"], ["asr"]]


def test_of_a_namespace_no_more_is_kept_than_is_read() -> None:
    made = namespace(grace_period="9s")
    made["metadata"] |= {"uid": "n", "managedFields": ["much"], "labels": {"a": "b"}}
    made["metadata"]["annotations"]["other.example/x"] = "long"
    books = informer_of(AllocatedClaims(NODE))
    books.replace("namespaces", [made])
    kept = books._kinds["namespaces"]
    assert kept is not None
    books.on_event("namespaces", "MODIFIED", made)

    assert list(kept.values()) == [
        {"metadata": {"name": made["metadata"]["name"], "annotations": {"gpu-share.io/grace-period": "9s"}}}
    ]


def test_with_a_kubelet_only_pods_and_namespaces_are_looked_at() -> None:
    seen: list[Any] = []

    def rule(kinds: Any) -> tuple[Any, ...]:
        seen.append(kinds)
        return (quota(),)

    books = informer_of(Rule(rule))
    assert books.kinds == {"pods", "namespaces"}
    assert (books.quotas(), books.pods()) == (None, None)
    books.replace("pods", [pod(container("model", "4096"))])
    assert books.quotas() is None
    assert books.pods() == frozenset({POD})
    books.replace("namespaces", [])
    assert books.quotas() == (quota(),)
    assert [len(seen[0][kind]) for kind in ("pods", "namespaces")] == [1, 0]


def test_quotas_that_could_not_be_written_are_written_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A full disk, or a bug, must not keep a container unenforced until something else happens."""
    monkeypatch.setattr(informer, "PATIENCE", 0.01)
    monkeypatch.setattr(informer, "SETTLE", 0.0)
    tries: list[tuple[Quota, ...]] = []
    manager, changed, checkpoint = Manager(), Wake(), Checkpoint(tmp_path)

    def write(quotas: Sequence[Quota]) -> None:
        tries.append(tuple(quotas))
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        if len(tries) == 2:
            raise ZeroDivisionError

    monkeypatch.setattr(checkpoint, "write", write)
    books = QuotaInformer(Rule(lambda _: (quota(),)), changed)
    for kind in WITH_KUBELET:
        books.replace(kind, [])
    nowhere: Any = None
    monkeypatch.setattr(informer, "sources", lambda _: {})
    informer.add_informers(manager, nowhere, books, NODE, checkpoint, Ids({(POD, "model"): CONTAINER}), changed)
    manager.start()
    assert holds_within(lambda: len(tries) >= 3, 20)
    manager.stop()
    assert set(tries) == {(quota(),)}


@pytest.mark.parametrize(("before", "after"), [((quota(container_id=NEIGHBOUR),), (quota(),)), ((), ())])
def test_until_everything_was_listed_the_containers_of_earlier_quotas_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, before: tuple[Quota, ...], after: tuple[Quota, ...]
) -> None:
    """An enforcer that starts while the API server is away learns of a container that restarted meanwhile."""
    monkeypatch.setattr(informer, "SETTLE", 0.0)
    monkeypatch.setattr(informer, "sources", lambda _: {})
    looked = threading.Event()

    class Looked(Ids):
        def joined(self, quotas: Sequence[Quota], earlier: Sequence[Quota]) -> tuple[Quota, ...]:
            looked.set()
            return super().joined(quotas, earlier)

    nowhere: Any = None
    manager, changed, checkpoint = Manager(), Wake(), Checkpoint(tmp_path)
    if before:
        checkpoint.write(before)
    books, ids = informer_of(Rule(lambda _: ())), Looked({(POD, "model"): CONTAINER})
    informer.add_informers(manager, nowhere, books, NODE, checkpoint, ids, changed)
    manager.start()
    assert holds_within(lambda: checkpoint.read() == after, 20)
    manager.stop()
    assert (checkpoint.path.exists(), looked.is_set()) == (bool(before), bool(before)), "nothing known, nothing written"


def test_claims_of_other_drivers_are_not_kept() -> None:
    books = informer_of(AllocatedClaims(NODE))
    foreign = claim(result("model", "gpu-0") | {"driver": "gpu.nvidia.com"})
    books.replace("claims", [foreign, uid(claim(), "unallocated")])
    assert books._kinds["claims"] == {}
    books.on_event("claims", "ADDED", claim(result("model", "gpu-0")))
    assert len(books._kinds["claims"] or {}) == 1
    books.on_event("claims", "MODIFIED", claim())
    assert books._kinds["claims"] == {}, "given back"
