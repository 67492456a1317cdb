"""H12: which critical errors (XIDs) the driver reports when we end clients."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_ulonglong
from dataclasses import dataclass
from typing import Any

import pynvml  # noqa: TID251 - no part of the product listens to events yet

from enforcer.mps.daemon import MpsDaemon
from tests.gpu.experiments.guard import Guard
from tests.gpu.experiments.loops import asked, settle, until, wrong
from tests.gpu.experiments.scene import Scene, Tenant
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

HARMLESS = frozenset({43, 45})
"""A channel that was stopped, and one that was cleaned up: what ending a process in its work may leave."""
MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``kills`` of each way, each of a client in its work."""

    kills: int = 5
    command: str = "gemm 1024 20"
    drain_ms: int = 500


PLANS = {"real": Plan(), "fake": Plan(kills=1, command="gemm 64 2", drain_ms=20)}


@experiment(
    "H12",
    title="XIDs of our kills",
    hypothesis="Ending clients in their work makes the driver report no critical error (XID) but 43 and 45; an illegal "
    "access makes it report one, so it would have been seen",
    limit_s=60,
    order=890,
)
def h12(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Listen; kill; then fault once, to know that we are not deaf."""
    with listening(backend.gpu) as events, Scene(backend) as scene:
        daemon = None if "mps" in backend.facts.missing else scene.daemon()
        guard = scene.guard(daemon)
        found: dict[str, list[int]] = {}
        for way in ("SIGKILL", "ladder"):
            for _ in range(plan.kills):
                _kill(scene, guard, daemon, way, plan)
            found[way] = drain(events, plan.drain_ms)
        culprit = scene.tenant(scene.environment(daemon), guard)
        error = wrong(asked(culprit.client, "fault"))
        culprit.client.close()
        found["fault"] = drain(events, 2 * plan.drain_ms)
    return judge_xids(found, error, plan.kills)


def _kill(scene: Scene, guard: Guard, daemon: MpsDaemon | None, way: str, plan: Plan) -> None:
    victim: Tenant = scene.tenant(scene.environment(daemon), guard)
    loop = scene.loop(victim, plan.command)
    if not settle([loop], 20.0):
        raise NotMeasurable(f"the client did not compute: {loop.wrong}")
    if way == "SIGKILL":
        victim.client.kill()
    else:
        guard.end_now(victim.quota(scene.backend.gpu, 0, tolerance_mib=0), victim.pid)
    until(lambda: not victim.client.alive, 10.0)
    loop.stop()
    victim.client.close()


@contextmanager
def listening(gpu: str) -> Iterator[Any]:
    """An event set that gets this GPU's XIDs from now on. Raises ``NotMeasurable`` where there are no events."""
    try:
        pynvml.nvmlInitWithFlags(0)
        handle, events = pynvml.nvmlDeviceGetHandleByUUID(gpu), pynvml.nvmlEventSetCreate()
    except pynvml.NVMLError as error:
        raise NotMeasurable(f"NVML has no events here: {error}") from error
    try:
        supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
        if not int(getattr(supported, "value", supported)) & pynvml.nvmlEventTypeXidCriticalError:
            raise NotMeasurable("this GPU reports no XID events through NVML")
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        yield events
    except pynvml.NVMLError as error:
        raise NotMeasurable(f"NVML's events cannot be listened to here: {error}") from error
    finally:
        pynvml.nvmlEventSetFree(events)
        pynvml.nvmlShutdown()


def drain(events: Any, wait_ms: int) -> list[int]:
    """The XIDs that came, until none comes for a while."""
    found: list[int] = []
    while len(found) < MOST:
        try:
            data = pynvml.nvmlEventSetWait_v2(events, wait_ms)
        except pynvml.NVMLError_Timeout:
            break
        value = data.eventData
        found.append(int(value.value if isinstance(value, c_ulonglong) else value))
    return found


def judge_xids(found: dict[str, list[int]], error: str | None, kills: int) -> Result:
    """Silence counts only where a fault was heard."""
    counts = {way: dict(Counter(map(str, xids))) for way, xids in found.items()}
    grave = {way: sorted(set(xids) - HARMLESS) for way, xids in found.items() if way != "fault"}
    figures: dict[str, Any] = {"xids": counts, "kills_each_way": kills, "fault_error": error}
    bad = {way: xids for way, xids in grave.items() if xids}
    if not found["fault"] and not bad:
        raise NotMeasurable("even an illegal access was reported by no event: XIDs are not visible here")
    wrong_ = [f"{way} raised XID {', '.join(map(str, xids))}" for way, xids in bad.items()]
    shown = {way: sorted(set(xids)) for way, xids in found.items()}
    return judged(wrong_, f"XIDs seen: {shown}", **figures)
