"""The page of waste: the advice of ``gpu-share advise``, and what it is worth."""

from typing import Any

import pytest

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import Kind
from gpushare.errors import ClusterError
from gpushare_cli.ui import sources
from tests.support.ui import words
from tests.unit.gpushare_cli.ui.fleets import Logged, client, opened


@pytest.fixture(autouse=True)
def _old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LEAST_AGE", 0.0)


def test_what_right_sizing_frees_and_what_that_is_worth_at_a_price(cluster: Logged) -> None:
    browser = client(cluster)
    text = words(opened(browser, "waste.html", price="2,50"))
    assert "asr /Pod asr-0 model 1 4Gi 1Gi 1280Mi gpu-share.io/memory: 1280Mi" in text
    assert "llm /Pod llm-0 model 1 4Gi 2Gi 3Gi gpu-share.io/memory: 3Gi" in text
    assert "tts /Pod tts-0 model 1 4Gi 9Gi 10Gi gpu-share.io/memory: 10Gi" in text
    assert "Others need 6Gi more." in text
    # 2,816 + 1,024 MiB of GPUs of 16, 16 and 8 GiB
    assert "reserve 3840Mi less: as much as 0.3 GPUs of this cluster, worth 513.28 in a month" in text


@pytest.mark.parametrize("price", ["", "x", "1e9", "-1", "9" * 40, "٣"])
def test_what_is_no_price_gives_no_worth(price: str, cluster: Logged) -> None:
    assert "worth" not in words(opened(client(cluster), "waste.html", price=price))


def test_a_tenant_sees_the_own_namespace_and_why_no_other(cluster: Logged) -> None:
    kinds: Any = {"nodes", "resourceslices", "resourceclaims", "pods", "events", "daemonsets"}
    cluster.hidden |= kinds
    text = words(opened(client(cluster), "waste.html"))
    assert "only namespace asr: you may not list daemonsets in the cluster" in text
    assert "asr /Pod asr-0" in text
    assert "llm" not in text


def test_kills_that_are_not_known_are_named_beside_the_advice(cluster: Logged) -> None:
    assert "unknown" not in words(opened(client(cluster), "waste.html"))
    cluster.broken = ClusterError("no route to host", 500)
    text = words(opened(client(cluster), "waste.html"))
    assert "kills on node one before the last hour are unknown: cannot read the audit log: no route to host" in text


def test_a_kill_in_the_audit_log_keeps_what_a_workload_has(cluster: Logged) -> None:
    for file in segments(cluster.folders["one"] / "audit"):
        file.unlink()
    with AuditLog(cluster.folders["one"] / "audit") as log:
        about = {"node": "one", "pod": {"namespace": "asr", "name": "asr-0", "uid": "u"}, "container": "model"}
        log.append(Kind.OUTCOME, {**about, "intent": 1, "result": "Killed", "targets": []})
    text = words(opened(client(cluster), "waste.html"))
    assert "asr /Pod asr-0 model 1 4Gi 1Gi 4Gi keep it it was killed for its memory" in text
