"""``docs/operators/recipes.md``: every recipe says what was tried, its blocks are YAML and name what is there."""

import re
from typing import Final

import pytest
import yaml

from gpushare import contract
from tests.support import recipes

TEXT: Final = recipes.RECIPES.read_text()
SECTIONS: Final = recipes.sections(TEXT)
STATE: Final = re.compile(r"\*\*(Tested|Tested in part|Untested)\b")


@pytest.mark.parametrize("head", list(SECTIONS))
def test_every_recipe_says_at_once_whether_it_was_tested(head: str) -> None:
    assert STATE.match(SECTIONS[head].strip()), head


def test_the_table_has_every_recipe_and_says_the_same_of_it() -> None:
    rows = dict(re.findall(r"^\| \[([^\]]+)\]\(#[a-z-]+\) \| (.*) \|$", TEXT, re.MULTILINE))
    assert set(rows) == set(SECTIONS)
    for head, said in rows.items():
        (state,) = STATE.findall(SECTIONS[head].strip())[:1]
        assert "untested" not in said or re.search(r"untested\*\*|has not been run|\*\*Untested\*\*", SECTIONS[head])
        assert said.startswith(
            "tested in part" if state == "Tested in part" else ("tested", "what it relies on tested")
        )


def test_the_issue_asks_for_these() -> None:
    wanted = {"Cluster Autoscaler", "Karpenter", "Kueue", "Argo CD", "Custom schedulers"}
    assert wanted < set(SECTIONS)
    assert any(head.startswith("Preemption") for head in SECTIONS)


def test_blocks_are_yaml() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 4
    assert all(isinstance(yaml.safe_load(each), dict) for each in blocks)


def test_kueue_maps_each_of_our_device_classes() -> None:
    mappings = yaml.safe_load(recipes.block("Kueue"))["resources"]["deviceClassMappings"]
    mapped = [name for each in mappings for name in each["deviceClassNames"]]
    assert sorted(mapped) == sorted([*contract.SHARING_CLASSES, contract.STATUS_DEVICE_CLASS])


def test_kueue_counts_the_memory_of_our_devices() -> None:
    (mapping,) = yaml.safe_load(recipes.block("Kueue", 1))["resources"]["deviceClassMappings"]
    ((capacity,),) = (source.values() for source in mapping["sources"])
    assert mapping["deviceClassNames"] == [contract.DEVICE_CLASS]
    assert capacity["driver"] == contract.DRIVER


def test_argo_cd_ignores_the_field_of_our_configuration() -> None:
    (ignored,) = yaml.safe_load(recipes.block("Argo CD"))["ignoreDifferences"]
    chart = recipes.RECIPES.parents[2] / "deploy" / "manifests" / "install.yaml"
    objects = [each for each in yaml.safe_load_all(chart.read_text()) if each and each["kind"] == ignored["kind"]]
    assert [each["metadata"]["name"] for each in objects] == [ignored["name"]]
    assert ignored["jsonPointers"] == [
        f"/webhooks/{n}/clientConfig/caBundle" for n in range(len(objects[0]["webhooks"]))
    ]
