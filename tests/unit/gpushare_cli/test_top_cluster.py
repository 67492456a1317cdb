"""``gpu-share top`` of all nodes and of a namespace."""

import io
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from enforcer.status.node_status import NAME
from gpushare.contract import DRIVER, MANAGED_LABEL
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare_cli import node_status
from gpushare_cli.main import main
from gpushare_cli.terminal import Terminal
from gpushare_cli.top import all_nodes
from gpushare_cli.top import view as screen
from gpushare_cli.top.namespace import ContainerUse, PodUse, grid
from gpushare_cli.top.view import View
from tests.unit.gpushare_cli.clusters import Cluster
from tests.unit.gpushare_cli.test_terminal import Tty
from tests.unit.gpushare_cli.test_top import GPU, container, status

LONG = "conversational-speech-synthesis-7f9c5d6b4-x2x9z"
REPORTER = f"{DRIVER}/enforcer"
FORBIDDEN = ClusterError("no", 403)


@pytest.fixture(name="cluster")
def _cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(KubeClient, "connect", lambda *_: cluster)
    return cluster


def two_nodes() -> dict[str, dict[str, Any]]:
    over = container("big", 9216, "Warned", 10) | {"killIn": 3.2, "reservedMib": 8192}
    first = status(container("tts", 3072, "Within", 7, 8), over, node="gpu-1")
    second = status(container(LONG, 10, "Within", 3), container("gone", 0, "CoolingDown"), node="gpu-2")
    first["containers"][0]["utilizationPercent"], over["utilizationPercent"] = 30, 45
    first["gpus"][0]["utilizationPercent"] = 75
    second["gpus"] += [{**second["gpus"][0], "uuid": "GPU-b", "index": 1, "unhealthy": "GpuLost", "usedMib": None}]
    return {"gpu-1": first, "gpu-2": second}


def words(out: str) -> list[str]:
    return [re.sub(" +", " ", line) for line in out.splitlines()]


def test_all_nodes_are_the_union_of_what_each_node_shows(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = two_nodes()
    rows = set()
    for name, raw in nodes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / NAME).write_text(json.dumps(raw))
        assert main(["top", "--state", str(tmp_path / name), "-o", "json"]) == 0
        cluster.enforcer(name, capsys.readouterr().out.encode())
        index = {gpu["uuid"]: str(gpu["index"]) for gpu in raw["gpus"]}
        rows |= {
            (name, index[each["gpu"]], f"asr/{each['pod']}", str(each["usedMib"]), "4096") for each in raw["containers"]
        }
    assert main(["top", "-A", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["nodes"]
    assert {each["node"]: each["status"] for each in found} == nodes
    assert main(["top", "-A"]) == 0
    gpus, containers = capsys.readouterr().out.split("\n\n")
    shown = [line.split() for line in containers.splitlines()[1:-1]]
    assert {(node, gpu, pod, used, quota) for node, gpu, pod, _, _, used, quota, *_ in shown} == rows
    assert [line.split()[:2] for line in gpus.splitlines()[1:]] == [["gpu-1", "0"], ["gpu-2", "0"], ["gpu-2", "1"]]
    assert cluster.ran[0] == ("enforcer-gpu-1", ("gpu-share", "top", "-o", "json", "--state=/var/lib/elsewhere"))


def test_a_node_that_does_not_answer_is_a_row_and_the_others_are_shown(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.enforcer("gpu-1", json.dumps(two_nodes()["gpu-1"]).encode())
    cluster.enforcer("gpu-2", error=ClusterError("no route to host", 500))
    cluster.enforcer("gpu-3", json.dumps(status()).encode(), ClusterError("exit code 1: this is 60 s old"))
    cluster.enforcer("gpu-4", b"[]")
    cluster.enforcer("gpu-5")
    cluster.lists["pods"][-1]["status"]["phase"] = "Pending"
    cluster.add("nodes", {"metadata": {"name": "gpu-6", "labels": {"gpu-share.io/enabled": "true"}}})
    assert main(["top", "-A"]) == 1
    out, err = capsys.readouterr()
    lines = words(out)
    assert [line for line in lines if line.endswith("no answer")] == [
        f"gpu-{number} N/A N/A N/A N/A N/A N/A N/A N/A no answer" for number in (2, 4, 5, 6)
    ]
    assert "gpu-3 0 NVIDIA A100 time-slicing N/A 9216 0 15872 0 old" in lines
    assert "gpu-2: no route to host" in lines
    assert any(line.startswith("gpu-1 0 asr/big model 45% 9216 4096 8192 3.2s over") for line in lines)
    assert err.startswith("gpu-share: 5 nodes of 6 ")


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (120, """\
NODE   GPU  MODEL        MODE          UTIL  USED  RESERVED  TOTAL  SHARES  STATE
gpu-1  0    NVIDIA A100  time-slicing  75%   9216  12288     15872  2       1 over
gpu-2  0    NVIDIA A100  time-slicing  N/A   9216  8192      15872  2       ok
gpu-2  1    NVIDIA A100  time-slicing  N/A   N/A   0         15872  0       unhealthy: GpuLost

NODE   GPU  NAMESPACE/POD                                        CONTAINER  UTIL  USED  QUOTA  RESERVED  KILL-IN  STATE
gpu-1  0    asr/big                                              model      45%   9216  4096   8192      3.2s     over
gpu-1  0    asr/tts                                              model      30%   3072  4096   N/A       -        ok
gpu-2  0    asr/conversational-speech-synthesis-7f9c5d6b4-x2x9z  model      N/A   10    4096   N/A       -        ok
gpu-2  0    asr/gone                                             model      N/A   0     4096   N/A       -        killed
gpu-2: NVML does not answer, so nobody knows what its containers hold"""),
        (60, """\
NODE   GPU  UTIL  USED  RESERVED  TOTAL  STATE
gpu-1  0    75%   9216  12288     15872  1 over
gpu-2  0    N/A   9216  8192      15872  ok
gpu-2  1    N/A   N/A   0         15872  unhealthy: GpuLost

NODE   GPU  NAMESPACE/POD       USED  QUOTA  KILL-IN  STATE
gpu-1  0    asr/big             9216  4096   3.2s     over
gpu-1  0    asr/tts             3072  4096   -        ok
gpu-2  0    asr/conv..b4-x2x9z  10    4096   -        ok
gpu-2  0    asr/gone            0     4096   -        killed
gpu-2: NVML does not answer, so nobody knows what its
  containers hold"""),
    ],
)  # fmt: skip
def test_it_fits_the_terminal(width: int, expected: str) -> None:
    answers = [all_nodes.NodeAnswer(node=name, status=node_status.read(raw, {})) for name, raw in two_nodes().items()]
    notice = "gpu-2: NVML does not answer, so nobody knows what its containers hold"
    view = View(grids=all_nodes.grids(answers), notices=(notice,), data={})
    terminal = Terminal(io.StringIO(), colour=False, unicode=True, width=width)
    lines = view.lines(terminal)
    assert "\n".join(lines) == expected
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    uses = (ContainerUse(container="model", gpu=GPU, used_mib=1, peak_mib=2, quota_mib=3, kills=4, state="ok"),)
    lines = grid([PodUse(pod=LONG, phase="Running", node="n", containers=uses)]).lines(width)
    assert max(map(len, lines)) <= width
    assert width < 60 or lines[1].endswith("ok")


@pytest.mark.parametrize(
    ("column", "first"),
    [("used", "big"), ("state", "gone"), ("namespace/pod", "big"), ("kill-in", "big"), ("reserved", "big")],
)
def test_rows_are_sorted_by_a_column(
    column: str, first: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = two_nodes()
    nodes["gpu-1"]["containers"][0]["state"] = "zz"
    for name, raw in nodes.items():
        cluster.enforcer(name, json.dumps(raw).encode())
    assert main(["top", "-A", "--sort", column]) == 0
    rows = capsys.readouterr().out.split("\n\n")[1].splitlines()[1:]
    assert rows[0].split()[2].startswith(f"asr/{first}")


def test_a_column_of_which_nothing_is_known_is_left_out(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.enforcer("gpu-2", json.dumps(two_nodes()["gpu-2"]).encode())
    assert main(["top", "-A"]) == 0
    assert "UTIL" not in capsys.readouterr().out


def test_a_column_that_no_table_has_is_wrong_use(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.enforcer("gpu-1", json.dumps(two_nodes()["gpu-1"]).encode())
    assert main(["top", "-A", "--sort", "peak"]) == 2
    assert "write one of node, gpu, " in capsys.readouterr().err
    assert main(["top", "-A", "--sort", "nothing"]) == 2
    assert main(["top", "-A", "-n", "asr"]) == 2


def stopped_after(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a watch in its sleep, after so many looks."""
    left = iter(range(looks - 1))

    def sleep(_seconds: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)


def test_a_watch_writes_in_place_and_leaves_the_terminal_as_it_was(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.enforcer("gpu-1", json.dumps(two_nodes()["gpu-1"]).encode())
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "4")
    stream = Tty()
    monkeypatch.setattr("sys.stdout", stream)
    stopped_after(3, monkeypatch)
    assert main(["top", "-A", "-w"]) == 130
    out = stream.getvalue()
    assert (out.startswith(screen.ENTER), out.endswith(screen.LEAVE), out.count(screen.HOME)) == (True, True, 3)
    assert "\x1b[2J" not in out, "a screen that is cleared flickers"
    assert out.count("\n") == 3 * 3, "no more lines than fit"


def test_a_watch_that_is_ended_leaves_the_terminal_as_it_was(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.enforcer("gpu-1", json.dumps(two_nodes()["gpu-1"]).encode())
    stream, before = Tty(), signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr(time, "sleep", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert main(["top", "-A", "-w"]) == 128 + signal.SIGTERM
    assert stream.getvalue().endswith(screen.LEAVE)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_watch_for_programs_is_one_line_each_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.enforcer("gpu-1", json.dumps(two_nodes()["gpu-1"]).encode())
    stopped_after(3, monkeypatch)
    assert main(["top", "-A", "-w", "-o", "json"]) == 130
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["nodes"][0]["node"] for each in lines] == ["gpu-1"] * 3


def test_a_cluster_that_does_not_answer_for_once_does_not_end_a_watch(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.enforcer("gpu-1", json.dumps(two_nodes()["gpu-1"]).encode())
    later: list[Any] = [{"daemonsets": ClusterError("away")}, {}]

    def sleep(_seconds: float) -> None:
        if not later:
            raise KeyboardInterrupt
        cluster.refused = later.pop(0)

    monkeypatch.setattr(time, "sleep", sleep)
    assert main(["top", "-A", "-w"]) == 130
    assert "not current: away" in capsys.readouterr().out


# A namespace


def pod(name: str, **pod_status: Any) -> dict[str, Any]:
    sidecar = {"name": "gpu-share", "state": {"running": {}}}
    main_status = {"name": "model", "restartCount": 2}
    return {
        "metadata": {"name": name, "namespace": "asr", "uid": name, "labels": {MANAGED_LABEL: "true"}},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "model"}]},
        "status": {
            "phase": "Running", "initContainerStatuses": [sidecar], "containerStatuses": [main_status], **pod_status,
        },
    }  # fmt: skip


def used(age: float = 0, **more: Any) -> bytes:
    use = {"container": "model", "gpu": GPU, "usedMiB": 3900, "peakMiB": 4000, "quotaMiB": 4096, "state": "Within"}
    when = status(age=age)["time"]
    return json.dumps({"version": 1, "time": when, "ready": True, "containers": [{**use, **more}]}).encode()


def test_borrowed_memory_has_a_column_where_somebody_may_borrow(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.add("pods", pod("tts"), pod("quiet"))
    cluster.answers |= {"tts": (used(usedMiB=9216, limitMiB=12288), None), "quiet": (used(usedMiB=1), None)}
    assert main(["top", "-n", "asr"]) == 0
    assert words(capsys.readouterr().out)[:3] == [
        "POD CONTAINER GPU USED PEAK QUOTA BORROWED KILLS RESTARTS STATE",
        "quiet model GPU-a1000000 1 4000 4096 N/A 0 2 ok",
        "tts model GPU-a1000000 9216 4000 4096 5120 0 2 ok",
    ]


def kill(uid: str, reporter: str = REPORTER, reason: str = "Killed") -> dict[str, Any]:
    about = {"uid": uid, "fieldPath": "spec.containers{model}"}
    metadata = {"namespace": "asr", "name": "e"}
    return {"metadata": metadata, "reason": reason, "reportingComponent": reporter, "involvedObject": about}


def test_a_tenant_sees_use_peak_quota_and_kills(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.add("pods", pod("tts"), pod("done", phase="Succeeded"), pod("quiet"))
    cluster.answers |= {"tts": (used(), None), "quiet": (used(usedMiB=1, peakMiB=None), None)}
    cluster.add("events", kill("tts"), kill("tts"), kill("tts", "kubelet"), kill("tts", reason="OverQuota"))
    assert main(["top", "-n", "asr"]) == 0
    out = words(capsys.readouterr().out)
    assert out == [
        "POD CONTAINER GPU USED PEAK QUOTA KILLS RESTARTS STATE",
        "quiet model GPU-a1000000 1 N/A 4096 0 2 ok",
        "tts model GPU-a1000000 3900 4000 4096 2 2 near",
        "GPU memory in MiB",
    ]
    assert main(["top", "-n", "asr", "-o", "json"]) == 0
    (quiet, tts) = json.loads(capsys.readouterr().out)["pods"]
    assert (quiet["pod"], tts["containers"][0]["peakMiB"], tts["containers"][0]["kills"]) == ("quiet", 4000, 2)


def claim_of(name: str) -> dict[str, Any]:
    device = {"driver": DRIVER, "pool": "gpu-1", "device": "gpu-0", "shareID": "s", "request": "model"}
    data = {"podUid": name, "uuid": GPU, "limits": [{"container": "model", "memoryMiB": 4096}]}
    entry = {"driver": DRIVER, "pool": "gpu-1", "device": "gpu-0", "shareID": "s", "data": data}
    claim_status = {
        "allocation": {"devices": {"results": [device]}},
        "devices": [entry],
        "reservedFor": [{"uid": name}],
    }
    return {"metadata": {"name": f"{name}-c", "namespace": "asr", "uid": "c"}, "status": claim_status}


def test_what_the_user_may_not_read_is_not_available_and_named(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.add("pods", pod("tts"), pod("waits", phase="Pending", initContainerStatuses=[]))
    cluster.add("resourceclaims", claim_of("tts"))
    cluster.answers["tts"] = b"", FORBIDDEN
    cluster.refused = {"events": FORBIDDEN}
    assert main(["top", "-n", "asr"]) == 1
    out = words(capsys.readouterr().out)
    assert out[1:3] == ["tts model N/A N/A N/A 4096 N/A 2 Running", "waits N/A N/A N/A N/A N/A N/A 0 Pending"]
    assert out[3].startswith("tts: GPU memory use unknown: you may not run commands in the sidecar (pods/exec)")
    assert out[4].startswith("you may not read Events in namespace asr")
    cluster.refused |= {"resourceclaims": FORBIDDEN}
    assert main(["top", "-n", "asr"]) == 1
    assert words(capsys.readouterr().out)[1] == "tts N/A N/A N/A N/A N/A N/A 0 Running"


def test_a_use_that_nobody_writes_any_more_is_not_current(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.add("pods", pod("tts"))
    cluster.answers["tts"] = used(age=90), None
    assert main(["top", "-n", "asr"]) == 1
    assert "tts: the node's enforcer has stopped updating the pod status" in capsys.readouterr().out


def test_a_namespace_without_shares_says_so(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.add("namespaces", {"metadata": {"name": "asr"}})
    assert main(["top", "-n", "asr"]) == 0
    assert capsys.readouterr().out == "no pod in namespace asr has a share\n"
    assert main(["top", "-n", "nowhere"]) == 1
    assert capsys.readouterr().err == "gpu-share: there is no namespace nowhere\n"
