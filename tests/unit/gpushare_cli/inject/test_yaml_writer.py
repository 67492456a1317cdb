"""What ``inject`` writes: it reads as computed, and comments, quotes and block scalars of the source are kept."""

import json
import re
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpushare_cli.inject import yaml_writer
from gpushare_cli.inject.manifest import split
from gpushare_cli.inject.rewrite import stream
from gpushare_cli.inject.yaml_writer import dump, patched
from tests.unit.gpushare_cli.inject.test_inject import build

COMMENT = re.compile(r"# c\d+")
STRINGS = st.sampled_from(["x", '"12:30"', "'no'", "'it''s'", '"a\\tb"', "y", "0x1f", "1e3", "~", "2020-01-01", "é"])
BLOCKS = st.sampled_from([
    ["|", "  # text of a script", "  echo hi", "", "  exit"],
    ["|-", "  one"],
    [">-", "  folded", "  text"],
    ["|+", "  kept", ""],
])  # fmt: skip


def lines_of(key: str, value: str | list[str]) -> list[str]:
    return [f"{key}: {value}"] if isinstance(value, str) else [f"{key}: {value[0]}", *value[1:]]


def indented(lines: list[str], by: int) -> list[str]:
    return [" " * by + line if line else line for line in lines]


@st.composite
def containers(draw: Any, name: str) -> list[str]:
    lines = [f"name: {name}", *lines_of("image", draw(st.sampled_from(["busybox", '"busybox:1"'])))]
    if draw(st.booleans()):
        lines += draw(st.sampled_from([["env: []"], ["env:", '- {name: A, value: "yes"}'], ["env:", "- name: A"]]))
    if draw(st.booleans()):
        lines += ["args:", *indented(lines_of("-", draw(BLOCKS | st.just(["x"]))), 0)]
        lines[-len(lines) :] = [line.replace("-: ", "- ", 1) for line in lines]
    return [f"- {lines[0]}", *indented(lines[1:], 2)]


@st.composite
def pods(draw: Any) -> list[str]:
    """Return the lines of a pod that asks for a share, without comments."""
    offset = draw(st.sampled_from([0, 2]))
    labels = draw(st.sampled_from([["labels: {app: x, 'tier': web}"], ["labels:", "  app: x"], []]))
    notes = [line for key in draw(st.sets(st.sampled_from("abc"))) for line in lines_of(key, draw(STRINGS | BLOCKS))]
    strings = [line for line in notes if not re.fullmatch(r"[abc]: (y|0x1f|1e3|~)", line)]
    metadata = ["name: p", *labels, "annotations:", *indented(["gpu-share.io/memory: 4Gi", *strings], 2)]
    each = [draw(containers(name)) for name in draw(st.sampled_from([["main"], ["main", "other"]]))]
    spec = ["containers:", *indented([line for lines in each for line in lines], offset)]
    spec += draw(st.sampled_from([[], ["volumes: []"], ["nodeSelector: {a: b}"], ["tolerations:", "- key: a"]]))
    return ["metadata:", *indented(metadata, 2), "spec:", *indented(spec, 2)]


@st.composite
def documents(draw: Any) -> str:
    """Return a manifest with comments at the end of lines and between them, wherever no block scalar is."""
    inner = draw(pods())
    lines = ["apiVersion: v1", "kind: Pod", *inner]
    if draw(st.booleans()):
        shared = draw(st.booleans())
        selector = ["selector:", "  matchLabels: &l {app: x}" if shared else "  matchLabels: {app: x}"]
        if shared:
            inner = [line for line in inner if not re.match(r"\s+(labels|app):", line)]
            inner.insert(2, "  labels: *l")
        template = [*selector, "template:", *indented(inner, 2)]
        lines = ["apiVersion: apps/v1", "kind: Deployment", "metadata: {name: d}", "spec:", *indented(template, 2)]
    found, block = list[str](), -1
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        block = -1 if line and depth <= block else block
        if block < 0 and draw(st.integers(0, 3)) == 0:
            found.append(" " * depth + f"# c{2 * number}")
        plain = block < 0 and not line.rstrip().endswith(("|", "|-", "|+", ">-"))
        comment = f"  # c{2 * number + 1}" if plain and line and draw(st.integers(0, 3)) == 0 else ""
        found.append(line + comment)
        if not plain and block < 0:
            block = depth
    start = draw(st.sampled_from(["", "---\n", "# c900\n", "--- # c900\n", "# c900\n\n---\n"]))
    end: list[str] = draw(st.sampled_from([[], ["# c901"], ["", "# c901", ""]]))
    return str(start) + "\n".join([*found, *end, ""])


@given(documents())
@settings(deadline=None, max_examples=60, phases=(Phase.explicit, Phase.generate, Phase.shrink))
def test_a_rewritten_document_reads_as_computed_and_keeps_every_comment(source: str) -> None:
    results = build(source)
    (written,) = [result for result in results if result.rewritten]
    (document,) = [each for each in split(written.text) if each.node is not None]
    assert json.dumps(document.load()) == json.dumps(written.after)
    assert set(COMMENT.findall(stream(results))) == set(COMMENT.findall(source))
    kept = {line_of(line) for line in written.text.splitlines()}
    lost = {line_of(line) for line in written.document.text.splitlines()} - kept
    assert {line.partition(":")[0] for line in lost} <= {"labels", "matchLabels", "env", "volumes"}, lost


def line_of(text: str) -> str:
    """Return a line without its indentation and its comment."""
    return COMMENT.sub("", text).strip()


def test_values_are_added_beside_comments_quotes_anchors_and_block_scalars() -> None:
    source = "a: &x\n  - 'two'  # three\nb: |\n  # text\nc: {d: \"e\"}  # four\nf: *x\n"
    operations = [{"op": "add", "path": "/f/-", "value": "no"}, {"op": "replace", "path": "/c/d", "value": "1e3"}]
    value = {"a": ["two"], "b": "# text\n", "c": {"d": "1e3"}, "f": ["two", "no"]}
    assert patched(source, operations, value) == (
        "a:\n  - 'two'  # three\nb: |\n  # text\nc: {d: '1e3'} # four\nf:\n  - 'two'\n  - 'no'\n"
    )


@pytest.mark.parametrize(
    ("source", "operations", "value"),
    [
        ("1: a  # why\n", [{"op": "replace", "path": "/1", "value": "b"}], {"1": "b"}),
        ("a: {<<: {b: 1}}  # why\n", [{"op": "add", "path": "/a/c", "value": 2}], {"a": {"b": 1, "c": 2}}),
        ("a: 1  # why\n", [{"op": "replace", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
        ("a: 1  # why\n", [], {"a": 2}),
        ("a: 1  # why\n", [], {"a": True}),
    ],
)
def test_what_ruamel_cannot_patch_is_written_plainly(source: str, operations: Any, value: Any) -> None:
    text = patched(source, operations, value)
    assert [each.load() for each in split(text)] == [value]


def test_a_long_document_is_written_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = [{"op": "replace", "path": "/a", "value": 2}]
    assert patched("a: 1  # why\n", operations, {"a": 2}) == "a: 2  # why\n"
    monkeypatch.setattr(yaml_writer, "MAX_PATCHED", 5)
    assert patched("a: 1  # why\n", operations, {"a": 2}) == dump({"a": 2})
