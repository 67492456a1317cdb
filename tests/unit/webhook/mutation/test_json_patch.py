"""JSON Patch between two versions that differ in any way: always applicable, never a removal."""

import copy
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st

from webhook.mutation.json_patch import diff, escape

KEYS = st.sampled_from(["a", "b/c", "d~e", "~1", "", "name"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_any_change_within_an_object_is_reached_without_removing(before: dict[str, Any], after: dict[str, Any]) -> None:
    before, after = {"spec": before}, {"spec": after}
    patch = diff(before, after)
    assert {each["op"] for each in patch} <= {"add", "replace"}
    reached = jsonpatch.apply_patch(before, copy.deepcopy(patch))
    assert reached == after
    assert repr(reached) == repr(after) or reached["spec"].keys() == after["spec"].keys()


@given(OBJECTS)
def test_equal_objects_need_no_patch(value: dict[str, Any]) -> None:
    assert diff(value, copy.deepcopy(value)) == []


def test_appending_leaves_what_stands_untouched() -> None:
    assert diff({"env": [1, 2]}, {"env": [1, 2, 3]}) == [{"op": "add", "path": "/env/-", "value": 3}]


def test_an_entry_in_front_moves_the_others_and_their_changes() -> None:
    before = {"c": [{"name": "a"}, {"name": "b", "env": None}]}
    after = {"c": [{"name": "new"}, {"name": "a"}, {"name": "b", "env": [1]}]}
    assert diff(before, after) == [
        {"op": "add", "path": "/c/0", "value": {"name": "new"}},
        {"op": "add", "path": "/c/2/env", "value": [1]},
    ]


def test_a_reordered_list_is_replaced_whole() -> None:
    before, after = {"env": [{"name": "a"}, {"name": "b"}]}, {"env": [{"name": "b"}, {"name": "a"}]}
    assert diff(before, after) == [{"op": "replace", "path": "/env", "value": after["env"]}]


def test_keys_are_escaped() -> None:
    assert escape("gpu-share.io/a~b") == "gpu-share.io~1a~0b"
