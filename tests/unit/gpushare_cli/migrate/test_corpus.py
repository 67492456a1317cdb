"""Pods that ask other systems for shares: converted with the same meaning, or refused.

Pods of public repositories are no part of this one; they lie beside the checkout where this is developed. Hypothesis
makes others, of which no repository has an example.
"""

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare.errors import PolicyDenied
from gpushare_cli.migrate.convert import Known, convert
from tests.support.need import missing
from tests.unit.gpushare_cli.migrate import oracle
from tests.unit.webhook.mutation.test_corpus import CORPUS

SHARES = 36
"""Pods of the corpus that ask for a share in a dialect that the table has."""
DONE = 35
"""Of these are converted; the other one has a limit below its request."""
REPLICAS = {"k8s.amazonaws.com/vgpu": oracle.REPLICAS}


def rows() -> list[tuple[int, dict[str, Any]]]:
    if not CORPUS.exists():
        missing("no real pods to try: set GPU_SHARE_CORPUS to a file of JSON lines with a pod each")
    found = map(json.loads, CORPUS.read_text(encoding="utf-8").splitlines())
    return [(row["id"], row["pod"]) for row in found]


def migrated(number: int, pod: dict[str, Any]) -> dict[str, Any] | PolicyDenied:
    """Return the pod as it comes out, or the refusal."""
    unit = 1 if number in oracle.MIB_UNITS else 1024
    known = Known(card=oracle.CARD, units={"aliyun.com/gpu-mem": unit}, replicas=REPLICAS)
    try:
        found = convert(pod, known)
    except PolicyDenied as error:
        return error
    after: dict[str, Any] = jsonpatch.apply_patch(pod, found.patch if found else [])
    return after


def asked(number: int, pod: dict[str, Any]) -> oracle.Asked | None:
    """Return what a pod asks by the oracle; ``None`` where no share can have the same meaning."""
    try:
        return oracle.foreign(pod, number)
    except (oracle.Whole, oracle.Invalid):
        return None


def test_nearly_all_foreign_shares_are_converted_with_the_same_meaning_and_the_others_refused() -> None:
    sharing = [(number, pod) for number, pod in rows() if is_share(number, pod)]
    assert len(sharing) == SHARES
    done = [number for number, pod in sharing if not isinstance(migrated(number, pod), PolicyDenied)]
    assert len(done) == DONE


def is_share(number: int, pod: dict[str, Any]) -> bool:
    try:
        return bool(oracle.foreign(pod, number))
    except oracle.Invalid:
        return True
    except oracle.Whole:
        return False


def test_no_pod_is_silently_different() -> None:
    """Whatever is not refused asks for what it asked for, and nothing else of it has changed."""
    for number, pod in rows():
        assert_same_or_refused(number, pod)


def assert_same_or_refused(number: int, pod: dict[str, Any], *, one_gpu: bool = False) -> None:
    before, after = copy.deepcopy(pod), migrated(number, pod)
    assert pod == before
    if isinstance(after, PolicyDenied):
        return
    expected = asked(number, pod)
    assert expected is not None or after == pod, number
    assert oracle.ours(after) == (expected or {}), number
    assert oracle.rest(after) == oracle.rest(pod), number
    if after != pod:
        assert oracle.foreign(after, number) == {}, number
        assert not after["spec"].keys() & {"schedulerName", "hostIPC"}, number
        apart = "gpu-share.io/same-gpu" in after["metadata"]["annotations"]
        assert apart == (len(expected or {}) > 1 and not one_gpu), number


NUMBERS = st.sampled_from([1, 2, 5, 25, 50, 100, 4096, 90000, "1", "30", "4096"])
HAMI = ["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"]
FAMILIES = [
    ("hami-scheduler", HAMI),
    ("volcano", [f"volcano.sh/vgpu-{part}" for part in ("number", "memory", "memory-percentage", "cores")]),
    ("vgpu-scheduler", [f"nvidia.com/vgpu-{part}" for part in ("number", "memory", "cores")]),
    ("", ["aliyun.com/gpu-mem"]),
    ("", ["k8s.amazonaws.com/vgpu"]),
]


@st.composite
def pods(draw: Any) -> dict[str, Any]:
    """Draw a pod of up to three containers, each with some fields of one system in limits, in requests or in both."""
    scheduler, names = draw(st.sampled_from(FAMILIES))
    containers = []
    for name in draw(st.sampled_from(["a", "ab", "abc"])):
        limits = draw(st.dictionaries(st.sampled_from(["cpu", *names]), NUMBERS))
        parts = draw(st.sampled_from([("limits",), ("requests",), ("limits", "requests")]))
        containers.append({"name": name, "resources": {part: dict(limits) for part in parts}})
    first = draw(st.integers(0, len(containers) - 1))
    spec = {"initContainers": containers[:first], "containers": containers[first:]}
    named = {"schedulerName": scheduler} if scheduler else {}
    return {"metadata": {"name": "p"}, "spec": spec | named}


@given(pods())
@settings(deadline=None, max_examples=400)
def test_no_pod_that_anybody_may_write_is_silently_different(pod: dict[str, Any]) -> None:
    assert_same_or_refused(0, pod, one_gpu="aliyun" in json.dumps(pod))


def test_a_migrated_pod_is_left_alone_the_next_time() -> None:
    for number, pod in rows():
        after = migrated(number, pod)
        if not isinstance(after, PolicyDenied):
            assert migrated(number, after) == after


def test_whole_gpus_stay_as_they_are() -> None:
    plain = [(number, pod) for number, pod in rows() if "nvidia.com/gpu" in json.dumps(pod) and not asked(number, pod)]
    kept = [number for number, pod in plain if migrated(number, pod) == pod]
    assert len(kept) > 30


@pytest.mark.parametrize("without", ["card", "units", "replicas"])
def test_what_no_manifest_says_is_asked_for(without: str) -> None:
    """Without the option nothing is guessed: refused, with the name of the option."""
    known = {"card": oracle.CARD, "units": {"aliyun.com/gpu-mem": 1024}, "replicas": REPLICAS}
    del known[without]
    said = list[str]()
    for _, pod in rows():
        try:
            convert(pod, Known(**known))  # type: ignore[arg-type] # values of several types
        except PolicyDenied as error:
            said += [each.message for each in error.problems]
    option = {"card": "--card", "units": "--unit", "replicas": "--replicas"}[without]
    assert len([each for each in said if option in each]) > 1
