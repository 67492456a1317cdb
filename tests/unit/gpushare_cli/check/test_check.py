"""What ``gpu-share check`` asks a cluster, and how the answers are put together."""

import base64
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from certs.pki import make_authority
from enforcer.quota.sharing_mode import CHANGES, SharingModes
from enforcer.quota.types import Mode
from enforcer.resourceslices.contention import UNKNOWN
from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare.reason_table import BY_REASON
from gpushare.reasons import Reason
from gpushare_cli.check import cluster, command, connection, node, workloads
from gpushare_cli.check.result import Checker, Level, failed, ok, warning
from gpushare_cli.main import main
from gpushare_cli.terminal import Terminal
from tests.unit.gpushare_cli.check.api import Api

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def hooks_with(*bundles: bytes) -> dict[str, Any]:
    """Our webhook configuration, with so many webhooks."""
    return {
        "webhooks": [{"name": "pods.gpu-share.io", "clientConfig": {"caBundle": encoded(each)}} for each in bundles]
    }


def encoded(bundle: bytes) -> str:
    return base64.b64encode(bundle).decode()


def authority(ends: timedelta) -> bytes:
    return make_authority(NOW - timedelta(days=9), NOW + ends).certificate


@pytest.mark.parametrize(
    ("version", "level", "last"),
    [
        *(("v1.37.1", "ok", False), ("v1.36.0-rc.1", "ok", False), ("v2.0.0", "ok", False)),
        *(("v1.35.9", "wrong", False), ("v1.34.0", "wrong", False), ("v1.33.9", "wrong", True)),
        ("weird", "warning", False),
    ],
)
def test_kubernetes_has_to_be_new_enough(version: str, level: str, last: bool) -> None:  # noqa: FBT001
    found = connection.version(Api({"version": {"gitVersion": version}}))  # type: ignore[arg-type] # it only gets
    assert (found.level, found.last) == (level, last), "what 1.34 and 1.35 lack is asked; older ones have no claims"
    assert level != "wrong" or found.detail == f"{version}; 1.36 is needed"


def test_a_server_that_behaves_like_an_older_version_is_one() -> None:
    said = {"gitVersion": "v1.37.1", "major": "1", "minor": "37", "emulationMajor": "1", "emulationMinor": "35"}
    found = connection.version(Api({"version": said}))  # type: ignore[arg-type] # it only gets
    assert (found.level, found.detail) == ("wrong", "v1.35 (emulated by v1.37.1); 1.36 is needed")
    found = connection.version(Api({"version": said | {"emulationMinor": "37"}}))  # type: ignore[arg-type]
    assert (found.level, found.detail) == ("ok", "v1.37.1")


def test_an_api_server_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KubeClient, "connect", lambda *_: Api({"version": 503}))
    answers = list(command.ask(connection.connected(None, None, required=True, questions=list)))
    assert [(each.description, each.level) for each in answers] == [("Kubernetes", "wrong")]


@pytest.mark.parametrize(
    ("bundles", "level", "says"),
    [
        ([], "wrong", "missing"),
        ([b""], "wrong", "no caBundle"),
        ([b"junk"], "wrong", "cannot be read"),
        ([authority(timedelta(days=-1))], "wrong", "expired on 2026-11-20"),
        ([authority(timedelta(days=1))], "warning", "expires on 2026-11-22"),
        ([authority(timedelta(days=-1)) + authority(timedelta(days=90))], "ok", "until 2027-02-19"),
        ([authority(timedelta(days=90)), b""], "wrong", "no caBundle"),
    ],
)
def test_each_webhook_has_to_have_a_bundle_that_is_valid(bundles: list[bytes], level: str, says: str) -> None:
    found = cluster.webhook(Api({"gpu-share": hooks_with(*bundles)}), NOW)  # type: ignore[arg-type] # it only reads
    assert (found.level, says in found.detail) == (level, True)


@pytest.mark.parametrize(
    ("ends", "level", "says"),
    [
        (
            timedelta(hours=-1),
            "wrong",
            "gpu-share-system/gpu-share-webhook-tls) expired on 2026-11-20T23:00:00Z, not its CA",
        ),
        (timedelta(days=2), "warning", "expires on 2026-11-23"),
        (timedelta(days=20), "ok", "its CA is valid until"),
        (None, "ok", "its CA is valid until"),
    ],
)
def test_a_serving_certificate_that_was_not_renewed_is_named_and_not_its_authority(
    ends: timedelta | None, level: str, says: str
) -> None:
    notes = {contract.SERVING_ENDS: "nonsense" if ends is None else (NOW + ends).isoformat()}
    item = {"metadata": {"annotations": notes}, **hooks_with(authority(timedelta(days=90)))}
    found = cluster.webhook(Api({"gpu-share": item}), NOW)  # type: ignore[arg-type] # it only reads
    assert (found.level, says in found.detail) == (level, True)


SERVICE: Final = {"namespace": "gpu-share-system", "name": "gpu-share-webhook"}


@pytest.mark.parametrize(
    ("name", "hook", "level"),
    [
        ("gpu-share", {"name": "pods.gpu-share.io"}, "ok"),
        ("a-gpu-share", {"name": "pods.gpu-share.io"}, "wrong"),
        ("old", {"name": "old.example.org", "clientConfig": {"service": SERVICE}}, "wrong"),
        ("other", {"name": "x.example.org", "clientConfig": {"service": {**SERVICE, "namespace": "other"}}}, "ok"),
        ("other", {"name": "notgpu-share.io.example.org"}, "ok"),
    ],
)
def test_another_configuration_that_calls_the_webhook_is_named(name: str, hook: dict[str, Any], level: str) -> None:
    items = [{"metadata": {"name": name}, "webhooks": [{"name": "x.example.org"}, hook]}]
    found = cluster.other_configurations(Api({"mutatingwebhookconfigurations": items}))  # type: ignore[arg-type]
    assert (found.level, name in found.detail and name in found.hint) == (level, level == "wrong")


@pytest.mark.parametrize(
    ("levels", "level", "named"),
    [
        (["baseline", "restricted"], Level.OK, 0),
        (["baseline", None], Level.WARNING, 1),
        (["privileged"] * 9, Level.WARNING, 5),
    ],
)
def test_namespaces_that_let_pods_reach_the_node_are_named(levels: list[str | None], level: Level, named: int) -> None:
    found = [
        {"metadata": {"name": f"team-{number}", "labels": {cluster.POD_SECURITY: each} if each else {}}}
        for number, each in enumerate(levels)
    ]
    finding = cluster.opted_in(Api({"namespaces": found}))  # type: ignore[arg-type]
    assert (finding.level, finding.detail.count("team-")) == (level, named)


def test_gpus_that_are_left_out_are_named_with_the_reason() -> None:
    contended = {
        "gpu-share.io/excluded-gpus": json.dumps(
            {"GPU-1": "Contended: a device plugin offers the GPU as nvidia.com/gpu"}
        )
    }
    slices: list[Any] = [{"metadata": {"annotations": contended}, "spec": {"nodeName": "gpu-7"}}] * 2
    found = cluster.left_out(Api({"resourceslices": slices}))  # type: ignore[arg-type] # it only lists
    said = "gpu-7: GPU-1: Contended: a device plugin offers the GPU as nvidia.com/gpu"
    assert (found.level, found.detail) == ("wrong", said)
    for note in ("junk", "[]", "{" * 9999, '{"GPU-1": 5, "\\u001b": null}'):
        slices = [{"metadata": {"annotations": {"gpu-share.io/excluded-gpus": note}}, "spec": {"nodeName": "gpu-7"}}]
        assert "\x1b" not in cluster.left_out(Api({"resourceslices": slices})).detail  # type: ignore[arg-type]
    for harmless in ({}, {"gpu-share.io/excluded-gpus": "junk"}, {"gpu-share.io/excluded-gpus": "[]"}):
        slices = [{"metadata": {"annotations": harmless}, "spec": {"nodeName": "gpu-7"}}]
        assert cluster.left_out(Api({"resourceslices": slices})).level == "ok"  # type: ignore[arg-type]


HELD = SharingModes(Mode.TIME_SLICING, {"GPU-1": Mode.MPS}).objection("GPU-1") or ""
BAD_LABEL = "node label gpu-share.io/mode: 'mpss' is not a mode; write one of mps, time-slicing, mig, or remove it"


@pytest.mark.parametrize(
    ("whys", "hints"),
    [
        (["Contended: a device plugin offers the GPU as nvidia.com/gpu"], [cluster.ADVICE[Reason.CONTENDED]]),
        ([f"Contended: the kubelet's PodResources {UNKNOWN}"], [cluster.ADVICE[UNKNOWN]]),
        ([HELD], [cluster.ADVICE[CHANGES]]),
        ([BAD_LABEL], [cluster.ADVICE[contract.NODE_MODE]]),
        (["the GPU is a Pascal; sharing through MPS needs Volta or newer"], [cluster.UNFIT]),
        (["Contended: by x", HELD, HELD], [cluster.ADVICE[Reason.CONTENDED], cluster.ADVICE[CHANGES]]),
    ],
)
def test_what_to_do_about_a_gpu_that_is_left_out_fits_the_reason(whys: list[str], hints: list[str]) -> None:
    note = json.dumps({f"GPU-{number}": why for number, why in enumerate(whys)})
    slices: list[Any] = [
        {"metadata": {"annotations": {"gpu-share.io/excluded-gpus": note}}, "spec": {"nodeName": "gpu-7"}}
    ]
    found = cluster.left_out(Api({"resourceslices": slices}))  # type: ignore[arg-type] # it only lists
    assert {hint for hint in [*cluster.ADVICE.values(), cluster.UNFIT] if hint in found.hint} == set(hints)


@pytest.mark.parametrize(("status", "level"), [(403, "warning"), (500, "wrong"), (0, "wrong")])
def test_what_may_not_be_read_is_no_fault(status: int, level: str) -> None:
    api: Any = Api({"nodes": status})
    assert connection.asked(api, workloads.unsliced).level == level


def test_what_may_not_be_read_names_the_right_and_the_role() -> None:
    def refused(_: object) -> Any:
        said = 'User "jo" cannot list resource "nodes" in API group "" at the cluster scope'
        raise ClusterError(f"nodes is forbidden: {said}", 403)

    api: Any = Api({})
    found = connection.asked(api, refused)
    assert (found.level, found.detail) == ("warning", "you may not list nodes in the cluster")
    assert found.hint == "ask for the ClusterRole gpu-share-operator"


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: a, user: {token: a}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], 0),
        (["--cluster"], 1),
        (["--pre"], 1),
        (["-n", "team"], 1),
        (["--kubeconfig", "{tmp}/none"], 1),
        (["--kubeconfig", "{tmp}/config", "--context", "nope"], 1),
        (["--context", "nope"], 1),
    ],
)
def test_a_cluster_is_wrong_where_it_was_asked_for_or_named(
    options: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "absent"))
    monkeypatch.setattr(node, "checkers", lambda *_, **__: [])
    assert main(["check", "-o", "json", *(each.format(tmp=tmp_path) for each in options)]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is (False if code else None), "a cluster that was not asked is not a good one"
    assert "no usable kubeconfig" in found["checks"][0]["detail"]


QUESTIONS = [
    Checker(category="one", description="first", ask=lambda: ok("yes")),
    Checker(category="one", description="second", ask=lambda: replace(failed("no"), last=True), hint="do this"),
    Checker(category="one", description="never asked", ask=ok),
    Checker(category="two", description="third", ask=lambda: warning("so so")),
]


def test_answers_are_laid_out_with_symbols_and_a_total() -> None:
    answers = list(command.ask(QUESTIONS))
    plain = Terminal(io.StringIO(), colour=False, unicode=False)
    assert command.lines(answers, plain) == [
        *("one", "---", "ok first: yes", "FAIL second: no", "    do this", ""),
        *("two", "---", "warn third: so so", "", f"1 ok, 1 warning, 1 wrong; each line is explained on {command.PAGE}"),
    ]
    assert (
        command.lines(answers, Terminal(io.StringIO(), colour=True, unicode=True))[2] == "\x1b[32m√\x1b[0m first: yes"
    )


def test_json_and_the_exit_code_say_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "checkers", lambda _args: QUESTIONS)
    assert main(["check", "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert [one["level"] for one in found["checks"]] == [Level.OK, Level.WRONG, Level.WARNING]
    monkeypatch.setattr(command, "checkers", lambda _args: QUESTIONS[-1:])
    assert main(["check"]) == 0


def test_json_is_ok_where_all_was_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "checkers", lambda _args: QUESTIONS[-1:])
    assert main(["check", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_waiting_asks_again_until_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([failed("not yet"), failed("not yet"), ok("now")])
    one = Checker(category="one", description="first", ask=lambda: next(results))
    monkeypatch.setattr(command, "checkers", lambda _args: [one])
    slept: list[float] = []
    monkeypatch.setattr("gpushare_cli.check.command.time.sleep", slept.append)
    assert main(["check", "--wait", "2m"]) == 0
    assert len(slept) == 2


def test_a_time_without_a_unit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--wait", "120"]) == 2
    assert "write for example 5s, 500ms or 2m" in capsys.readouterr().err


def test_what_may_not_be_asked_is_one_answer() -> None:
    forbidden = [replace(warning(f"you may not list {each}", "ask for a role"), forbidden=True) for each in ("a", "b")]
    questions = [
        Checker(category="one", description=f"question {number}", ask=partial(replace, each))
        for number, each in enumerate(forbidden)
    ]
    found = list(command.ask([*questions, *QUESTIONS[:1]]))
    assert [(each.description, each.level) for each in found] == [("first", "ok"), ("not asked", "warning")]
    assert (found[1].detail, found[1].hint) == (
        "question 0, question 1: you may not list a; you may not list b", "ask for a role",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "attribute", "level"),
    [
        ("gpu.nvidia.com", {"uuid": {"string": "GPU-1"}}, "wrong"),
        ("gpu.nvidia.com", {"uuid": {"string": "gpu-1"}}, "wrong"),
        ("gpu.nvidia.com", {"uuid": {"string": "GPU-2"}}, "ok"),
        ("nic.example", {"id": {"string": "GPU-1"}}, "ok"),
    ],
)
def test_a_gpu_that_two_drivers_publish_is_wrong(driver: str, attribute: Any, level: str) -> None:
    ours = {"name": "a", "attributes": {"uuid": {"string": "GPU-1"}}}
    theirs = {"driver": driver, "nodeName": "n", "devices": [{"name": "gpu-0", "attributes": attribute}]}
    slices = [{"spec": {"nodeName": "n", "devices": [ours]}}, {"spec": theirs}]
    found = cluster.contended(Api({"resourceslices": slices}))  # type: ignore[arg-type] # it only lists
    assert (found.level, found.detail) == (level, f"n: gpu-0 of {driver}" if level == "wrong" else "none")


def test_gpus_are_counted_by_mode_and_those_that_are_tainted_are_mentioned() -> None:
    device: Any = {
        "capacity": {"memory": {"value": "15Gi"}}, "attributes": {"mode": {"string": "time-slicing"}},
    }  # fmt: skip
    slices = [{"spec": {"nodeName": "n", "devices": [device, {"name": "status"}]}}]
    found = cluster.published(Api({"resourceslices": slices}))  # type: ignore[arg-type] # it only lists
    assert (found.level, found.detail) == ("ok", "1 on 1 node (1 time-slicing)")
    tainted = {**device, "taints": [{"key": "unhealthy"}]}
    for devices, level in (([device, tainted], "warning"), ([tainted], "wrong")):
        slices = [{"spec": {"nodeName": "n", "devices": devices}}]
        assert cluster.published(Api({"resourceslices": slices})).level == level  # type: ignore[arg-type]
    for ask in (cluster.published, cluster.opted_in):
        assert ask(Api({"resourceslices": [], "namespaces": [], "nodes": []})).level == "warning"  # type: ignore[arg-type]


@pytest.mark.parametrize(("nodes", "advised"), [([], True), ([{"metadata": {"name": "n"}}], False)])
def test_a_label_is_advised_only_where_no_node_has_it(nodes: list[Any], advised: bool) -> None:  # noqa: FBT001 - a parameter
    found = cluster.published(Api({"resourceslices": [], "nodes": nodes}))  # type: ignore[arg-type] # it only lists
    assert (found.detail, "kubectl label node" in found.hint) == ("none", advised)
    assert found.hint


@pytest.mark.parametrize("reason", [Reason.DRIVER_MISMATCH, Reason.GPU_LOST])
def test_an_unhealthy_gpu_is_named_with_its_reason_and_what_to_do(reason: Reason) -> None:
    taint = {"key": contract.UNHEALTHY, "value": str(reason), "effect": "NoSchedule"}
    device = {"name": "gpu-3", "capacity": {"memory": {"value": "15Gi"}}, "taints": [taint]}
    slices = [{"spec": {"nodeName": "n", "devices": [device]}}]
    found = cluster.published(Api({"resourceslices": slices}))  # type: ignore[arg-type] # it only lists
    assert (found.level, f"n: gpu-3: {reason}" in found.detail) == ("wrong", True)
    assert found.hint == BY_REASON[reason].action
    assert ("kubectl drain" in found.hint) == (reason is Reason.DRIVER_MISMATCH)


@pytest.mark.parametrize(
    ("level", "answer"), [("privileged", "ok"), (None, "ok"), ("baseline", "wrong"), ("restricted", "wrong")]
)
def test_pod_security_that_refuses_the_next_enforcer_is_wrong(level: str | None, answer: str) -> None:
    labels = {} if level is None else {cluster.POD_SECURITY: level}
    table = {"gpu-share-system": {"metadata": {"name": "gpu-share-system", "labels": labels}}}
    found = cluster.own_namespace(Api(table))  # type: ignore[arg-type] # it only lists
    assert (found.level, found.detail) == (answer, found.detail if answer == "wrong" else level or "no label")
    assert answer == "ok" or f"{cluster.POD_SECURITY}={level}" in found.detail
