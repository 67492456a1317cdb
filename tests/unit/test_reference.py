"""The documents name every annotation, label, Reason and metric there is, and every way to read the audit log."""

import re
from pathlib import Path
from typing import Final

import pytest

from enforcer.audit.log import AuditLog
from enforcer.audit.verification import LogVerifier
from enforcer.mps.event_reporter import IncidentCollector
from enforcer.mps.incidents import IncidentLog
from enforcer.status.metrics import Metrics, StatusCollector, VerificationCollector
from gpushare.reason_table import BY_REASON
from gpushare.reasons import Reason
from gpushare_cli.main import build_parser
from tests.support import annotations, reasons

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = ROOT / "docs" / "reference"


def test_the_tables_of_annotations_are_those_of_the_code() -> None:
    assert annotations.page() == annotations.PAGE.read_text(), "run make golden"


def test_every_way_to_read_the_audit_log_is_in_its_table() -> None:
    parser = build_parser("audit")
    help_ = next(action for action in parser._actions if action.dest == "verb").choices["audit"]  # type: ignore[index]
    actions = next(action for action in help_._actions if action.dest == "action").choices
    text = (PAGES / "files.md").read_text()
    for name, action in actions.items():
        assert f"| `{name}` |" in text
        words = [word for each in action._actions for word in each.option_strings if word.startswith("--")]
        spoken = {"--help", "--kubeconfig", "--context", "--all-nodes", "--output", "--namespace"}
        assert [word for word in words if word not in spoken and word not in text] == [], name


def test_the_page_of_reasons_is_that_of_the_code_and_each_has_its_anchor() -> None:
    text = reasons.PAGE.read_text()
    assert reasons.page() == text, "run make golden"
    heads = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert sorted(heads) == sorted(Reason)
    assert [BY_REASON[Reason(head)].anchor for head in heads] == [head.lower() for head in heads]


def test_every_metric_is_listed() -> None:
    metrics = (PAGES / "metrics.md").read_text()
    families = [
        *Metrics().registry.collect(),
        *StatusCollector().collect(),
        *IncidentCollector(IncidentLog()).collect(),
    ]
    families += VerificationCollector(LogVerifier(ROOT, AuditLog(ROOT))).collect()
    own = {each.name + ("_total" if each.type == "counter" else "") for each in families if "gpu_share" in each.name}
    assert len(own) > 20
    assert [name for name in sorted(own) if f"`{name}`" not in metrics] == []


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_use(reason: Reason) -> None:
    sources = (file.read_text() for part in ("gpushare", "gpushare_cli", "enforcer", "webhook", "sidecar", "certs")
               for file in (ROOT / part).rglob("*.py"))  # fmt: skip
    assert any(re.search(rf"\bReason\.{reason.name}\b", source) for source in sources)
