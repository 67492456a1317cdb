"""The page of kills: each node's audit log, verified as ``audit verify`` does, with its records."""

import copy
import json

import pytest

from enforcer.audit.log import segments
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare_cli.main import main
from gpushare_cli.ui import sources
from tests.support.ui import words
from tests.unit.gpushare_cli.audit_logs import write
from tests.unit.gpushare_cli.ui.fleets import REPORTER, Logged, client, opened, report
from tests.unit.gpushare_cli.ui.test_pages import until


def test_each_log_is_verified_with_its_anchor_and_its_records_are_shown(cluster: Logged) -> None:
    text = words(opened(client(cluster), "kills.html"))
    assert text.count("ok : 6 records in 1 segment are intact; 1 anchor matches") == 2
    row = "one 6 2026-11-20T22:05:00.000Z OUTCOME asr/tts-2 model-1 GPU-01234567 9216Mi 4096Mi AlreadyExited 505"
    assert row in text, "use and quota stand in the INTENT"
    assert "INTENT" not in text.replace("head", "")
    every = words(opened(client(cluster), "kills.html", show="all", node="one", namespace="ml"))
    assert (every.count("INTENT"), every.count("OUTCOME")) == (3, 0)


def test_a_log_that_somebody_changed_is_broken_in_the_words_of_audit_verify(
    cluster: Logged, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = segments(cluster.folders["two"] / "audit")[0]
    file.write_bytes(file.read_bytes().replace(b"tts-1", b"tts-9", 1))
    monkeypatch.setattr(KubeClient, "connect", lambda *_: cluster)
    assert main(["audit", "verify", "-A"]) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if "broken" in line]
    html = opened(client(cluster), "kills.html")
    assert '<span class="state bad">broken</span>' in html
    assert said[0].partition("broken: ")[2] in words(html)


def test_a_log_that_lost_its_end_is_broken_by_its_anchor(cluster: Logged) -> None:
    file = segments(cluster.folders["one"] / "audit")[-1]
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    assert "the log was truncated" in words(opened(client(cluster), "kills.html"))


def test_a_log_is_read_again_when_a_kill_is_known_and_not_before(cluster: Logged) -> None:
    browser = client(cluster)
    opened(browser, "kills.html")
    head = write(cluster.folders["one"], node="one")
    until(lambda: cluster.exports >= 2)
    assert cluster.exports == 2
    event = {
        "metadata": {"namespace": "asr", "name": "kill"}, "reportingComponent": REPORTER, "reportingInstance": "one",
        "reason": "Killed", "message": f"ended; audit log {head}",
    }  # fmt: skip
    cluster.change("ADDED", "events", event)
    until(lambda: "ok : 12 records" in words(opened(browser, "kills.html")), seconds=2.0)
    assert cluster.exports == 3, "the other node's log is not read again"


def test_a_log_is_read_again_when_its_enforcer_reports_something_else(cluster: Logged) -> None:
    browser = client(cluster)
    assert "broken" not in words(opened(browser, "kills.html"))
    file = segments(cluster.folders["two"] / "audit")[0]
    file.write_bytes(file.read_bytes().replace(b"tts-1", b"tts-9", 1))
    changed = copy.deepcopy(cluster.lists["resourceslices"][1])
    report(changed, "audit log: the content of the line does not match its hash")
    cluster.change("MODIFIED", "resourceslices", changed)
    until(lambda: "two : broken :" in words(opened(browser, "kills.html")), seconds=2.0)
    assert cluster.exports == 3


def test_records_stay_where_a_log_cannot_be_read_any_more(cluster: Logged) -> None:
    browser = client(cluster)
    assert "one 6 2026-" in words(opened(browser, "kills.html"))
    cluster.broken = ClusterError("the node is down")
    changed = copy.deepcopy(cluster.lists["resourceslices"][0])
    report(changed, "another one")
    cluster.change("MODIFIED", "resourceslices", changed)
    until(lambda: "not read cannot read the audit log: the node is down" in words(opened(browser, "kills.html")))
    assert "one 6 2026-" in words(opened(browser, "kills.html"))


def test_a_node_whose_enforcer_is_gone_is_named_and_its_records_stay(
    cluster: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "FIND_SECONDS", 0.0)
    browser = client(cluster)
    assert "one 6 2026-" in words(opened(browser, "kills.html"))
    pods = cluster.lists["pods"]
    cluster.lists["pods"] = [each for each in pods if each["metadata"]["name"] != "enforcer-one"]
    until(lambda: "one : not read no enforcer runs there" in words(opened(browser, "kills.html")))
    assert "one 6 2026-" in words(opened(browser, "kills.html"))
    cluster.lists["pods"] = pods
    until(lambda: "one : ok : 6 records" in words(opened(browser, "kills.html")), seconds=2.0)


def test_the_records_are_exported_as_their_enforcers_wrote_them(cluster: Logged) -> None:
    browser = client(cluster)
    lines = opened(browser, "kills.jsonl", node="one", show="all").splitlines()
    written = b"".join(file.read_bytes() for file in segments(cluster.folders["one"] / "audit")).decode().splitlines()
    assert sorted(lines) == sorted(written)
    assert {json.loads(line)["kind"] for line in opened(browser, "kills.jsonl").splitlines()} == {"OUTCOME"}


def test_a_node_that_does_not_answer_and_a_missing_right_are_sentences(cluster: Logged) -> None:
    next(each for each in cluster.lists["pods"] if each["metadata"]["name"] == "enforcer-one")["status"]["phase"] = (
        "Pending"
    )
    text = words(opened(client(cluster), "kills.html"))
    assert "one : not read cannot read the audit log: pod gpu-share-system/enforcer-one is Pending" in text
    cluster.refused["daemonsets"] = ClusterError(
        'User "x" cannot list resource "daemonsets" in API group "apps" at the cluster scope', 403
    )
    refused = words(opened(client(cluster), "kills.html"))
    assert "you may not list daemonsets in the cluster; ask for the ClusterRole gpu-share-operator" in refused


def test_a_pod_has_the_records_about_it(cluster: Logged) -> None:
    browser = client(cluster)
    opened(browser, "kills.html")
    cluster.lists["pods"][0]["metadata"]["name"] = "tts-2"
    cluster.answers["tts-2"] = cluster.answers["asr-0"]
    assert "OUTCOME asr/tts-2" in words(opened(browser, "pod_asr_tts-2.html"))
