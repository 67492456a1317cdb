"""The enforcer in the demo: its quotas, its process, its audit log, and what people ask about it."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from enforcer.attribution.procfs import in_initial_pid_namespace
from enforcer.audit.log import FOLDER, segments
from enforcer.audit.record import Kind
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.types import Quota
from gpushare.errors import GpuShareError
from gpushare_cli import node_status
from tests.demo.children import ROOT, Child, Children, DemoError, wait_for
from tests.demo.node import Container, Node
from tests.demo.stage import Stage

GRACE_SECONDS: Final = 2.0
START_SECONDS: Final = 15.0
ACT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.2
NODE: Final = "demo"
CLAIM: Final = "00000000-0000-4000-8000-00000000000{}"

Record = Mapping[str, Any]


def _warned(record: Record) -> str:
    return f"{record['usedMiB']} MiB of {record['quotaMiB']} MiB: the enforcer warns, and the grace period runs"


def _intent(record: Record) -> str:
    return f"over quota for {record['overFor']}: the enforcer writes the record to disk before it kills"


def _outcome(record: Record) -> str:
    done = ", ".join(f"pid {one['pid']} by {one['steps'].replace(',', ', then ')}" for one in record["targets"])
    return f"{record['result']}: {done}"


EXPECTED: Final[Mapping[Kind, Callable[[Record], str]]] = {
    Kind.WARNED: _warned,
    Kind.INTENT: _intent,
    Kind.OUTCOME: _outcome,
}
"""The audit records that have to appear, in this order, each with its sentence."""


def checkpoint(node: Node, containers: Iterable[Container]) -> None:
    """Write the quotas as preparing the pods' claims would have frozen them."""
    quotas = [
        Quota(
            claim_uid=CLAIM.format(number),
            namespace=one.namespace,
            pod=one.pod,
            pod_uid=one.pod_uid,
            container=one.name,
            container_id=one.container_id,
            gpu=node.gpu.uuid,
            memory_mib=one.memory_mib,
            compute_percent=25,
            grace_seconds=GRACE_SECONDS,
        )
        for number, one in enumerate(containers)
    ]
    Checkpoint(node.state).write(quotas)


def start(node: Node, children: Children) -> Child:
    """Start ``gpu-share enforcer`` on this node; with stand-ins for what this machine cannot have."""
    options = [
        "--node",
        NODE,
        "--state",
        str(node.state),
        "--run",
        str(node.state / "run"),
        "--poll-seconds",
        str(POLL_SECONDS),
    ]
    options += ["--no-cluster", "--no-mps"]
    if not in_initial_pid_namespace():
        options.append("--allow-any-pid-namespace")
    module = ["gpushare_cli", "enforcer"] if node.library and node.cgroups else ["tests.demo.standin"]
    return children.python("enforcer", "-m", *module, *options, environment=node.environment)


def stand_ins(node: Node) -> list[str]:
    """Say what is simulated here, and what stands in for something real."""
    library = "a simulated libnvidia-ml.so.1, read through the real nvidia-ml-py"
    lines = [f"GPU: {library}" if node.library else "GPU: no C compiler here, so a Python reader stands in for NVML"]
    lines.append("MPS: left out here, so the enforcer kills by signals alone")
    if node.cgroups:
        return [*lines, f"containers: real control groups, named as the kubelet does, in {node.cgroups.hierarchy}"]
    return [*lines, "containers: no control groups can be made here (not root), so a list of pids stands in for them"]


def grow(stage: Stage, container: Container, mib: int) -> None:
    """Let a container's program take more; return when it holds it."""
    container.child.send(signal.SIGUSR1)
    wait_for(f"{container.pod} takes more", 5, lambda: stage.node.used_mib(container.child.pid) == mib, container.child)


def records(node: Node) -> list[Record]:
    """Read the audit log as it is now."""
    try:
        texts = [file.read_text() for file in segments(node.state / FOLDER)]
    except OSError:
        return []
    return [json.loads(line) for text in texts for line in text.splitlines()]


def wait_for_record(stage: Stage, kind: Kind, container: Container) -> Record:
    """Wait until the audit log says this about a container."""

    def look() -> Record | None:
        found = (record for record in records(stage.node) if record["kind"] == kind)
        return next((record for record in found if record["pod"]["uid"] == container.pod_uid), None)

    needed = [stage.enforcer] if stage.enforcer else []
    return wait_for(f"a {kind} record about {container.pod}", ACT_SECONDS, look, *needed)


def wait_until_gone(stage: Stage, container: Container) -> None:
    """Wait until a container's process has ended, and the enforcer's status shows it."""
    wait_for(f"the end of {container.pod}", ACT_SECONDS, lambda: not container.child.alive)
    wait_for(
        f"the enforcer shows the end of {container.pod}",
        ACT_SECONDS,
        lambda: _uses(stage).get(container.pod) == (node_status.KILLED, 0),
    )


def wait_until_seen(stage: Stage) -> None:
    """Wait until the enforcer's status shows every container within its quota."""

    def look() -> bool:
        found = _uses(stage)
        return all(found.get(name, ("", 0))[0] == node_status.OK for name in stage.containers)

    needed = [stage.enforcer] if stage.enforcer else []
    wait_for("the enforcer sees both containers", START_SECONDS, look, *needed)


def _uses(stage: Stage) -> dict[str, tuple[str, int | None]]:
    """Read state and MiB held of each pod, as the enforcer's status has them now."""
    try:
        status = node_status.load(stage.node.state)
    except GpuShareError:
        return {}
    return {use.pod: (use.shown, use.used_mib) for gpu in status.gpus for use in gpu.uses}


def cli(*arguments: str) -> tuple[int, str]:
    """Run ``gpu-share`` and return its exit code and everything it said."""
    command = [sys.executable, "-m", "gpushare_cli", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=START_SECONDS)
    return done.returncode, (done.stdout + done.stderr).strip()


def explain(stage: Stage, container: Container) -> str:
    """Run ``gpu-share explain`` on a pod that was killed, and return what it says."""
    name = f"{container.namespace}/{container.pod}"
    code, text = cli("explain", name, "--state", str(stage.node.state))
    if code != 1 or "killed: exceeded its quota" not in text:
        raise DemoError(f"gpu-share explain does not tell of the kill: {text}")
    return f"$ gpu-share explain {name}\n{text}"


def top(stage: Stage) -> str:
    """Run ``gpu-share top`` and return what it shows."""
    code, text = cli("top", "--state", str(stage.node.state), "--color", "always" if stage.terminal.colour else "never")
    if code != 0:
        raise DemoError(f"gpu-share top ended with {code}: {text}")
    return f"$ gpu-share top\n{text}"


def verify(state: Path) -> tuple[int, str]:
    """Run ``gpu-share audit verify`` on a state directory's audit log."""
    return cli("audit", "verify", "--state", str(state))


def edited_copy(node: Node, where: Path) -> tuple[Path, int]:
    """Copy the audit log with one digit of the kill changed; return the copy's state directory and the line."""
    shutil.copytree(node.state / FOLDER, where / FOLDER)
    file = segments(where / FOLDER)[0]
    lines = file.read_text().splitlines(keepends=True)
    number = next(number for number, line in enumerate(lines) if f'"{Kind.INTENT}"' in line)
    lines[number] = lines[number].replace('"usedMiB":9', '"usedMiB":4', 1)
    file.write_text("".join(lines))
    return where, number + 1
