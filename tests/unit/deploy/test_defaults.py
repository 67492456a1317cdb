"""The chart's values are the defaults of the processes, which stand in ``gpushare/defaults.py``."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from certs.main import _parser as certs_parser
from enforcer.audit.retention import Retention
from enforcer.detection.types import DetectorConfig
from enforcer.flags import _parser as enforcer_parser
from enforcer.kill.process_kill import KillTimeouts
from enforcer.quota.types import DEFAULT_GRACE_SECONDS, MIN_TOLERANCE_MIB, TOLERANCE_SHARE
from gpushare import defaults
from gpushare_cli.main import build_parser
from webhook.flags import Options

CHART: Final = Path(__file__).parents[3] / "deploy" / "helm" / "gpu-share"
VALUES: Final = yaml.safe_load((CHART / "values.yaml").read_text())
OPTIONAL: Final = {"enforcer.memoryReserve": ""}
"""Values that the chart passes only where they are set."""


def value(path: str) -> Any:
    found = VALUES
    for key in path.split("."):
        found = found[key]
    return found


def passed(template: str) -> Iterator[tuple[str, Any]]:
    """Each flag that a template sets from one value, but for the simulator's, with that value."""
    text = (CHART / "templates" / template).read_text()
    for flag, path in re.findall(r"- (--[a-z-]+)=\{\{ (?:int )?\$?\.Values\.([A-Za-z.]+) \}\}", text):
        if not path.startswith("simulate."):
            yield flag, value(path)


def uninstall_parser() -> argparse.ArgumentParser:
    verbs = next(each for each in build_parser("uninstall")._actions if each.dest == "verb")
    found: argparse.ArgumentParser = verbs.choices["uninstall"]  # type: ignore[index]
    return found


PARSERS: Final = {
    "enforcer.yaml": (enforcer_parser, []),
    "certs.yaml": (certs_parser, []),
    "uninstall.yaml": (uninstall_parser, ["node"]),
}


@pytest.mark.parametrize("template", PARSERS)
def test_a_flag_has_the_default_of_its_chart_value(template: str) -> None:
    build, words = PARSERS[template]
    flags = dict(passed(template))
    given = build().parse_args([*words, *(f"{flag}={value}" for flag, value in flags.items())])
    assert len(flags) > 1
    assert given == build().parse_args(words), "change gpushare/defaults.py or values.yaml"


def test_every_default_of_the_enforcer_has_a_chart_value() -> None:
    flags = {flag.removeprefix("--").replace("-", "_") for flag, _ in passed("enforcer.yaml")}
    assert flags == defaults.ENFORCER.keys()


def test_a_setting_of_the_webhook_has_the_default_of_its_chart_value() -> None:
    text = (CHART / "templates" / "webhook.yaml").read_text()
    found = re.findall(r"name: (GPU_SHARE_\w+)\n +value: \{\{ (join \",\" )?\.Values\.([A-Za-z.]+) \| quote", text)
    given = {name: ",".join(value(path)) if join else str(value(path)) for name, join, path in found}
    given.pop("GPU_SHARE_CLIENT_NAME")  # set beside the client CA alone
    assert {"GPU_SHARE_RETENTION", "GPU_SHARE_SCHEDULER_NAMES", "GPU_SHARE_MIN_MEMORY"} <= given.keys()
    assert Options.read([], given) == Options.read([], {})
    assert [value(path) for path in OPTIONAL] == [*OPTIONAL.values()]


def test_the_enforcers_own_classes_have_the_same_defaults() -> None:
    ours = (DetectorConfig().kills, DetectorConfig().notice, KillTimeouts().term)
    names = ("max_kills_per_minute", "reclaim_notice_seconds", "termination_timeout")
    assert ours == tuple(defaults.ENFORCER[name] for name in names)
    kept = Retention()
    assert (kept.mib, kept.segments, kept.days) == tuple(
        defaults.ENFORCER[f"audit_keep_{unit}"] for unit in ("mib", "segments", "days")
    )
    assert (DEFAULT_GRACE_SECONDS, MIN_TOLERANCE_MIB) == (defaults.GRACE_SECONDS, defaults.TOLERANCE_MIB)
    assert 100 // TOLERANCE_SHARE == defaults.TOLERANCE_PERCENT
