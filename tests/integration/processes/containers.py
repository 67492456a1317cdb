"""Real processes in real cgroups, laid out the way a kubelet lays out pods."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from enforcer.attribution.cgroup import container_of
from enforcer.quota.types import Quota
from tests.fakes.gpu.state import Sim
from tests.support.need import missing

ROOT = Path("/sys/fs/cgroup")
MOUNTS = (ROOT / "memory", ROOT / "pids", ROOT, ROOT / "unified")
PROJECT = Path(__file__).resolve().parents[3]


@dataclass
class Container:
    """One container's cgroup, and the processes started in it."""

    cgroup: Path
    pod_uid: str
    container_id: str
    processes: list[subprocess.Popen[str]]

    def spawn(self, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a program inside; it is in the cgroup before its first instruction."""
        enter = f'echo $$ > "{self.cgroup}/cgroup.procs"; exec "$@"'
        process = subprocess.Popen(
            ["sh", "-c", enter, "sh", *command], env={**os.environ, **(env or {})}, cwd=PROJECT, text=True,
            stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def tenant(self, sim: Sim, *options: str) -> subprocess.Popen[str]:
        """Start a program that holds simulated GPU memory and wait until it does."""
        process = self.spawn(sys.executable, "-m", "tests.fakes.gpu.tenant", *options, env=sim.environment())
        assert process.stdout
        line = process.stdout.readline()
        assert line.startswith("ready"), line
        return process

    def quota(self, gpu: str, mib: int, **changes: object) -> Quota:
        values: dict[str, object] = {
            "claim_uid": f"claim-{self.pod_uid}", "namespace": "asr", "pod": f"pod-{self.pod_uid[:4]}",
            "pod_uid": self.pod_uid, "container": "model", "container_id": self.container_id, "gpu": gpu,
            "memory_mib": mib, "grace_seconds": 1.0, "tolerance_mib": 0,
        }  # fmt: skip
        return Quota(**(values | changes))  # type: ignore[arg-type]

    def pids(self) -> list[int]:
        return [int(line) for line in (self.cgroup / "cgroup.procs").read_text().split()]

    def end(self) -> None:
        """End everything in this cgroup, and the cgroup."""
        for _ in range(100):
            with suppress(OSError):
                for pid in self.pids():
                    os.kill(pid, signal.SIGKILL)
            for process in self.processes:
                process.poll()
            with suppress(OSError):
                self.cgroup.rmdir()
            if not self.cgroup.exists():
                break
            time.sleep(0.02)
        for process in self.processes:
            process.wait(5)
            if process.stdout:
                process.stdout.close()


def _mount() -> Path:
    """A hierarchy in which we may make groups and put processes, seen by /proc as a container's."""
    tried = []
    for mount in MOUNTS:
        if not (mount / "cgroup.procs").exists():
            continue
        try:
            with _one(mount) as container:
                process = container.spawn("sleep", "30")
                wait_for(lambda pid=process.pid: pid in container.pids(), 2)  # type: ignore[misc] # bound now
                if container_of(Path(f"/proc/{process.pid}/cgroup").read_text()) is not None:
                    return mount
                tried.append(f"{mount}: /proc does not show it")
        except (OSError, AssertionError) as error:
            tried.append(f"{mount}: {error}")
    reason = "; ".join(tried) or "no cgroup file system is mounted"
    return missing(f"no cgroup can be made for a tenant here: {reason}")


def _make(cgroup: Path) -> list[Path]:
    """Make a group, again where another session's clean-up removed a parent meanwhile; returns what was made."""
    for _ in range(100):
        made = [path for path in (cgroup, *cgroup.parents) if not path.exists()]
        with suppress(FileNotFoundError):
            cgroup.mkdir(parents=True)
            return made
    raise AssertionError(f"{cgroup} cannot be made: its parents are removed again and again")


@contextmanager
def _one(mount: Path) -> Iterator[Container]:
    pod_uid, container_id = str(uuid.uuid4()), uuid.uuid4().hex * 2
    cgroup = mount / "kubepods" / "besteffort" / f"pod{pod_uid}" / container_id
    made = _make(cgroup)
    container = Container(cgroup, pod_uid, container_id, [])
    try:
        yield container
    finally:
        container.end()
        for path in made[1:]:
            with suppress(OSError):  # another test's pods may still be below
                path.rmdir()


class Kubelet:
    """Makes containers and takes them away again."""

    def __init__(self) -> None:
        self._mount = _mount()

    @contextmanager
    def container(self) -> Iterator[Container]:
        with _one(self._mount) as container:
            yield container


def wait_for(true: Callable[[], bool], seconds: float) -> float:
    """Wait until something is true; returns how long that took. Fails after so many seconds."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < seconds, f"not true within {seconds} s"
        time.sleep(0.01)
    return time.monotonic() - begun


def alive(process: subprocess.Popen[str]) -> bool:
    return process.poll() is None
