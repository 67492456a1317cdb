"""What a pod's containers hold, as their sidecar has it."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from gpushare.errors import ClusterError
from gpushare_cli import node_status
from gpushare_cli.explain.cluster_state import explain
from gpushare_cli.explain.pod import usage_of
from gpushare_cli.explain.pod_record import PodRecord, Usage
from sidecar.pod_status import Status, Use
from tests.unit.gpushare_cli.explain.test_pod import GPU, load

USE = {"container": "main", "gpu": GPU, "usedMiB": 3072, "peakMiB": 3400, "quotaMiB": 4096, "state": "Within"}


class Api:
    def __init__(self, answer: bytes = b"", error: ClusterError | None = None) -> None:
        self.answer, self.error, self.ran = answer, error, list[tuple[Any, ...]]()

    def run(self, *words: Any, silence: float) -> Iterator[bytes]:
        self.ran.append(words)
        assert silence < 10
        yield self.answer[:7]
        yield self.answer[7:]
        if self.error:
            raise self.error


def pod(state: str = "running") -> dict[str, Any]:
    found: dict[str, Any] = load("running")["pod"]
    found["status"]["initContainerStatuses"] = [{"name": "gpu-share", "state": {state: {}}}]
    return found


def written(age: float = 2.0, **more: Any) -> bytes:
    time = (node_status.now() - timedelta(seconds=age)).isoformat()
    return json.dumps({"time": time, "ready": True, "containers": [USE], **more}).encode()


def lines(usage: Usage) -> list[str]:
    content = load("running")
    return explain(PodRecord(**content, usage=usage)).lines[3:]


def test_the_sidecar_is_asked_what_it_has() -> None:
    api = Api(written())
    usage = usage_of(api, pod())  # type: ignore[arg-type]
    assert api.ran == [("running", "explained-1", "gpu-share", ("gpu-share", "status", "-o", "json"))]
    assert lines(usage) == ["  container main uses 3072 MiB of its quota of 4096 MiB, peak 3400 MiB (measured 2 s ago)"]


def test_an_old_figure_says_so() -> None:
    found = lines(usage_of(Api(written(age=90.0)), pod()))  # type: ignore[arg-type]
    assert "(measured 90 s ago)" in found[0]
    assert "has stopped updating the pod status" in found[1]


def test_a_container_that_writes_for_ever_is_given_up() -> None:
    class Endless(Api):
        def run(self, *words: Any, silence: float) -> Iterator[bytes]:
            while True:
                yield b"9" * 4096

    usage = usage_of(Endless(), pod())  # type: ignore[arg-type]
    assert usage.status is None


@pytest.mark.parametrize("state", ["waiting", "terminated"])
def test_a_sidecar_that_does_not_run_is_not_asked(state: str) -> None:
    api = Api(written())
    assert usage_of(api, pod(state)) == Usage()  # type: ignore[arg-type]
    assert api.ran == []


def test_a_share_that_is_not_ready_is_shown_all_the_same() -> None:
    """``gpu-share status`` ends with 1 then."""
    usage = usage_of(Api(written(ready=False), ClusterError("exit code 1")), pod())  # type: ignore[arg-type]
    assert (usage.status is not None, usage.problem) == (True, "")


@pytest.mark.parametrize(
    ("api", "says"),
    [
        (
            Api(error=ClusterError("no", 403)),
            "GPU memory use unknown: you may not run commands in the sidecar (pods/exec)",
        ),
        (Api(error=ClusterError("the node does not answer", 500)), "GPU memory use unknown: the node does not answer"),
        (Api(b"usage: gpu-share"), "the sidecar's answer cannot be parsed"),
        (Api(b"9" * 1_000_000), "the sidecar's answer cannot be parsed"),
    ],
)
def test_why_the_use_is_not_known_is_reported(api: Api, says: str) -> None:
    (line,) = lines(usage_of(api, pod()))  # type: ignore[arg-type]
    assert says in line


def test_what_a_container_borrowed_is_named() -> None:
    use = Use(container="main", gpu=GPU, used_mib=9216, quota_mib=4096, state="Within", limit_mib=12_288)
    usage = Usage(status=Status(time="2026-11-20T22:16:05Z", uses=(use,)), age=3.5)
    assert "main uses 9216 MiB: its quota of 4096 MiB and 5120 MiB borrowed (measured" in lines(usage)[0]


def test_json_has_the_same_figures() -> None:
    use = Use(container="main", gpu=GPU, used_mib=None, peak_mib=None, quota_mib=4096, state="Unknown")
    usage = Usage(status=Status(time="2026-11-20T22:16:05Z", uses=(use,)), age=3.5)
    content = load("running")
    assert explain(PodRecord(**content, usage=usage)).json()["use"] == {
        "time": "2026-11-20T22:16:05Z",
        "ageSeconds": 3.5,
        "containers": [
            {"container": "main", "gpu": GPU, "usedMiB": None, "peakMiB": None, "quotaMiB": 4096, "state": "Unknown"}
        ],
    }
    assert "an unknown amount of its quota of 4096 MiB (measured" in lines(usage)[0]
