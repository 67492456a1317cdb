"""What a sharing pod prefers: one term, once, behind the pod's own."""

import copy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.node_affinity import PREFERRED, SECTIONS, WEIGHT, affinity_term, with_node_affinity
from webhook.mutation.settings import AcrossNodes, Settings

Json = dict[str, Any]
OTHER: Json = {"weight": 100, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}
OURS: Json = {"weight": WEIGHT, "podAffinityTerm": affinity_term()}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def terms() -> st.SearchStrategy[Any]:
    return st.sampled_from([None, [], [OTHER], [OTHER, OTHER]])


def sections() -> st.SearchStrategy[Any]:
    own = st.fixed_dictionaries({}, optional={PREFERRED: terms(), REQUIRED: st.just([OTHER["podAffinityTerm"]])})
    return st.none() | own


def affinities() -> st.SearchStrategy[Any]:
    parts = {
        "podAffinity": sections(),
        "podAntiAffinity": sections(),
        "nodeAffinity": st.sampled_from([None, {"x": [1]}, {PREFERRED: []}]),
    }
    return st.none() | st.fixed_dictionaries({}, optional=parts)


@given(affinities(), st.sampled_from(["binpack", "spread"]))
def test_our_term_is_added_once_and_nothing_else_changes(affinity: Json | None, across: AcrossNodes) -> None:
    before = copy.deepcopy(affinity)
    after = with_node_affinity({"affinity": affinity}, across)
    assert affinity == before
    assert after is not None
    section = SECTIONS[across]
    assert after[section][PREFERRED][-1] == OURS
    standing = (affinity or {}).get(section) or {}
    without = {**after[section], PREFERRED: after[section][PREFERRED][:-1]}
    assert without == {**standing, PREFERRED: standing.get(PREFERRED) or []}
    assert {k: v for k, v in after.items() if k != section} == {
        k: v for k, v in (affinity or {}).items() if k != section
    }
    assert all(with_node_affinity({"affinity": after}, each) is None for each in SECTIONS)  # type: ignore[arg-type]


@given(affinities())
def test_none_adds_nothing_whatever_stands_there(affinity: Json | None) -> None:
    assert with_node_affinity({"affinity": affinity}, "none") is None
    assert with_node_affinity({"affinity": "no object"}, "none") is None


@pytest.mark.parametrize("section", SECTIONS.values())
@pytest.mark.parametrize("across", SECTIONS)
def test_a_pod_that_says_itself_what_it_thinks_of_shares_is_left_to_it(section: str, across: AcrossNodes) -> None:
    own = {"weight": 7, "podAffinityTerm": {**affinity_term(), "topologyKey": "zone"}}
    assert with_node_affinity({"affinity": {section: {PREFERRED: [OTHER, own]}}}, across) is None


@pytest.mark.parametrize("across", SECTIONS)
def test_a_pod_that_says_itself_which_nodes_it_prefers_is_left_to_it(across: AcrossNodes) -> None:
    node = {PREFERRED: [{"weight": 1, "preference": {}}]}
    soft, hard = ({"whenUnsatisfiable": each} for each in ("ScheduleAnyway", "DoNotSchedule"))
    assert with_node_affinity({"affinity": {"nodeAffinity": node}}, across) is None
    assert with_node_affinity({"topologySpreadConstraints": [hard, soft]}, across) is None
    assert (
        with_node_affinity({"topologySpreadConstraints": [hard], "affinity": {"nodeAffinity": None}}, across)
        is not None
    )
    with pytest.raises(PolicyDenied, match="topologySpreadConstraints"):
        with_node_affinity({"topologySpreadConstraints": {}}, across)


@given(affinities(), st.sampled_from(["binpack", "spread"]))
def test_the_patch_leads_there_by_adding_alone_and_a_second_pass_adds_nothing(
    affinity: Json | None, across: AcrossNodes
) -> None:
    settings = Settings(across_nodes=across)
    spec = {"containers": [{"name": "a", "image": "a"}], "affinity": affinity}
    pod = {"metadata": {"name": "p", "annotations": {"gpu-share.io/memory": "4Gi"}}, "spec": spec}
    first = mutate_pod(pod, policy=NamespacePolicy(), settings=settings)
    ours = [each for each in first.patch if each["path"].startswith("/spec/affinity")]
    assert {each["op"] for each in ours} <= {"add", "replace"}
    assert jsonpatch.apply_patch(pod, copy.deepcopy(first.patch)) == first.pod
    assert mutate_pod(dict(first.pod), policy=NamespacePolicy(), settings=settings).patch == []


@pytest.mark.parametrize(
    ("affinity", "field"),
    [
        ([], "spec.affinity"),
        ({"podAffinity": "x"}, "spec.affinity.podAffinity"),
        ({"podAffinity": {PREFERRED: {}}}, f"spec.affinity.podAffinity.{PREFERRED}"),
        ({"podAntiAffinity": {PREFERRED: [1]}}, f"spec.affinity.podAntiAffinity.{PREFERRED}[0]"),
        ({"podAntiAffinity": {PREFERRED: [{"podAffinityTerm": 1}]}}, f"{PREFERRED}[0].podAffinityTerm"),
    ],
)
def test_what_is_no_affinity_is_refused_by_its_field(affinity: object, field: str) -> None:
    with pytest.raises(PolicyDenied) as error:
        with_node_affinity({"affinity": affinity}, "binpack")
    assert error.value.field.endswith(field)
