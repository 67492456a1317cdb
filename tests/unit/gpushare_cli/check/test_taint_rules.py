"""DeviceTaintRules of administrators, as far as they concern our GPUs."""

from typing import Any

import pytest

from gpushare.errors import ClusterError
from gpushare_cli.check.cluster import taint_rules
from tests.unit.gpushare_cli.check.api import Api

TAINT = {"key": "example.com/repair", "value": "fan", "effect": "NoExecute"}


def rule(selector: Any) -> dict[str, Any]:
    return {"metadata": {"name": "repair"}, "spec": {"deviceSelector": selector, "taint": TAINT}}


def asked(api: Api) -> tuple[str, str]:
    found = taint_rules(api)  # type: ignore[arg-type] # it only lists
    return found.level, found.detail


@pytest.mark.parametrize(
    ("selector", "where"),
    [
        ({}, "every GPU"),
        ({"driver": "gpu-share.io"}, "every GPU"),
        ({"driver": "gpu-share.io", "pool": "n1"}, "pool n1"),
        ({"pool": "n1", "device": "gpu-1"}, "pool n1, device gpu-1"),
        (None, ""),
        ({"driver": "gpu.nvidia.com"}, ""),
    ],
)
def test_a_rule_that_can_match_our_gpus_is_shown_with_its_taint(selector: Any, where: str) -> None:
    level, detail = asked(Api({"devicetaintrules": [rule(selector)]}))
    assert level == ("warning" if where else "ok")
    assert detail == (f"repair (example.com/repair=fan:NoExecute on {where})" if where else "none")


class Older(Api):
    """Serves the kind in one version alone, or in none."""

    def __init__(self, version: str) -> None:
        super().__init__({"devicetaintrules": [rule({})]})
        self.version = version

    def list(self, where: str, **query: str) -> tuple[Any, str]:
        if self.version not in where.split("/"):
            raise ClusterError(f"GET {where}: 404", 404)
        return super().list(where, **query)


def test_the_version_that_is_served_is_read_and_without_one_there_are_no_rules() -> None:
    assert [asked(Older(version))[0] for version in ("v1", "v1beta2", "none")] == ["warning", "warning", "ok"]


def test_rules_that_cannot_be_read_are_not_taken_for_none() -> None:
    with pytest.raises(ClusterError):
        asked(Api({"devicetaintrules": 500}))
