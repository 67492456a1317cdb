"""Each alert fires when it should, names what it is about, and is silent when it should be, by promtool."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import helm
from tests.support.promtool import promtool

pytestmark = pytest.mark.controlplane  # helm and promtool, which make integration brings

AT: Final = "node='gpu-1'"
ENFORCER: Final = f"job='gpu-share-enforcer',{AT}"
WEBHOOK: Final = "job='gpu-share-webhook'"
OF: Final = f"{ENFORCER},namespace='asr',pod='tts-0',container='model',gpu='GPU-1'"
NODE: Final = {"node": "gpu-1"}
GPU: Final = {**NODE, "gpu": "GPU-1"}
CONTAINER: Final = {**GPU, "namespace": "asr", "pod": "tts-0", "container": "model"}
HOUR: Final = "60m"


@dataclass(frozen=True, slots=True)
class Case:
    """Series with their values by the minute, in promtool's notation, and the labels that the alert must have."""

    fires: dict[str, str]
    silent: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    at: str = HOUR


def problem(reason: str) -> str:
    return f"gpu_share_enforcer_problem{{{ENFORCER},reason='{reason}'}}"


def lasting(series: str, labels: dict[str, str], wrong: str = "1", right: str = "0") -> Case:
    """A gauge that is wrong for an hour, and one that is right."""
    return Case({series: f"{wrong}x60"}, {series: f"{right}x60"}, labels)


SLOW: Final = "gpu_share_admission_duration_seconds_bucket{" + WEBHOOK + ",le='%s'}"
ADMITTED: Final = "gpu_share_admission_requests_total{" + WEBHOOK + ",operation='CREATE',result='%s',reason='%s'}"
UP: Final = "up{job='gpu-share-webhook',service='gpu-share-webhook',namespace='gpu-share-system'}"
DESIRED: Final = "kube_daemonset_status_%s{namespace='gpu-share-system',daemonset='gpu-share-enforcer'}"
USED, QUOTA = f"gpu_share_container_memory_used_bytes{{{OF}}}", f"gpu_share_container_memory_quota_bytes{{{OF}}}"
FAILED: Final = f"gpu_share_claim_failures_total{{{ENFORCER},operation='prepare',reason='GpuMemoryInUse'}}"
KILLED: Final = f"gpu_share_limit_violations_total{{{ENFORCER},action='killed'}}"
LIMIT: Final = f"gpu_share_limit_state{{{OF},backend='mps-v2',state='%s'}}"
VERIFIED: Final = f"gpu_share_audit_verification_timestamp_seconds{{{ENFORCER}}}"

CASES: Final[dict[str, Case]] = {
    "GpuShareWebhookDown": lasting(UP, {}, "0", "1"),
    "GpuShareEnforcerDown": lasting(f"up{{{ENFORCER}}}", NODE, "0", "1"),
    "GpuShareEnforcerDown: no pod on a labelled node": Case(
        {f"kube_node_labels{{{AT},label_gpu_share_io_enabled='true'}}": "1x60"},
        {f"kube_node_labels{{{AT},label_gpu_share_io_enabled='true'}}": "1x60", f"up{{{ENFORCER}}}": "1x60"}, NODE,
    ),
    "GpuShareEnforcerDown: the DaemonSet lacks pods": Case(
        {DESIRED % "desired_number_scheduled": "3x60", DESIRED % "number_available": "2x60"},
        {DESIRED % "desired_number_scheduled": "3x60", DESIRED % "number_available": "3x60"}, {"node": ""},
    ),
    "GpuShareAuditLogUnwritable": lasting(problem("AuditUnwritable"), NODE),
    "GpuShareAuditLogUnwritable: a record was not written": Case(
        {f"gpu_share_audit_write_errors_total{{{ENFORCER}}}": "0x45 0+1x15"},
        {f"gpu_share_audit_write_errors_total{{{ENFORCER}}}": "0x40 1x20"}, NODE,
    ),
    "GpuShareAuditRecordLost": lasting(problem("AuditRecordLost"), NODE),
    "GpuShareAuditLogBroken": lasting(f"gpu_share_audit_intact{{{ENFORCER}}}", NODE, "0", "1"),
    "GpuShareAuditLogNotVerified": Case({VERIFIED: "0x1800"}, {VERIFIED: "0x1400 86400x400"}, NODE, "1700m"),
    "GpuShareNvmlUnreadable": lasting(f"gpu_share_gpu_nvml_unavailable{{{ENFORCER},gpu='GPU-1'}}", NODE),
    "GpuShareNvmlUnreadable: no GPU can be counted": lasting(problem("NvmlHung"), NODE),
    "GpuShareGpuUnhealthy": lasting(f"gpu_share_gpu_unhealthy{{{ENFORCER},gpu='GPU-1'}}", GPU),
    "GpuShareGpuContended": lasting(f"gpu_share_gpu_contended{{{ENFORCER},gpu='GPU-1'}}", GPU),
    "GpuShareBreakerOpen": lasting(f"gpu_share_breaker_open{{{ENFORCER}}}", NODE),
    "GpuShareEnforcementHindered": Case(
        {problem("MpsUnreachable"): "1x60"}, {problem("MpsUnreachable"): "0x60", problem("AuditRecordLost"): "1x60"},
        {**NODE, "reason": "MpsUnreachable"},
    ),
    "GpuShareLimitNotInForce": Case(
        {LIMIT % "LimitEscaped": "1x60"}, {LIMIT % "InForce": "1x60"}, {**CONTAINER, "state": "LimitEscaped"}
    ),
    "GpuShareManyKills": Case({KILLED: "0x50 1+2x10"}, {KILLED: "0x50 1x10"}, NODE),
    "GpuShareContainerNearQuota": Case(
        {USED: "98x60", QUOTA: "100x60"}, {USED: "98x50 50x10", QUOTA: "100x60"}, CONTAINER
    ),
    "GpuShareUnaccountedMemory": lasting(
        f"gpu_share_gpu_memory_unaccounted_bytes{{{ENFORCER},gpu='GPU-1'}}", GPU, str(2**31), str(2**28)
    ),
    "GpuSharePrepareFailing": Case(
        {FAILED: "0+1x60"}, {FAILED: "0x30 1x30"}, {**NODE, "reason": "GpuMemoryInUse"}
    ),
    "GpuShareTemplatesMissing": lasting(f"gpu_share_templates_missing{{{WEBHOOK}}}", {}),
    "GpuShareAdmissionErrors": Case(
        {ADMITTED % ("errored", "NamespaceUnknown"): "0+1x60"},
        {ADMITTED % ("denied", "ConflictsWithShare"): "0+1x60", ADMITTED % ("errored", "BadRequest"): "0+1x60"},
        {"reason": "NamespaceUnknown"},
    ),
    "GpuShareAdmissionSlow": Case(
        {SLOW % "1.0": "0+1x60", SLOW % "2.5": "0+20x60", SLOW % "+Inf": "0+20x60"},
        {SLOW % "1.0": "0+20x60", SLOW % "2.5": "0+20x60", SLOW % "+Inf": "0+20x60"},
    ),
    "GpuShareCertificateExpiresSoon": lasting(
        f"gpu_share_serving_cert_expiry_timestamp_seconds{{{WEBHOOK}}}", {}, "90000", "900000"
    ),
}  # fmt: skip
"""By the alert's name; what follows a colon tells several cases of one alert apart."""


def rules(*options: str) -> list[dict[str, Any]]:
    """Return the alerts as the chart renders them."""
    helm.need()
    objects = helm.objects("--set=monitoring.prometheusRule.enabled=true", *options)
    found = [each for each in objects if each["kind"] == "PrometheusRule"]
    return list(found[0]["spec"]["groups"][0]["rules"])


def written_for(name: str, case: Case, rule: dict[str, Any]) -> list[dict[str, Any]]:
    """Write one case as promtool has it: the alert with every label that its texts name, and no alert."""
    alert = f'ALERTS{{alertname="{rule["alert"]}",alertstate="firing"}}'
    named = sorted({*re.findall(r"\$labels\.([a-z]+)", json.dumps(rule["annotations"])), *case.labels})
    labels = ",".join(f'{key}="{value}"' for key, value in case.labels.items() if value)
    wanted = [{"labels": f"{{{labels}}}", "value": 1}]

    def test(what: str, series: dict[str, str], samples: list[dict[str, Any]]) -> dict[str, Any]:
        query = f"count by ({', '.join(named)}) ({alert})"
        return {
            "name": f"{name}, {what}", "interval": "1m",
            "input_series": [{"series": each, "values": values} for each, values in series.items()],
            "promql_expr_test": [{"expr": query, "eval_time": case.at, "exp_samples": samples}],
        }  # fmt: skip

    assert set(named) == set(case.labels), f"{name}: its texts name {named}"
    return [test("fires", case.fires, wanted), test("is silent", case.silent, [])]


def test_each_alert_fires_when_it_should_and_is_silent_when_it_should_be(tmp_path: Path) -> None:
    found = {rule["alert"]: rule for rule in rules()}
    assert {name.partition(":")[0] for name in CASES} == found.keys()
    groups = {"groups": [{"name": "gpu-share", "rules": list(found.values())}]}
    (tmp_path / "rules.json").write_text(json.dumps(groups))
    cases = [each for name, case in CASES.items() for each in written_for(name, case, found[name.partition(":")[0]])]
    written = {"rule_files": ["rules.json"], "evaluation_interval": "5m", "tests": cases}
    (tmp_path / "tests.json").write_text(json.dumps(written))
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.json", folder=tmp_path)
    assert "exit code" not in said, said
    said = promtool("test", "rules", "tests.json", folder=tmp_path)
    assert "SUCCESS" in said, said
    assert "exit code" not in said, said


def test_every_alert_says_what_it_means_and_names_a_section_of_the_page_for_the_night() -> None:
    page = (helm.ROOT / "docs" / "operators" / "runbook.md").read_text()
    heads = re.findall(r"^## (.*)$", page, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
    for rule in rules("--set=monitoring.prometheusRule.runbook=https://example.org/3am"):
        notes = rule["annotations"]
        assert notes["summary"] != notes["description"]
        address, _, anchor = notes["runbook_url"].partition("#")
        assert (address, anchor in anchors) == ("https://example.org/3am", True), rule["alert"]
        assert rule["alert"].lower() in anchor
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_every_alert_has_the_labels_by_which_the_operator_routes_it() -> None:
    plain = rules()
    labels = {"team": "gpu", "page": "yes"}
    labelled = rules(f"--set-json=monitoring.prometheusRule.alertLabels={json.dumps(labels)}")
    assert labelled == [{**rule, "labels": rule["labels"] | labels} for rule in plain]


@pytest.mark.parametrize("label", [{"severity": "info"}, {"alertname": "X"}, {"a-b": "c"}, {"team": 1}])
def test_a_label_that_no_alert_can_have_is_refused(label: dict[str, object]) -> None:
    options = ("--set=monitoring.prometheusRule.enabled=true",)
    with pytest.raises(helm.HelmError, match="/monitoring/prometheusRule/alertLabels"):
        helm.template(*options, f"--set-json=monitoring.prometheusRule.alertLabels={json.dumps(label)}")


def test_slow_is_a_third_of_the_time_that_the_api_server_waits() -> None:
    for seconds, wanted in ((3, 1.0), (12, 4.0)):
        found = {rule["alert"]: rule["expr"] for rule in rules(f"--set=webhook.timeoutSeconds={seconds}")}
        assert float(found["GpuShareAdmissionSlow"].rpartition("> ")[2]) == wanted
