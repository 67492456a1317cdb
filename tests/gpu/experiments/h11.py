"""H11: memory limits on a container's cgroup, where the driver has them (R615 and newer)."""

import os
from dataclasses import dataclass
from typing import Any

import pynvml  # noqa: TID251 - its structures are what the raw call takes

from gpushare.quantity import MIB
from tests.gpu.experiments.hidden import hide
from tests.gpu.experiments.loops import asked, wrong
from tests.gpu.experiments.scene import Scene, refused
from tests.gpu.kit.backend import Backend, Container
from tests.gpu.kit.client import Client
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

SINCE = 615


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A container with a hard limit of ``hard_mib``; two processes in it take what they get in steps."""

    hard_mib: int = 4096
    step_mib: int = 64
    cap_mib: int = 8192
    managed_mib: int = 6144
    managed_step_mib: int = 1024
    hidden_mib: int = 8192
    hidden_step_mib: int = 1024


PLANS = {
    "real": Plan(),
    "fake": Plan(
        hard_mib=1024, cap_mib=2048, managed_mib=1536, managed_step_mib=512, hidden_mib=2048, hidden_step_mib=256
    ),
}


@experiment(
    "H11",
    title="Memory limits on a cgroup",
    hypothesis="A hard limit on a container's cgroup bounds what all its processes together can allocate",
    needs=("cgroup", "root"),
    limit_s=60,
    order=600,
)
def h11(backend: Backend) -> Result:
    """Run it at the size that fits the machine."""
    return measure(backend, PLANS[backend.name])


def measure(backend: Backend, plan: Plan) -> Result:
    """Put a limit on a cgroup and let two processes in it take what they can."""
    major = int(backend.facts.driver.partition(".")[0] or 0)
    where = f"driver {backend.facts.driver}, kernel {os.uname().release}"
    if major < SINCE:
        raise NotMeasurable(f"not available: {where}; limits per cgroup came with driver {SINCE}")
    with Scene(backend) as scene:
        container = scene.stack.enter_context(backend.container())
        answer = put(backend, container, 0, plan.hard_mib)
        if answer is not None:
            raise NotMeasurable(f"the limit was refused ({answer.get('name')}): {where}")
        first, second = (_inside(scene, container) for _ in range(2))
        taken = [_filled(client, plan) for client in (first, second)]
        said = limits(backend, container)
        for client in (first, second):
            client.close()
        beyond = {"managed": _managed(_inside(scene, container), plan), "hidden": _hidden(scene, container, plan)}
        scene.stack.callback(put, backend, container, 0, plan.hard_mib)  # a soft limit would outlive its cgroup
    return judge_limit(plan, taken, said, beyond)


def put(backend: Backend, container: Container, soft_mib: int, hard_mib: int) -> Any:
    """Set both limits; ``None`` where they were taken, else what NVML said."""
    wanted = pynvml.c_nvmlSetMemoryLimits_v1_t()
    wanted.nameSpace = str(container.folder).encode()
    wanted.softLimit, wanted.hardLimit = soft_mib * MIB, hard_mib * MIB
    return backend.nvml("nvmlDeviceSetMemoryLimits_v1", "@", wanted)


def limits(backend: Backend, container: Container) -> dict[str, int]:
    """What NVML says of the cgroup, in MiB."""
    asked_for = pynvml.c_nvmlGetMemoryLimits_v1_t()
    asked_for.nameSpace = str(container.folder).encode()
    backend.nvml("nvmlDeviceGetMemoryLimits_v1", "@", asked_for)
    names = {"soft_mib": "softLimit", "hard_mib": "hardLimit", "used_mib": "currentUsed"}
    return {name: int(getattr(asked_for, each)) // MIB for name, each in names.items()}


def _inside(scene: Scene, container: Container) -> Client:
    client = scene.stack.enter_context(
        scene.backend.client(scene.environment(None), cgroup=container.procs, wait=False)
    )
    if (why := refused(client)) is not None:
        raise NotMeasurable(f"a process in the limited cgroup got no context: {why}")
    return client


def _filled(client: Client, plan: Plan) -> dict[str, Any]:
    before = asked(client, "meminfo")
    return {"meminfo": before, "fill": asked(client, f"fill {plan.step_mib} {plan.cap_mib}", 60.0)}


def _managed(client: Client, plan: Plan) -> tuple[int, str | None]:
    """MiB of managed memory one process gets, in blocks that each fit under the limit, and what ended that."""
    taken, why = 0, None
    while taken < plan.managed_mib and why is None:
        why = wrong(asked(client, f"alloc {plan.managed_step_mib} managed", 60.0))
        taken += 0 if why else plan.managed_step_mib
    client.close()
    return taken, why


def _hidden(scene: Scene, container: Container, plan: Plan) -> tuple[int, str | None]:
    """MiB that a process hides behind descriptors, in pieces that each fit under the limit, and what ended that."""
    kept, why = hide(
        scene.environment(None), plan.hidden_mib // plan.hidden_step_mib, plan.hidden_step_mib, container.procs
    )
    for each in kept:
        os.close(each)
    return len(kept) * plan.hidden_step_mib, why


def judge_limit(
    plan: Plan, taken: list[dict[str, Any]], said: dict[str, int], beyond: dict[str, tuple[int, str | None]]
) -> Result:
    """Compare what both got together with the limit; ``beyond`` it may or may not be counted in it."""
    together = sum(int(each["fill"].get("mib", 0)) for each in taken)
    wrong_ = [f"{together} MiB were allocated under a limit of {plan.hard_mib} MiB"] if together > plan.hard_mib else []
    if said["hard_mib"] != plan.hard_mib:
        wrong_.append(f"NVML reads back a limit of {said['hard_mib']} MiB instead of {plan.hard_mib}")
    text = f"{together} of {plan.hard_mib} MiB could be allocated, {beyond['managed'][0]} MiB of managed memory, "
    text += f"and {beyond['hidden'][0]} MiB behind descriptors"
    total = taken[0]["meminfo"].get("total_mib")
    return judged(
        wrong_, text, together_mib=together, hard_mib=plan.hard_mib, shown_total_mib=total, processes=taken, nvml=said,
        **{f"{name}_mib": mib for name, (mib, _) in beyond.items()},
        **{f"{name}_ended_by": why for name, (_, why) in beyond.items()},
    )  # fmt: skip
