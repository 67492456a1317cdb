"""Another quota for a container that runs, as the rules have it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.prepared_claim import PreparedClaim, decode, encode
from enforcer.dra.resize import (
    AT_ONCE,
    AT_START,
    CurrentUsage,
    ResizeBounds,
    apply_resize,
    ceiling_of,
    most_mib,
    peak_limit_mib,
    pending_requests,
    resized,
)
from gpushare import contract
from gpushare.errors import ResizeRefused
from gpushare.reasons import Reason
from tests.unit.enforcer.dra.objects import NODE, Object, allocated, by_hand, claim, container, gpu, namespace, pod
from tests.unit.enforcer.dra.objects import using as uses
from tests.unit.enforcer.dra.test_allocation import DEVICES, env
from tests.unit.enforcer.dra.test_allocation import pods as any_pods
from tests.unit.enforcer.made import GPU

IDLE = CurrentUsage(used_mib=0, applies_immediately=False)


def made(annotations: dict[str, str], *apps: Object, inits: tuple[Object, ...] = ()) -> tuple[PreparedClaim, Object]:
    found = pod("tts", annotations, *apps, inits=inits)
    return prepared(claim(found), found), found


def prepared(held: Object, user: Object) -> PreparedClaim:
    return compute_limits(NODE, PrepareRequest(held, user, namespace()), DEVICES)


def two() -> tuple[PreparedClaim, Object]:
    annotations = {contract.MEMORY: "4Gi", contract.MEMORY_OF + "aux": "2Gi"}
    return made(annotations, container("model"), container("aux"))


def memory(found: PreparedClaim) -> dict[str, int]:
    return {each.container: each.memory_mib for each in found.limits}


def refused(
    found: PreparedClaim, user: Object, name: str, mib: int, bounds: ResizeBounds | None = None
) -> ResizeRefused:
    with pytest.raises(ResizeRefused) as error:
        resized(found, user, name, mib, bounds or ResizeBounds())
    return error.value


def test_what_one_gives_another_can_have() -> None:
    found, user = two()
    lower = resized(found, user, "model", 1024, ResizeBounds())
    higher = resized(lower, user, "aux", 5120, ResizeBounds())
    assert memory(higher) == {"model": 1024, "aux": 5120}
    assert env(higher, "aux")[contract.MPS_MEMORY_LIMIT] == "0=5120M"
    assert env(higher, "model")[contract.MEMORY_MIB] == "1024"
    assert higher.granted == found.granted


def test_beyond_what_was_reserved_is_refused_naming_it_and_what_can_be_had() -> None:
    found, user = two()
    error = refused(found, user, "model", 4097)
    assert error.reason is Reason.ABOVE_MAXIMUM
    assert "the pod has 6Gi of the GPU for all its containers (others: aux 2Gi)" in error.message
    assert error.message.endswith("container model can have at most 4Gi")


def test_a_claim_that_reserved_more_than_its_container_has_leaves_room() -> None:
    user = by_hand("job", {"gpu": "mine"}, uses("main", "card"))
    user["metadata"]["annotations"] = {contract.MEMORY: "1Gi"}
    found = prepared(allocated("mine", user, gpu("card", 3000)), user)
    assert memory(resized(found, user, "main", 3000, ResizeBounds())) == {"main": 3000}
    most = "has 3000Mi of the GPU; container main can have at most 3000Mi"
    assert most in refused(found, user, "main", 3001).message


@pytest.mark.parametrize(
    ("name", "mib", "bounds", "reason", "said"),
    [
        ("model", 511, ResizeBounds(), Reason.BELOW_MINIMUM, "511Mi is below the minimum of 512Mi"),
        ("model", 1023, ResizeBounds(min_mib=1024), Reason.BELOW_MINIMUM, "minimum of 1Gi"),
        (
            "aux",
            3000,
            ResizeBounds(max_mib=2500),
            Reason.ABOVE_MAXIMUM,
            f"above this namespace's {contract.MAX_MEMORY}",
        ),
        ("modle", 1024, ResizeBounds(), Reason.UNKNOWN_CONTAINER, "no container named 'modle'; did you mean model?"),
        ("zzz", 1024, ResizeBounds(), Reason.UNKNOWN_CONTAINER, "the containers with a share are model, aux"),
        (
            contract.SIDECAR,
            1024,
            ResizeBounds(),
            Reason.UNKNOWN_CONTAINER,
            "has no GPU share; the containers with a share are model",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    name: str, mib: int, bounds: ResizeBounds, reason: Reason, said: str
) -> None:
    found, user = two()
    error = refused(found, user, name, mib, bounds)
    assert error.reason is reason
    assert said in error.message


def test_a_container_above_a_ceiling_set_since_can_still_be_lowered() -> None:
    found, user = two()
    assert memory(resized(found, user, "model", 3000, ResizeBounds(max_mib=2500)))["model"] == 3000


def test_containers_of_one_request_cannot_be_distinguished() -> None:
    found, user = made({contract.MEMORY: "4Gi", contract.MEMORY_OF + "warm": "4Gi"}, inits=(container("warm"),))
    error = refused(found, user, "model", 2048)
    assert error.reason is Reason.CLAIM_MISMATCH
    assert "containers warm, model use the same request (model)" in error.message


def test_an_init_container_runs_before_the_others_and_takes_nothing_from_them() -> None:
    annotations = {contract.MEMORY: "4Gi", contract.MEMORY_OF + "aux": "2Gi", contract.MEMORY_OF + "warm": "5Gi"}
    found, user = made(annotations, container("model"), container("aux"), inits=(container("warm"),))
    assert found.mib_on(GPU) == 6144
    assert most_mib(found, user, "aux") == 2048
    assert most_mib(found, user, "warm") == 6144
    lower = resized(found, user, "aux", 1024, ResizeBounds())
    assert most_mib(lower, user, "model") == 5120


def test_a_resize_request_is_answered_once_and_kept_with_the_limit() -> None:
    found, user = two()
    wished = {"model": "2Gi;id=1", "aux": "9Gi", "nobody": "1Gi"}
    assert list(pending_requests(found, wished)) == ["model", "aux"], "what gives comes first"
    after = apply_resize(found, user, "model", wished["model"], ResizeBounds(), IDLE)
    after = apply_resize(after, user, "aux", wished["aux"], ResizeBounds(), IDLE)
    assert memory(after) == {"model": 2048, "aux": 2048}
    assert [(each.container, each.done, each.before_mib, each.effect) for each in after.answers] == [
        ("model", True, 4096, AT_START), ("aux", False, 2048, ""),
    ]  # fmt: skip
    assert pending_requests(after, wished) == {}
    assert list(pending_requests(after, wished | {"model": "2Gi;id=2"})) == ["model"]
    again = apply_resize(after, user, "model", "2Gi;id=2", ResizeBounds(), IDLE)
    assert [each.container for each in again.answers] == ["aux", "model"], "the last answer alone is kept"
    assert decode(encode(again)) == again


@pytest.mark.parametrize(
    ("before", "after", "at_once", "mps", "effect"),
    [
        (4, 2, True, True, AT_ONCE), (4, 2, True, False, AT_ONCE), (4, 2, False, True, AT_START),
        (4, 2, False, False, AT_START), (2, 4, True, True, AT_START), (2, 4, True, False, AT_ONCE),
        (2, 4, False, True, AT_START),
    ],
)  # fmt: skip
def test_it_says_when_the_limit_itself_changes(before: int, after: int, at_once: Any, mps: Any, effect: str) -> None:
    found, user = two()
    found = resized(found, user, "model", before * 1024, ResizeBounds())
    now = CurrentUsage(used_mib=0, applies_immediately=at_once, mps=mps)
    (answer,) = apply_resize(found, user, "model", f"{after}Gi", ResizeBounds(), now).answers
    assert answer.effect == effect
    assert ("until the container restarts" in answer.note) is (effect == AT_START and mps)
    assert ("the memory of the MIG instance does not change" in answer.note) is (effect == AT_START and not mps)
    assert answer.note.startswith(f"the quota of container model is now {after}Gi (before: {before}Gi)")


def test_lowering_below_what_is_lowered_wants_force() -> None:
    found, user = two()
    holding = CurrentUsage(used_mib=3000, applies_immediately=False)
    (answer,) = apply_resize(found, user, "model", "2Gi", ResizeBounds(), holding).answers
    assert (answer.done, answer.reason) == (False, Reason.OVER_QUOTA)
    assert "holds 3000 MiB now: with a quota of 2Gi it would be over quota" in answer.note
    forced = apply_resize(found, user, "model", "2Gi;force", ResizeBounds(), holding)
    assert (forced.answers[0].done, memory(forced)["model"]) == (True, 2048)
    assert memory(apply_resize(found, user, "model", "3000Mi", ResizeBounds(), holding))["model"] == 3000


def test_what_cannot_be_seen_is_not_lowered_but_may_be_raised() -> None:
    found, user = two()
    blind = CurrentUsage(used_mib=None, applies_immediately=False)
    lower = apply_resize(found, user, "model", "2Gi", ResizeBounds(), blind)
    assert (lower.answers[0].done, lower.limits) == (False, found.limits)
    assert apply_resize(lower, user, "model", "4Gi", ResizeBounds(), blind).answers[0].done


@pytest.mark.parametrize("asked", ["lots", "4GB", "", "2Gi;now", "9" * 500])
def test_a_resize_request_that_nobody_can_read_is_answered_too(asked: str) -> None:
    found, user = two()
    after = apply_resize(found, user, "model", asked, ResizeBounds(), IDLE)
    assert (after.limits, after.answers[0].done) == (found.limits, False)
    assert pending_requests(after, {"model": asked}) == {}


def test_a_namespaces_ceiling_is_read_where_it_can_be() -> None:
    assert ceiling_of({contract.MAX_MEMORY: "8Gi"}) == 8192
    assert ceiling_of({contract.MAX_MEMORY: "lots"}) is None
    assert ceiling_of({}) is None


STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(256, 20000), st.booleans()), max_size=12)


@given(any_pods(), STEPS)
def test_whatever_is_wished_it_never_holds_more_than_was_consumed(user: Object, steps: Any) -> None:
    found = before = prepared(claim(user), user)
    for number, mib, force in steps:
        name = found.limits[number % len(found.limits)].container
        most = most_mib(found, user, name)
        after = apply_resize(found, user, name, f"{mib}Mi" + (";force" if force else ""), ResizeBounds(), IDLE)
        assert peak_limit_mib(after, user, GPU) <= before.mib_on(GPU)
        done = after.answers[-1].done
        if mib > most or mib < 512:
            assert not done, "beyond what was reserved, or too little"
        elif not done:
            assert after.answers[-1].reason == Reason.CLAIM_MISMATCH
        assert (after.granted, after.uid) == (before.granted, before.uid)
        found = after
        for limit in found.limits:
            own = {each["name"]: each.get("value") for each in _raw(user, limit.container)["env"]}
            variables = own | env(found, limit.request)
            assert variables[contract.MPS_MEMORY_LIMIT] == f"0={limit.memory_mib}M", "limit and variables agree"
            assert variables[contract.MEMORY_MIB] == str(limit.memory_mib)


def _raw(user: Object, name: str) -> Object:
    spec = user["spec"]
    return next(each for each in [*spec["initContainers"], *spec["containers"]] if each["name"] == name)
