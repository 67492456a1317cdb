"""The enforcer, real processes on a simulated GPU, and two pods' sidecars: who is told what."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes.containers import PROJECT, Container, alive, wait_for
from tests.integration.processes.enforcing import Node

pytestmark = pytest.mark.node


class Pod:
    """One pod: a container, the folder its claim has, and its sidecar as a process."""

    def __init__(self, node: Node, run: Path, stack: ExitStack) -> None:
        self.container: Container = node.container()
        self.folder = run / "status" / self.container.pod_uid
        self.folder.mkdir(parents=True)
        self._log = run / f"{self.container.pod_uid}.log"
        command = [sys.executable, "-m", "gpushare_cli", "sidecar", "--status", str(self.folder), "--listen", "[::1]:0"]
        with self._log.open("wb") as log:
            self.sidecar = subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log)
        stack.callback(self.sidecar.wait, 10)
        stack.callback(self.sidecar.terminate)

    def status(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def said(self) -> str:
        return self._log.read_text()


@pytest.fixture(name="stack")
def _stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_kill_is_notified_to_the_pod_it_happened_to_and_to_no_other(tmp_path: Path, stack: ExitStack) -> None:
    node, run = Node(tmp_path, stack), tmp_path / "run"
    stack.callback(node.end)
    greedy, modest = Pod(node, run, stack), Pod(node, run, stack)
    neighbour = modest.container.tenant(node.sim, "--mib", "4096")
    tenant = greedy.container.tenant(node.sim, "--mib", "2000")
    node.allow(greedy.container.quota(node.gpu, 4096), modest.container.quota(node.gpu, 4096))
    node.start("--run", str(run))
    wait_for(lambda: "is ready" in greedy.said() and "is ready" in modest.said(), 20)
    assert modest.status()["gpus"][0]["usedByOthersMiB"] == 2000
    node.sim.register(tenant.pid, node.gpu, 9000)
    wait_for(lambda: not alive(tenant), 20)
    wait_for(lambda: " Killed: " in greedy.said(), 10)
    assert alive(neighbour)
    said = [line.split(" ", 1)[1] for line in greedy.said().splitlines()[-2:]]
    assert re.match(
        r"OverQuota: container model holds 9000 MiB of its 4096 MiB on GPU-\S+; .*kills its processes in", said[0]
    )
    assert re.match(
        r"Killed: container model holds 9000 MiB of its 4096 MiB .*the enforcer killed 1 of its processes", said[1]
    )
    told = modest.said() + json.dumps(modest.status())
    for secret in (greedy.container.pod_uid, greedy.container.container_id, str(tenant.pid), "Killed"):
        assert not re.search(rf"(?<![\w.-]){secret}(?![\w.-])", told)


def test_a_sidecar_that_comes_after_an_enforcers_restart_still_says_what_happened(
    tmp_path: Path, stack: ExitStack
) -> None:
    node, run = Node(tmp_path, stack), tmp_path / "run"
    stack.callback(node.end)
    pod = Pod(node, run, stack)
    pod.container.tenant(node.sim, "--mib", "9000")
    node.allow(pod.container.quota(node.gpu, 4096))
    node.start("--run", str(run))
    wait_for(lambda: any("Killed" in message["text"] for message in pod.status().get("messages", [])), 20)
    before = pod.status()["messages"]
    assert node.stop() == 0
    node.start("--run", str(run))
    written = pod.status()["time"]
    wait_for(lambda: pod.status()["time"] != written, 10)
    assert pod.status()["messages"][: len(before)] == before
