"""What ``inject`` writes: it reads as computed, and all lines that the patch does not concern are those of the source.

Hypothesis makes manifests with comments, quotes, anchors and block scalars; the golden pods are written in the styles
of several tools. None of them may have to be written as a whole.
"""

import json
import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Any

import jsonpatch
import pytest
import yaml
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpushare.errors import PolicyDenied
from gpushare_cli.inject.kube_yaml import dump
from gpushare_cli.inject.manifest import split
from gpushare_cli.inject.rewrite import Result
from gpushare_cli.inject.yaml_splice import patched
from tests.golden.cases import cases
from tests.unit.gpushare_cli.inject.test_inject import build
from tests.unit.gpushare_cli.streams import text, wrapped

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
def test_a_rewritten_document_reads_as_computed_and_keeps_every_other_line(source: str) -> None:
    (written,) = [result for result in build(source) if result.rewritten]
    gone = check(written)
    in_line = ("labels", "matchLabels", "env", "volumes")
    assert {line.strip().partition(":")[0] for line in gone} <= set(in_line), gone
    assert set(COMMENT.findall(written.text)) == set(COMMENT.findall(written.document.text))


class Indented(yaml.SafeDumper):
    """Writes lists as Helm's users do."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002 - PyYAML's
        super().increase_indent(flow, indentless=False)


STYLES: dict[str, Callable[[Any], str]] = {
    "kubectl": text,
    "indented lists": lambda value: yaml.dump(value, None, Indented),
    "four columns": lambda value: yaml.safe_dump(value, indent=4),
    "short lines": lambda value: yaml.safe_dump(value, width=20),
    "lists and mappings of scalars in one line": lambda value: yaml.safe_dump(value, default_flow_style=None),
    "all in one line": lambda value: yaml.safe_dump(value, default_flow_style=True),
    "quoted": lambda value: yaml.safe_dump(value, default_style='"'),
    "block scalars": lambda value: yaml.safe_dump(value, default_style="|"),
    "JSON with one comma more": lambda value: json.dumps(value, indent=1).removesuffix("\n}") + ",\n}",
    "Windows": lambda value: text(value).replace("\n", "\r\n"),
    "without a last line end": lambda value: text(value).rstrip("\n"),
}


IN_BLOCKS = {"kubectl", "indented lists", "four columns", "short lines", "quoted", "Windows", "without a last line end"}
CASES = cases()
EMPTY = re.compile(r"(null\"?|\{\}|\[\])\r?$", re.MULTILINE)


@pytest.mark.parametrize("style", STYLES)
def test_golden_pods_are_spliced_however_they_are_written(style: str) -> None:
    whole = 0
    for case in CASES[list(STYLES).index(style) % 4 :: 4]:
        template = {key: value for key, value in case.pod.items() if key not in {"apiVersion", "kind"}}
        try:
            (result,) = build(STYLES[style](wrapped("Deployment", template)))
        except PolicyDenied:
            continue
        if result.rewritten:
            gone = check(result)
            only_adds = all(each["op"] == "add" for each in result.operations)
            if style in IN_BLOCKS and only_adds and not EMPTY.search(result.document.text):
                assert gone == []
                whole += 1
    assert whole > 5 or style not in IN_BLOCKS


def check(result: Result) -> list[str]:
    """Check that the document was spliced and reads as computed; return the lines that are not in what was written."""
    source = result.document
    written = patched(source.text, source.node, result.operations, result.after)
    assert written == result.text
    (document,) = [each for each in split(written) if each.node is not None]
    assert json.dumps(document.load()) == json.dumps(result.after)
    assert json.dumps(result.after) == json.dumps(jsonpatch.apply_patch(result.before, result.operations))
    return gone_from(source.text.split("\n"), written.split("\n"))


def gone_from(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return the lines of one text that do not stand, in this order, in another."""
    codes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [line for code, start, end, _, _ in codes if code != "equal" for line in before[start:end]]


def add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> dict[str, Any]:
    return {"op": "remove", "path": path}


def spliced(source: str, *operations: dict[str, Any]) -> str | None:
    (document,) = split(source)
    return patched(document.text, document.node, operations, jsonpatch.apply_patch(document.load(), operations))


@pytest.mark.parametrize(
    ("source", "operations", "text"),
    [
        ("a: b  # c\n# d\n", [add("/z", 1)], "a: b  # c\nz: 1\n# d\n"),
        ("a: 'b'", [add("/z", "1e3")], "a: 'b'\nz: '1e3'"),
        ("a: |+\n  b\n\n# c\n", [add("/z", 1)], "a: |+\n  b\n\nz: 1\n# c\n"),
        ("--- {a: b}\n", [add("/z", [])], "--- {a: b, z: []}\n"),
        ("a:\r\n  b: c\r\nd:\r\n", [add("/a/z", "x\ny")], "a:\r\n  b: c\r\n  z: |-\r\n    x\r\n    y\r\nd:\r\n"),
        ("\u00e9: {\U0001f600: [a]}\n", [add("/\u00e9/\U0001f600/-", "x\ny")], '\u00e9: {\U0001f600: [a, "x\\ny"]}\n'),
        ("a:\n# b\n- c\n", [add("/a/0", "d"), add("/a/-", {"e": ["f"]})], "a:\n# b\n- d\n- c\n- e:\n  - f\n"),
        ("a:\n  - b\n", [add("/a/-", {"e": ["f"]})], "a:\n  - b\n  - e:\n      - f\n"),
        ("a:\n- # b\n  c: d\n", [add("/a/0", "e")], "a:\n- e\n- # b\n  c: d\n"),
        ("a: [{b: c}]  # d\n", [add("/a/0", "e"), add("/a/1/z", 1)], "a: [e, {b: c, z: 1}]  # d\n"),
        ("a: {\n  b: c,  # d\n}\n", [add("/a/z", 1)], "a: {\n  b: c, z: 1,  # d\n}\n"),
        ("a: []  # b\n", [{**add("/a", ["z"]), "op": "replace"}], "a:   # b\n- z\n"),
        ("a:\nb: c\n", [add("/a", {"z": 1})], "a:\n  z: 1\nb: c\n"),
        ("a:\n- b\nc: d\n", [{**add("/a", ["z", "x"]), "op": "replace"}], "a:\n- z\n- x\nc: d\n"),
        ("a:\n  b: {c: d}\n", [add("/z", 1), add("/a/z", 1)], "a:\n  b: {c: d}\n  z: 1\nz: 1\n"),
        ("a: &x {b: c}\nd:\n  e: *x\n", [add("/d/z", 1)], "a: &x {b: c}\nd:\n  e: *x\n  z: 1\n"),
        ("a: &x {b: c}\nd: *x  # e\n", [add("/d/z", 1)], "a: &x {b: c}\nd: {b: c, z: 1}  # e\n"),
        ("a: &x {b: c}\nd: *x\n", [add("/a/z", 1)], "a: &x {b: c, z: 1}\nd: {b: c}\n"),
        ("a: &x\n- b\nd: {<<: {e: *x}}\n", [add("/d/e/0", 1)], "a: &x\n- b\nd: {<<: {e: [1, b]}}\n"),
    ],
)  # fmt: skip
def test_values_are_written_where_they_belong(source: str, operations: list[dict[str, Any]], text: str) -> None:
    assert spliced(source, *operations) == text


@pytest.mark.parametrize(
    ("source", "operation"),
    [
        ("? a\n: b\n", add("/z", 1)),
        ("a: |\n  b", add("/z", 1)),
        ("a: &x {b: c, d: e}\nz: {<<: *x}\n", {"op": "remove", "path": "/z/b"}),
    ],
)
def test_what_cannot_be_spliced_is_written_as_a_whole_below_its_first_comments(
    source: str, operation: dict[str, Any]
) -> None:
    assert spliced(source, operation) is None
    (document,) = split(f"--- # c\n# d\n{source}")
    after = jsonpatch.apply_patch(document.load(), [operation])
    assert document.render([operation], after) == f"--- # c\n# d\n{dump(after)}"


@pytest.mark.parametrize(
    ("source", "operations", "text"),
    [
        ("a: b\nz: 1\n", [remove("/z")], "a: b\n"),
        ("z: 1\na: b\n", [remove("/z")], "a: b\n"),
        ("a: b\nz: 1", [remove("/z")], "a: b"),
        ("a: b  # c\n# d\nz: 1  # e\n# f\n", [remove("/z")], "a: b  # c\n# d\n# f\n"),
        ("a:\r\n  b: c\r\n  z: 1\r\nd: e\r\n", [remove("/a/z")], "a:\r\n  b: c\r\nd: e\r\n"),
        ("a:\n  z:\n    # b\n    c: d\n\n  e: f\n", [remove("/a/z")], "a:\n    # b\n\n  e: f\n"),
        ("a:\n- z:\n    c: d\n  e: f\n", [remove("/a/0/z")], "a:\n- e: f\n"),
        ("a:\n- z: 1\n  # b\n  e: f\n", [remove("/a/0/z")], "a:\n-\n  # b\n  e: f\n"),
        ("a:\n- z:\n    # b\n    c: d\n  e: f\n", [remove("/a/0/z")], "a:\n-\n    # b\n  e: f\n"),
        ("a: {z: 1, b: c, w: 2, x: 3}  # d\n", [remove(f"/a/{key}") for key in "wxz"], "a: {b: c}  # d\n"),
        ("a: {z: 1}\n", [remove("/a/z"), add("/a/b", "c")], "a: {b: c}\n"),
        ("a:\n  x: 1\n  z: 1  # b\nd: e\n", [remove("/a/x"), remove("/a/z"), add("/a/b", "c")], "a:\n  b: c\nd: e\n"),
        ("a: &x\n  b: c\n  z: 1\nd: *x\n", [remove("/d/z")], "a: &x\n  b: c\n  z: 1\nd: {b: c}\n"),
    ],
)  # fmt: skip
def test_keys_are_removed_with_their_lines_and_comments_between_them_stay(
    source: str, operations: list[dict[str, Any]], text: str
) -> None:
    assert spliced(source, *operations) == text


def test_what_does_not_read_as_computed_is_not_used() -> None:
    (document,) = split("a: 1\n")
    assert patched(document.text, document.node, [add("/z", 1)], {"a": 1, "z": True}) is None


def test_a_list_of_many_pods_keeps_its_comments() -> None:
    one = "- {kind: Pod, metadata: {annotations: {gpu-share.io/memory: 1Gi}}, spec: {containers: [{name: a}]}}"
    source = "apiVersion: v1\nkind: PodList\nitems:\n" + "".join(f"{one}  # {number}\n" for number in range(300))
    (result,) = build(source)
    assert len(json.dumps(result.after)) > 100_000
    assert result.text.count("# ") == 300
