"""Comments and all lines that ask for nothing come out byte for byte, wherever they stand."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_cli.inject.manifest import split
from gpushare_cli.migrate.command import migrated
from gpushare_cli.migrate.convert import Known

Line = tuple[str, bool]
"""A line without its comment, and whether it is the other system's."""
OWN = st.sampled_from(['cpu: "2"', "memory: 4Gi", "ephemeral-storage: '1Gi'"])
FOREIGN = st.permutations(
    ["nvidia.com/gpu: 1", "nvidia.com/gpumem: 4096", "nvidia.com/gpucores: 30", "nvidia.com/priority: 1"]
)
NOTES = st.lists(st.sampled_from(["a: b", "c: 'd'", "e: |"]), unique=True)


@st.composite
def limits(draw: Any, *, foreign: bool) -> list[Line]:
    """Draw the resources of a container; a mapping in which nothing is left is the other system's as well."""
    parts, order = draw(st.sampled_from([["limits"], ["requests"], ["limits", "requests"]])), draw(FOREIGN)
    lines, kept = list[Line](), False
    for part in parts:
        own = draw(st.lists(OWN, unique=True, max_size=0 if foreign else None))
        inner = draw(
            st.permutations([(f"    {each}", False) for each in own] + [(f"    {each}", True) for each in order])
        )
        lines += [(f"  {part}:", not own), *inner]
        kept = kept or bool(own)
    return [("resources:", not kept), *lines]


@st.composite
def manifests(draw: Any) -> list[Line]:
    annotations = [(f"  {each}", False) for each in draw(NOTES)]
    annotations = [each for line in annotations for each in (line, *[("    # text", False)] * line[0].endswith("|"))]
    policy = [("  hami.io/gpu-scheduler-policy: spread", True)] * draw(st.booleans())
    metadata = [("name: p", False)]
    if annotations or policy:
        metadata += [("annotations:", False), *policy, *annotations]
    resources = draw(limits(foreign=draw(st.booleans())))
    body = draw(
        st.permutations([[("image: x", False)], resources, [("env:", False), ("- {name: A, value: b}", False)]])
    )
    container = [("- name: a", False), *((f"  {text}", foreign) for lines in body for text, foreign in lines)]
    spec = [("schedulerName: hami-scheduler", True)] * draw(st.booleans())
    inner = [*spec, ("containers:", False), *container, ("restartPolicy: Never", False)]
    return [
        ("apiVersion: v1", False), ("kind: Pod", False),
        ("metadata:", False), *((f"  {text}", foreign) for text, foreign in metadata),
        ("spec:", False), *((f"  {text}", foreign) for text, foreign in inner),
    ]  # fmt: skip


@st.composite
def commented(draw: Any) -> tuple[list[str], list[str]]:
    """Return the lines of a manifest, and those of them that have to come out."""
    source, kept = list[str](), list[str]()
    for number, (text, foreign) in enumerate(draw(manifests())):
        block = text.endswith("# text")
        if not block and draw(st.integers(0, 3)) == 0:
            comment = " " * (len(text) - len(text.lstrip())) + f"# c{number}"
            source.append(comment)
            kept.append(comment)
        end = f"  # e{number}" * (not block and not text.endswith("|") and draw(st.integers(0, 3)) == 0)
        source.append(text + end)
        kept += [text + end] * (not foreign)
    return source, kept


@given(commented(), st.sampled_from(["\n", "\r\n"]))
@settings(deadline=None, max_examples=200)
def test_comments_and_unrelated_lines_are_kept_byte_for_byte(lines: tuple[list[str], list[str]], end: str) -> None:
    source, kept = lines
    (result,) = migrated(split(end.join([*source, ""])), Known())
    written = result.text.split(end)
    added = [line for line in written if "gpu-share.io/" in line or (line == "  annotations:" and line not in source)]
    assert [line.strip() for line in added if ":" in line][-2:] == [
        "gpu-share.io/memory: 4Gi",
        "gpu-share.io/compute: 30%",
    ]
    assert [line for line in written if line not in added] == [*kept, ""]
