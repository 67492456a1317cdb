"""H15: what a framework sees of its share: total and free memory as CUDA says them, at the moments that frameworks ask.

vLLM and JAX take a fraction of the total, TensorFlow and llama.cpp what is free, and vLLM minds when free memory grows
while it measures. Which of PyTorch's releases knows ``per_process_memory_fraction`` is asked of the one that is here;
the headers in its wheels have it from 2.10.0 on, and not in 2.9.1 (pytorch/pytorch#161035).
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tests.gpu.experiments.h1 import used_mib
from tests.gpu.experiments.h11 import SINCE, put
from tests.gpu.experiments.loops import asked, until, wrong
from tests.gpu.experiments.scene import Scene, refused
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.client import Client
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

LIMIT_MIB, ALLOCATED_MIB, NEIGHBOUR_MIB = 4096, 1024, 2048
SLACK_MIB: Final = 64
SETTLE_S: Final = 10.0
TORCH_S: Final = 60.0
PLAIN, PINNED, CGROUP = "no limit", "pinned limit", "cgroup limit"
KEY: Final = "per_process_memory_fraction"
TORCH: Final = (
    "import torch; torch.zeros(1, device='cuda'); from torch.cuda import memory; "
    "print(torch.__version__, memory.get_per_process_memory_fraction())"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """(free, total) in MiB at each moment, and the total that is known without a context.

    ``context_mib`` is what the card's use grew by when the context was made, by NVML.
    """

    total_mib: int
    context_mib: int
    context: tuple[int, int]
    allocated: tuple[int, int]
    neighbour: tuple[int, int]
    ended: tuple[int, int]


@experiment(
    "H15",
    title="What a framework sees",
    hypothesis="Without a limit, CUDA's total is the card and free memory falls with every allocation, a neighbour's "
    "too; under the pinned limit total stays the card's, free is at most what is left of the limit, and no neighbour "
    "changes it; under a limit of the cgroup total is the limit",
    limit_s=150,
    order=28,
)
def h15(backend: Backend) -> Result:
    """The same program under each kind of limit that can be had here."""
    figures: dict[str, Any] = {"limit_mib": LIMIT_MIB}
    seen: dict[str, Sight] = {}
    for kind, run in ((PLAIN, _plain), (PINNED, _pinned), (CGROUP, _cgroup)):
        try:
            with Scene(backend) as scene:
                seen[kind] = run(scene)
        except NotMeasurable as error:
            if kind == PLAIN:
                raise
            figures[kind] = f"not measured: {error}"
    figures |= {kind: _as_figures(each) for kind, each in seen.items()}
    figures["PyTorch"] = backend.facts.missing.get("torch") or torch_says()
    return judged(list(problems(seen)), f"as expected under: {', '.join(seen)}", **figures)


def problems(seen: Mapping[str, Sight]) -> list[str]:
    """What is otherwise than the hypothesis says, by kind of limit."""
    card = seen[PLAIN].total_mib
    found = [f"{kind}: {each}" for kind, sight in seen.items() for each in _own_problems(sight)]
    for kind, sight in seen.items():
        wanted = LIMIT_MIB if kind == CGROUP else card
        came = sight.allocated[0] - sight.neighbour[0]
        if any(abs(total - wanted) > SLACK_MIB for total in (sight.total_mib, sight.context[1], sight.ended[1])):
            found.append(f"{kind}: total is {sight.total_mib} and {sight.context[1]} MiB, not {wanted}")
        if kind == PLAIN and came < NEIGHBOUR_MIB - SLACK_MIB:
            found.append(f"{kind}: a neighbour with {NEIGHBOUR_MIB} MiB made free fall by {came} MiB only")
        if kind != PLAIN and abs(came) > SLACK_MIB:
            found.append(f"{kind}: a neighbour with {NEIGHBOUR_MIB} MiB made free fall by {came} MiB")
        if kind != PLAIN and sight.context[0] > LIMIT_MIB:
            found.append(f"{kind}: {sight.context[0]} MiB are free under a limit of {LIMIT_MIB}")
    return found


def _own_problems(sight: Sight) -> list[str]:
    """What holds whatever the limit."""
    fell, back = sight.context[0] - sight.allocated[0], sight.ended[0] - sight.allocated[0]
    found = []
    if abs(fell - ALLOCATED_MIB) > SLACK_MIB:
        found.append(f"{ALLOCATED_MIB} MiB allocated made free fall by {fell} MiB")
    if abs(back) > SLACK_MIB:
        found.append(f"free is {back} MiB off when the neighbour has gone")
    return found


def _plain(scene: Scene) -> Sight:
    return _sight(scene, scene.environment(None))


def _pinned(scene: Scene) -> Sight:
    daemon = scene.daemon(limit_mib=LIMIT_MIB)
    # Somebody keeps the server, whose own memory is not a client's context.
    scene.tenant(scene.environment(daemon))
    return _sight(scene, scene.environment(daemon))


def _cgroup(scene: Scene) -> Sight:
    if int(scene.backend.facts.driver.partition(".")[0] or 0) < SINCE:
        raise NotMeasurable(f"limits per cgroup came with driver {SINCE}, this is {scene.backend.facts.driver}")
    container = scene.stack.enter_context(scene.backend.container())
    if (answer := put(scene.backend, container, 0, LIMIT_MIB)) is not None:
        raise NotMeasurable(f"the limit was refused: {answer.get('name')}")
    return _sight(scene, scene.environment(None), container.procs)


def _sight(scene: Scene, env: Mapping[str, str], procs: str | None = None) -> Sight:
    before = used_mib(scene.backend)
    client = scene.stack.enter_context(scene.backend.client(env, cgroup=procs, wait=False))
    if (why := refused(client)) is not None:
        raise NotMeasurable(f"the program that is to look gets no context: {why}")
    context_mib, total = used_mib(scene.backend) - before, _answer(client, "attributes")["memory_mib"]
    context = _memory(client)
    _answer(client, f"alloc {ALLOCATED_MIB}")
    allocated = _memory(client)
    neighbour = scene.tenant(env).client
    _answer(neighbour, f"alloc {NEIGHBOUR_MIB}")
    beside = _memory(client)
    neighbour.close()
    until(lambda: abs(_memory(client)[0] - allocated[0]) <= SLACK_MIB, SETTLE_S, every=0.2)
    return Sight(
        total_mib=total, context_mib=context_mib, context=context, allocated=allocated, neighbour=beside,
        ended=_memory(client),
    )  # fmt: skip


def _memory(client: Client) -> tuple[int, int]:
    said = _answer(client, "meminfo")
    return said["free_mib"], said["total_mib"]


def _answer(client: Client, command: str) -> dict[str, Any]:
    said = asked(client, command)
    if (why := wrong(said)) is not None:
        raise NotMeasurable(f"{command}: {why}")
    return said


def _as_figures(sight: Sight) -> dict[str, Any]:
    moments = ("context", "allocated", "neighbour", "ended")
    return {
        "total_mib": sight.total_mib, "context_mib": sight.context_mib,
        **{moment: dict(zip(("free_mib", "total_mib"), getattr(sight, moment), strict=True)) for moment in moments},
    }  # fmt: skip


def torch_says(command: tuple[str, ...] = (sys.executable, "-c", TORCH)) -> dict[str, Any]:
    """Whether the PyTorch that is installed takes the key: one that does not know it ends with an error.

    Args:
        command: prints the release, and the fraction that counts.
    """
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": f"{KEY}:0.5"}
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TORCH_S, check=False)
        release, _, fraction = done.stdout.strip().partition(" ")
        taken = done.returncode == 0 and fraction == "0.5"
        return {"release": release, "takes the key": taken, "said": done.stderr.strip()[-500:]}
    return {"said": f"nothing within {TORCH_S:g} s"}
