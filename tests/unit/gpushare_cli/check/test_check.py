import base64
import io
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from certs.pki import make_authority
from enforcer.nvml.driver_root import PROGRAM, DriverRoot
from enforcer.quota.sharing_mode import SharingModes
from enforcer.quota.types import Mode
from enforcer.resourceslices.contention import UNSURE
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare_cli import node_status
from gpushare_cli.check import cluster, command
from gpushare_cli.check import node as checks_node
from gpushare_cli.check.result import Checker, Level, failed, ok, warning
from gpushare_cli.main import main
from gpushare_cli.terminal import Terminal

NOW = datetime(2026, 11, 21, tzinfo=UTC)


class Api:
    """Answers like ``KubeClient``, from a table of paths; a number is an HTTP error."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers

    def get(self, where: str) -> Any:
        found = self.answers.get(where.rsplit("/", 1)[-1], 404)
        if isinstance(found, int):
            raise ClusterError(f"GET {where}: {found}", found)
        return found

    def list(self, where: str, **_query: str) -> tuple[Any, str]:
        return self.get(where), "1"

    def listing(self, where: str, **_query: str) -> Iterator[Any]:
        return iter(self.get(where))

    def create(self, where: str, body: Any, **query: str) -> Any:
        assert query == {"dryRun": "All"}
        return self.get(where) or body


def hook(bundle: bytes) -> list[Any]:
    config = {"name": "pods.gpu-share.io", "clientConfig": {"caBundle": base64.b64encode(bundle).decode()}}
    return [{"metadata": {"name": "gpu-share"}, "webhooks": [config]}]


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
    found = cluster.version(Api({"version": {"gitVersion": version}}))  # type: ignore[arg-type] # it only gets
    assert (found.level, found.last) == (level, last), "what 1.34 and 1.35 lack is asked; older ones have no claims"
    assert level != "wrong" or found.detail == f"{version}; 1.36 is needed"


def test_a_server_that_behaves_like_an_older_version_is_one() -> None:
    said = {"gitVersion": "v1.37.1", "major": "1", "minor": "37", "emulationMajor": "1", "emulationMinor": "35"}
    found = cluster.version(Api({"version": said}))  # type: ignore[arg-type] # it only gets
    assert (found.level, found.detail) == ("wrong", "v1.35 (emulated by v1.37.1); 1.36 is needed")
    found = cluster.version(Api({"version": said | {"emulationMinor": "37"}}))  # type: ignore[arg-type]
    assert (found.level, found.detail) == ("ok", "v1.37.1")


def test_an_api_server_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KubeClient, "connect", lambda *_: Api({"version": 503}))
    answers = list(command.ask(cluster.checkers(None, None, required=True)))
    assert [(each.description, each.level) for each in answers] == [("Kubernetes", "wrong")]


@pytest.mark.parametrize(
    ("hooks", "level", "says"),
    [
        ([], "wrong", "not there"),
        (hook(b""), "wrong", "no caBundle"),
        (hook(b"junk"), "wrong", "cannot be read"),
        (hook(authority(timedelta(days=-1))), "wrong", "expired on 2026-11-20"),
        (hook(authority(timedelta(days=1))), "warning", "expires on 2026-11-22"),
        (hook(authority(timedelta(days=-1)) + authority(timedelta(days=90))), "ok", "until 2027-02-19"),
    ],
)
def test_the_webhook_has_to_have_a_bundle_that_is_valid(hooks: list[Any], level: str, says: str) -> None:
    found = cluster.webhook(Api({"mutatingwebhookconfigurations": hooks}), NOW)  # type: ignore[arg-type]
    assert (found.level, says in found.detail) == (level, True)


@pytest.mark.parametrize(
    ("levels", "level", "named"),
    [
        (["baseline", "restricted"], Level.OK, 0),
        (["baseline", None], Level.WARNING, 1),
        (["privileged"] * 9, Level.WARNING, cluster.NAMED),
    ],
)
def test_namespaces_that_let_pods_reach_the_node_are_named(levels: list[str | None], level: Level, named: int) -> None:
    found = [
        {"metadata": {"name": f"team-{number}", "labels": {cluster.POD_SECURITY: each} if each else {}}}
        for number, each in enumerate(levels)
    ]
    finding = cluster.opted_in(Api({"namespaces": found}))  # type: ignore[arg-type]
    assert (finding.level, finding.detail.count("team-")) == (level, named)


def test_classes_nodes_gpus_and_namespaces_are_looked_for() -> None:
    empty = Api({"nodes": [], "resourceslices": [], "namespaces": [], "daemonsets": [], "deployments": []})
    for ask in (cluster.nodes, cluster.published, cluster.opted_in):
        assert ask(empty).level == "warning"  # type: ignore[arg-type]
    for ask in (cluster.enforcers, cluster.webhooks):
        assert ask(empty).level == "wrong"  # type: ignore[arg-type]
    assert cluster.device_class(empty, "gpu-share.io").level == "wrong"  # type: ignore[arg-type]
    device: Any = {
        "capacity": {"memory": {"value": "15Gi"}}, "attributes": {"mode": {"string": "time-slicing"}},
    }  # fmt: skip
    slices = [{"spec": {"nodeName": "n", "devices": [device, {"name": "status"}]}}]
    found = cluster.published(Api({"resourceslices": slices}))  # type: ignore[arg-type] # it only lists
    assert (found.level, found.detail) == ("ok", "1 on 1 node (1 time-slicing)")
    device["taints"] = [{"key": "unhealthy"}]
    assert cluster.published(Api({"resourceslices": slices})).level == "warning"  # type: ignore[arg-type]


def workload(wanted: int, ready: int) -> dict[str, Any]:
    status = {"desiredNumberScheduled": wanted, "numberReady": ready, "readyReplicas": ready}
    return {"metadata": {"name": "x", "namespace": "elsewhere"}, "spec": {"replicas": wanted}, "status": status}


@pytest.mark.parametrize(
    ("wanted", "ready", "of_enforcers", "of_webhooks"),
    [(3, 3, "ok", "ok"), (3, 2, "wrong", "warning"), (3, 0, "wrong", "wrong"), (0, 0, "ok", "wrong")],
)
def test_enforcers_and_webhooks_have_to_be_ready(wanted: int, ready: int, of_enforcers: str, of_webhooks: str) -> None:
    api = Api({"daemonsets": [workload(wanted, ready)], "deployments": [workload(wanted, ready)]})
    enforcers, webhooks = cluster.enforcers(api), cluster.webhooks(api)  # type: ignore[arg-type]
    assert (enforcers.level, webhooks.level) == (of_enforcers, of_webhooks)
    assert enforcers.detail.startswith(f"{ready} of {wanted} ready")
    assert enforcers.level == "ok" or "-n elsewhere" in enforcers.hint


def test_a_labelled_node_that_offers_nothing_is_named() -> None:
    nodes: list[Any] = [{"metadata": {"name": f"n{number}"}} for number in range(9)]
    slices = [{"spec": {"nodeName": "n0", "devices": []}}]
    found = cluster.nodes(Api({"nodes": nodes, "resourceslices": slices}))  # type: ignore[arg-type]
    assert (found.level, found.detail) == ("warning", "9; without a ResourceSlice: n1, n2, n3, n4, n5 and 3 more")
    found = cluster.nodes(Api({"nodes": nodes[:1], "resourceslices": slices}))  # type: ignore[arg-type]
    assert (found.level, found.detail) == ("ok", "1")


def test_the_kubelets_way_to_the_driver_is_tried(short: Path) -> None:
    registry, plugin = (short / name for name in checks_node.SOCKETS)
    for file in (registry, plugin):
        file.parent.mkdir(parents=True)
    assert "No such file" in checks_node.sockets(short, failed).detail
    with closing(listening(registry)):
        plugin.touch()
        found = checks_node.sockets(short, failed)
        assert (found.level, found.detail) == ("wrong", f"{plugin}: Connection refused")
        plugin.unlink()
        with closing(listening(plugin)):
            assert checks_node.sockets(short, failed).level == "ok"
    assert "Connection refused" in checks_node.sockets(short, warning).detail, "a socket left behind is no socket"


@pytest.fixture(name="short")
def _short() -> Iterator[Path]:
    """Paths of sockets have to be short."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def listening(file: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(file))
    made.listen()
    return made


def test_prepared_claims_are_counted_in_the_cdi_folder(tmp_path: Path) -> None:
    assert checks_node.cdi(tmp_path / "none", failed).level == "wrong"
    for name in ("gpu-share.io-1.json", "gpu-share.io-2.json", "nvidia.yaml"):
        (tmp_path / name).touch()
    assert checks_node.cdi(tmp_path, failed).detail == f"{tmp_path}, 2 claims prepared"


@pytest.mark.parametrize(
    ("age", "problems", "level", "says"),
    [(0, [], "ok", "0 GPUs"), (60, [], "wrong", "does not run"), (0, ["the disk is full"], "warning", "disk is full")],
)
def test_the_enforcer_has_to_run_unhindered(
    age: int, problems: list[str], level: str, says: str, tmp_path: Path
) -> None:
    assert checks_node.enforcer(tmp_path, failed).level == "wrong"
    written = (node_status.now() - timedelta(seconds=age)).isoformat()
    (tmp_path / "status.json").write_text(json.dumps({"time": written, "problems": problems}))
    found = checks_node.enforcer(tmp_path, failed)
    assert (found.level, says in found.detail) == (level, True)


def test_the_enforcer_is_asked_for_on_nodes_only(tmp_path: Path) -> None:
    folders = checks_node.Folders(state=tmp_path, kubelet=tmp_path, cdi=tmp_path)
    laptop, node = (len(checks_node.checkers(folders, DriverRoot(), required=required)) for required in (False, True))
    assert (laptop, node) == (3, 6)
    (tmp_path / "status.json").touch()
    assert len(checks_node.checkers(folders, DriverRoot(), required=False)) == node
    options = ["--state", str(tmp_path), "--kubelet-root", str(tmp_path), "--cdi-root", str(tmp_path)]
    assert main(["check", "--node", *options]) == 1


def test_gpus_that_are_left_out_are_named_with_the_reason() -> None:
    note = {
        "gpu-share.io/excluded-gpus": json.dumps({"GPU-1": "Contended: a device plugin offers it as nvidia.com/gpu"})
    }
    slices: list[Any] = [{"metadata": {"annotations": note}, "spec": {"nodeName": "gpu-7"}}] * 2
    found = cluster.left_out(Api({"resourceslices": slices}))  # type: ignore[arg-type] # it only lists
    said = "gpu-7: GPU-1: Contended: a device plugin offers it as nvidia.com/gpu"
    assert (found.level, found.detail) == ("warning", said)
    for harmless in ({}, {"gpu-share.io/excluded-gpus": "junk"}, {"gpu-share.io/excluded-gpus": "[]"}):
        slices = [{"metadata": {"annotations": harmless}, "spec": {"nodeName": "gpu-7"}}]
        assert cluster.left_out(Api({"resourceslices": slices})).level == "ok"  # type: ignore[arg-type]


HELD = SharingModes(Mode.TIME_SLICING, {"GPU-1": Mode.MPS}).objection("GPU-1") or ""
BAD_LABEL = "node label gpu-share.io/mode: 'mpss' is not a mode; write one of mps, time-slicing, mig, or remove it"


@pytest.mark.parametrize(
    ("whys", "hints"),
    [
        (["Contended: a device plugin offers it as nvidia.com/gpu"], ["a contended GPU needs one owner"]),
        ([f"Contended: the kubelet's PodResources {UNSURE}"], ["nothing is to be done unless it stays so"]),
        ([HELD], ["nothing is to be done: a GPU that changes its mode"]),
        ([BAD_LABEL], ["put the node's label gpu-share.io/mode right"]),
        (["it is a Pascal GPU; sharing through MPS needs Volta or newer"], ["what cannot be shared need not be"]),
        (["Contended: by x", HELD, HELD], ["a contended GPU needs one owner", "nothing is to be done: a GPU that"]),
    ],
)
def test_what_to_do_about_a_gpu_that_is_left_out_fits_the_reason(whys: list[str], hints: list[str]) -> None:
    note = json.dumps({f"GPU-{number}": why for number, why in enumerate(whys)})
    slices: list[Any] = [
        {"metadata": {"annotations": {"gpu-share.io/excluded-gpus": note}}, "spec": {"nodeName": "gpu-7"}}
    ]
    found = cluster.left_out(Api({"resourceslices": slices}))  # type: ignore[arg-type] # it only lists
    said = [hint for hint in [*cluster.ADVICE.values(), cluster.UNFIT] if hint in found.hint]
    assert all(any(each.startswith(hint) for each in said) for hint in hints), found.hint
    assert len(said) == len(hints)


@pytest.mark.parametrize(("status", "level"), [(403, "warning"), (500, "wrong"), (0, "wrong")])
def test_what_may_not_be_read_is_no_fault(status: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = cluster.Connection(None, None)
    monkeypatch.setattr(connection, "_cluster", Api({"nodes": status}))
    assert connection.asking(cluster.nodes)().level == level


def test_what_may_not_be_read_names_the_right_and_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = cluster.Connection(None, None)
    monkeypatch.setattr(connection, "_cluster", Api({}))

    def refused(_: object) -> Any:
        said = 'User "jo" cannot list resource "nodes" in API group "" at the cluster scope'
        raise ClusterError(f"nodes is forbidden: {said}", 403)

    found = connection.asking(refused)()
    assert (found.level, found.detail) == ("warning", "you may not list nodes in the cluster")
    assert found.hint == "ask for the ClusterRole gpu-share-operator"


def test_a_cluster_nobody_configured_is_wrong_only_where_it_was_asked_for(tmp_path: Path) -> None:
    missing = str(tmp_path / "kubeconfig")
    assert main(["check", "--cluster", "--kubeconfig", missing]) == 1
    questions = cluster.checkers(missing, None, required=False)
    assert [answer.level for answer in command.ask(questions)] == ["warning"]


def test_this_machine_is_judged_by_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    assert checks_node.pid_namespace(tmp_path, warning).level == "warning"
    (tmp_path / "self/ns/pid").touch()
    assert checks_node.pid_namespace(tmp_path, failed).level == "wrong"


def test_the_mps_program_is_looked_for_where_the_driver_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--driver-root (chart value driverRoot)" in checks_node.mps(DriverRoot(tmp_path), failed).detail
    program = tmp_path / "usr/bin" / PROGRAM
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    assert checks_node.mps(DriverRoot(tmp_path), failed).detail == str(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks_node.mps(DriverRoot(), failed).detail == f"{PROGRAM} is not on the PATH"


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
        *("two", "---", "warn third: so so", "", "1 fine, 1 to look at, 1 wrong"),
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


def test_a_driver_that_hangs_is_said_and_does_not_keep_us(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks_node, "NVML_SECONDS", 0.5)
    (tmp_path / "usr" / "lib").mkdir(parents=True)
    os.mkfifo(tmp_path / "usr" / "lib" / "libnvidia-ml.so.1")  # whoever loads it waits for ever
    code = main(["check", "--node", "--driver-root", str(tmp_path), "--state", str(tmp_path), "--color", "never"])
    out, _ = capsys.readouterr()
    assert (code, "GPUs through NVML: NVML does not answer gpus within 0.5 s: the driver hangs" in out) == (1, True)
