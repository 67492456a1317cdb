"""frameworks: PyTorch, JAX and CuPy in a share, with the variables that the product gives a container."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from enforcer.dra import cdi
from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim, Seen
from enforcer.quota.from_claims import parse_policy
from enforcer.quota.types import Mode
from gpushare import contract, framework_variables
from tests.gpu.experiments.scene import Scene
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged
from tests.gpu.kit.setup import ROOT

LIMITS_MIB: Final = (4096, 8192)
SLACK_MIB: Final = 64
SECONDS: Final = 60.0
REQUEST: Final = "main"
PROGRAMS: Final[Mapping[str, tuple[str, tuple[str, ...], Mapping[str, str]]]] = {
    "PyTorch": ("torch", ("torch_share",), {}),
    "PyTorch, as vLLM asks": ("torch", ("torch_share", "vllm"), {}),
    "JAX": ("jax", ("jax_share",), {}),
    "JAX, preallocating": ("jax", ("jax_share",), {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}),
    "CuPy": ("cupy", ("cupy_share",), {}),
}
"""By name: the package, the program and its arguments, and variables that a container sets itself."""


def judge_frameworks(rows: Mapping[str, Any], _: str = "") -> Result:
    """Name each program that did not start, was not refused within its limit, or did not work on."""
    if not rows:
        raise NotMeasurable("none of the frameworks is installed")
    wrong = []
    for name, row in rows.items():
        limit = int(name.rpartition(", ")[2].split()[0])
        if "error" in row:
            wrong.append(f"{name}: {row['error']}")
        elif "starts" in row:
            wrong += [] if row["starts"] else [f"{name}: {row['free_mib']} MiB are free of {row['wanted_mib']}"]
        elif row["refused"] is None or row["at_most_mib"] > limit + SLACK_MIB:
            wrong.append(f"{name}: refused by {row['refused']} at {row['at_most_mib']} MiB")
    return judged(wrong, f"{len(rows)} programs started, were refused within their limits and worked on", **rows)


@experiment(
    "frameworks",
    title="Frameworks in a share",
    hypothesis="PyTorch, JAX and CuPy start in shares of 4 and 8 GiB with the variables that the product gives, are "
    "refused within the limit and work on after it; a program that asks as vLLM does starts",
    needs=("mps", "torch"),
    limit_s=240,
    group="bench",
    order=30,
    judge=judge_frameworks,
)
def frameworks(backend: Backend) -> Result:
    """Each program in each share, one after the other."""
    rows: dict[str, Any] = {}
    with Scene(backend) as scene:
        base = scene.environment(scene.daemon())
        for limit in LIMITS_MIB:
            for name, (package, arguments, own) in PROGRAMS.items():
                if importlib.util.find_spec(package) is not None:
                    rows[f"{name}, {limit} MiB"] = _run({**base, **variables(backend, limit), **own, **base}, arguments)
    return judge_frameworks(rows)


def variables(backend: Backend, limit_mib: int) -> dict[str, str]:
    """What the product's driver would give a container with a share of this GPU, JAX asked for."""
    gpu = next((each for each in backend.reader().gpus() if each.uuid == backend.gpu), None)
    if gpu is None:
        raise NotMeasurable("NVML does not list the GPU that is measured")
    keys = framework_variables.free([{"env": []}], framework_variables.ON_REQUEST)
    claim = PreparedClaim(
        uid="claim", namespace="experiment", name="claim", pod="pod", pod_uid="pod",
        granted=(AllocatedDevice(
            request=REQUEST, pool="node", device="gpu", gpu=gpu.uuid, memory_mib=limit_mib, device_mib=gpu.memory_mib,
            mode=Mode.MPS,
        ),),
        limits=(ContainerLimit(container=REQUEST, request=REQUEST, memory_mib=limit_mib),), terms=parse_policy({}),
        seen=(Seen(gpu=gpu.uuid, total_mib=gpu.memory_mib - gpu.reserved_mib, sms=gpu.sms),),
        settings={REQUEST: keys},
    )  # fmt: skip
    found = cdi.variables(claim, claim.of(REQUEST), mps=True)
    return {name: value for name, value in found.items() if name != contract.MPS_LOG_DIRECTORY}


def _run(environment: Mapping[str, str], arguments: tuple[str, ...]) -> dict[str, Any]:
    own = {key: value for key, value in os.environ.items() if not key.startswith(("CUDA_", "NVIDIA_", "XLA_"))}
    command = [sys.executable, "-m", f"tests.gpu.programs.{arguments[0]}", *arguments[1:]]
    try:
        done = subprocess.run(
            command, env={**own, **environment}, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"it did not end within {SECONDS:g} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        return {"error": f"status {done.returncode}: {done.stderr.strip()[-300:]}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found
