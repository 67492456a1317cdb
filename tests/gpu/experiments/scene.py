"""Tenants of one experiment: CUDA clients in containers of their own, started together and ended with it."""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self

from enforcer.attribution.cgroup import ContainerRef
from enforcer.detection.types import DetectorConfig
from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.manager import MpsManager
from enforcer.quota.types import Quota
from gpushare.contract import CUDA_VISIBLE_DEVICES, MPS_MEMORY_LIMIT, MPS_PIPE_DIRECTORY, MPS_THREAD_PERCENTAGE
from gpushare.errors import NvmlError
from tests.gpu.experiments.guard import RULES, Guard
from tests.gpu.experiments.loops import Loop, asked, wrong
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.client import Client
from tests.gpu.kit.result import NotMeasurable

START_S = 60.0
NOWHERE = "no-daemon-here"
LOOKS = 20


@dataclass(frozen=True, slots=True)
class Tenant:
    """A client, and the container it is in."""

    client: Client
    owner: ContainerRef

    @property
    def pid(self) -> int:
        return self.client.pid

    def quota(
        self, gpu: str, mib: int, *, grace: float = 0.0, tolerance_mib: int | None = None, limit_mib: int | None = None
    ) -> Quota:
        """What the webhook and the driver would have frozen for it."""
        return Quota(
            claim_uid=f"claim-{self.owner.pod_uid}", namespace="experiment", pod=f"pod-{self.owner.pod_uid[:8]}",
            pod_uid=self.owner.pod_uid, container="model", container_id=self.owner.container_id, gpu=gpu,
            memory_mib=mib, grace_seconds=grace, tolerance_mib=tolerance_mib, limit_mib=limit_mib,
        )  # fmt: skip


@dataclass(slots=True)
class Scene:
    """All that an experiment has started; use as a context."""

    backend: Backend
    stack: ExitStack = field(default_factory=ExitStack)
    loops: list[Loop] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        # Loops first: a client is asked by one thread at a time, and ending it is asking too.
        for loop in self.loops:
            loop.stop()
        leave(self.clients)
        self.stack.close()

    def daemon(self, **options: Any) -> MpsDaemon:
        """An MPS daemon for the length of this scene. Raises ``NotMeasurable``."""
        return self.stack.enter_context(self.backend.mps(**options))

    def guard(
        self, daemon: MpsDaemon | None = None, *, poll: float = 0.5, name: str = "guard", rules: DetectorConfig = RULES
    ) -> Guard:
        """Our enforcer; not looking yet."""
        manager = None if daemon is None else MpsManager({daemon.gpu: daemon})
        folder = self.backend.tmp / name
        return self.stack.enter_context(Guard(folder, self.backend.reader(), manager, poll=poll, rules=rules))

    def environment(
        self, daemon: MpsDaemon | None, *, limit_mib: int | None = None, percent: int | None = None
    ) -> dict[str, str]:
        """What a tenant finds in its environment: with a daemon what our webhook writes, else plain CUDA and no MPS."""
        if daemon is None:
            nowhere = str(self.backend.tmp / NOWHERE)
            return {CUDA_VISIBLE_DEVICES: self.backend.gpu, MPS_PIPE_DIRECTORY: nowhere}
        more: dict[str, str] = {}
        if limit_mib is not None:
            more[MPS_MEMORY_LIMIT] = f"0={limit_mib}M"
        if percent is not None:
            more[MPS_THREAD_PERCENTAGE] = str(percent)
        return self.backend.daemon_env(daemon, **more)

    def tenant(self, env: Mapping[str, str], guard: Guard | None = None, *, uid: int | None = None) -> Tenant:
        """Start one and wait for its context. Raises ``NotMeasurable`` where it gets none."""
        return self.tenants([env], guard, uid=uid)[0]

    def tenants(
        self, envs: Sequence[Mapping[str, str]], guard: Guard | None = None, *, uid: int | None = None
    ) -> list[Tenant]:
        """Start several at once and wait for their contexts. Raises ``NotMeasurable`` where one gets none."""
        started = [self.start(env, guard, uid=uid) for env in envs]
        for tenant in started:
            if (why := refused(tenant.client)) is not None:
                raise NotMeasurable(f"a CUDA client that should have got a context did not: {why}")
        return started

    def start(self, env: Mapping[str, str], guard: Guard | None = None, *, uid: int | None = None) -> Tenant:
        """Start one and wait for nothing."""
        try:
            container = self.stack.enter_context(self.backend.container())
            owner, procs = container.owner, container.procs
        except NotMeasurable:
            owner, procs = ContainerRef(str(uuid.uuid4()), uuid.uuid4().hex * 2), None
        client = self.stack.enter_context(self.backend.client(env, uid=uid, cgroup=procs, wait=False))
        self.clients.append(client)
        if guard is not None and procs is None:
            guard.members.join(client.pid, owner.pod_uid, owner.container_id)
        return Tenant(client, owner)

    def loop(self, tenant: Tenant, command: str, pause: float = 0.0) -> Loop:
        """Let it compute from now on."""
        self.loops.append(Loop(tenant.client, command, pause).start())
        return self.loops[-1]


def leave(clients: Iterable[Client]) -> None:
    """Ask them all to quit before any is waited for: fifty contexts that end one after the other take a minute."""
    for client in clients:
        if client.alive:
            with suppress(RuntimeError):
                client.send("quit")


def refused(client: Client, seconds: float = START_S) -> str | None:
    """Wait for a client's context; why it got none, ``None`` where it got one."""
    try:
        hello = client.ready(seconds)
    except TimeoutError:
        return f"it waited for {seconds:g} s"
    except RuntimeError as error:
        return str(error)
    return None if client.usable else wrong(hello)


def allocate(tenant: Tenant, mib: int) -> None:
    """Let it hold so much. Raises ``NotMeasurable`` where it is refused."""
    answer = asked(tenant.client, f"alloc {mib}")
    if "error" in answer:
        raise NotMeasurable(f"{mib} MiB for a tenant within its quota were refused: {answer}")


def seen_by_nvml(backend: Backend, pid: int) -> bool:
    """Whether NVML shows a process that certainly holds something; in some sandboxes it shows nobody."""
    return held_mib(backend, pid) is not None


def held_mib(backend: Backend, pid: int) -> int | None:
    """What NVML says a process holds; ``None`` where it does not show it. Raises ``NotMeasurable`` where blind."""
    reader, last = backend.reader(), ""
    for _ in range(LOOKS):
        try:
            found = reader.sample(backend.gpu)
            return next((process.used_mib for process in found.processes if process.pid == pid), None)
        except NvmlError as error:
            # Somebody ended between the list and the total.
            last = error.message
            time.sleep(0.05)
    raise NotMeasurable(f"NVML cannot be read here: {last}")
