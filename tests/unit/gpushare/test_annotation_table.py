"""The table of annotations: every key of the contract has a row, and rows agree with parsers and policies."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpushare import contract
from gpushare.annotation_table import (
    CONTAINER,
    CONTAINER_PREFIXES,
    OF_NAMESPACES,
    OF_PODS,
    TABLE,
    WRONG,
    Annotation,
    Object,
    Reader,
    of_pod,
)
from gpushare.errors import QuantityError
from gpushare.resize_annotation import ResizeRequest

ROOT: Final = Path(__file__).resolve().parents[3]
POLICY_KINDS: Final = ("ValidatingAdmissionPolicy", "MutatingWebhookConfiguration")
WRITTEN: Final = (Object.POD, Object.RUNNING_POD, Object.NAMESPACE)
PARSED: Final = [row for row in TABLE if row.on in WRITTEN and not row.label]
READ: Final = [
    (contract.ON_EXCEED, "kill-container", "kill-container"),
    (contract.GRACE_PERIOD, "1500ms", 1.5),
    (contract.GRACE_PERIOD, "0s", 0.0),
    (contract.TOLERANCE, "256Mi", 256),
    (contract.TOLERANCE, "5%", 5),
    (contract.OWN_CLAIMS, "any", True),
    (contract.GPU_MODEL, "H100, a100,H100", ("a100", "h100")),
    (contract.RESIZE_OF + CONTAINER, "3Gi;force", ResizeRequest(3072, force=True)),
]


def row(key: str) -> Annotation:
    return next(each for each in TABLE if each.key == key)


@pytest.mark.parametrize(("key", "value", "read"), READ)
def test_a_value_is_read(key: str, value: str, read: object) -> None:
    assert row(key).type.parse(value) == read


def test_every_key_of_the_contract_is_in_the_table() -> None:
    named = {value for name, value in vars(contract).items() if name.isupper() and isinstance(value, str)}
    keys = {each for each in named if re.fullmatch(r"([a-z-]+\.)?gpu-share\.io/[a-z-]*", each)}
    keys -= {contract.ATTRIBUTE_UUID, contract.CDI_KIND, contract.UNHEALTHY}
    assert keys == {key.removesuffix(CONTAINER) for each in TABLE for key in each.keys}


def test_no_object_has_two_rows_of_one_key() -> None:
    places = [(each.on, key) for each in TABLE for key in each.keys]
    assert len(places) == len({*places})


@pytest.mark.parametrize("each", PARSED, ids=lambda each: f"{each.on} {each.key}")
def test_every_example_is_accepted_and_a_wrong_value_has_a_message(each: Annotation) -> None:
    assert each.type.examples
    for example in each.type.examples:
        each.type.parse(example)
    with pytest.raises(QuantityError) as error:
        each.type.parse(WRONG)
    assert each.type.message == error.value.message
    assert WRONG in each.type.message


def test_a_value_that_only_its_reader_can_check_has_no_message() -> None:
    assert [each.key for each in TABLE if each not in PARSED and each.type.message] == []


@pytest.mark.parametrize("key", [*OF_PODS, *(f"{prefix}main" for prefix in CONTAINER_PREFIXES)])
def test_a_key_of_pods_is_found(key: str) -> None:
    found = of_pod(key)
    assert found
    assert key.startswith((found.key, *CONTAINER_PREFIXES))


@pytest.mark.parametrize(
    "key", [*OF_NAMESPACES, "gpu-share.io/", "gpu-share.io/x", "memory", "", f"{contract.RESIZE_OF}main"]
)
def test_another_key_is_not_found(key: str) -> None:
    assert of_pod(key) is None


def policies() -> str:
    """Every CEL expression of the chart, and the labels that select namespaces."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "manifests" / "install.yaml").read_text())
    return "\n".join(text for each in documents if each["kind"] in POLICY_KINDS for text in expressions(each))


def expressions(part: Any, key: str = "") -> list[str]:
    if isinstance(part, dict):
        selected = [f'"{label}"' for label in part] if key == "matchLabels" else []
        return selected + [text for name, each in part.items() for text in expressions(each, name)]
    if isinstance(part, list):
        return [text for each in part for text in expressions(each, key)]
    return [part] if key == "expression" else []


def test_the_policies_read_the_keys_that_the_table_says() -> None:
    read = {*re.findall(r'"((?:[a-z-]+\.)?gpu-share\.io/[a-z-]*)"', policies())} - {
        "gpu-share.io/",  # any label of ours
        f"{contract.GROUP}/webhook",  # reporting controllers of Events
        f"{contract.GROUP}/enforcer",
    }
    rows = [each for each in TABLE if Reader.POLICY in each.read_by]
    prefixes = {each.container_prefix for each in rows if each.container_prefix}
    assert read == {each.key.removesuffix(CONTAINER) for each in rows} | prefixes


def test_the_policy_of_namespaces_checks_amounts_by_the_types_of_the_table() -> None:
    checks = re.findall(r"!\(key in \[([^]]*)\]\)\s*\|\| variables\.new\[key\]\.matches\(\"([^\"]*)\"\)", policies())
    found = {frozenset(re.findall(r'"([^"]*)"', keys)): re.compile(pattern) for keys, pattern in checks}
    assert len(found) == 3
    for keys, pattern in found.items():
        types = {row(key).type for key in keys}
        assert len(types) == 1
        same = {each.key for each in OF_NAMESPACES.values() if {each.type} == types}
        assert same == keys, "an annotation of this type has no check in policy-namespaces.yaml"
        assert all(pattern.search(example) for each in types for example in each.examples)
        assert not pattern.search(WRONG)
