"""What frameworks make of a share: what they do by default, what to say to them, and how they size their memory. Pure.

One row for each framework. docs/tenants/frameworks.md is written from it, and tests hold examples and variables to
it. A sizing rule is the framework's own, as far as its source or documentation says it; ``Evidence`` says how far
that is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpushare import contract
from gpushare.framework_variables import (
    CUDF_MODE,
    JAX_FRACTION,
    JAX_GROWTH,
    TENSORFLOW_GROWTH,
    TORCH_FRACTION,
    Setting,
)
from gpushare.memory_fraction import Budget

MIB: Final = 2**20
GIB: Final = 2**30
JAX_SHARE: Final = 0.75
"""Of the total, unless the framework says otherwise."""
CUDF_SHARE: Final = 0.80
"""Of the free memory, in whole 256 bytes."""
CUDF_UNIT: Final = 256
TRITON_POOL: Final = 64 * MIB
LLAMA_MARGIN: Final = 1024 * MIB
TENSORFLOW_SYSTEM: Final = ((2 * GIB, 225 * MIB), (math.inf, 1800 * MIB))
"""Free memory below which so many bytes are left to others; the second one is that of the newest GPUs, the largest."""


class Evidence(StrEnum):
    """How a row is known."""

    MEASURED = "measured"
    """Run by this project in a share of a real GPU."""
    DOCUMENTED = "documented"
    """Read in the framework's documentation or source."""
    BELIEVED = "believed"
    """Reported or concluded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program finds when its CUDA context is there: its budget, and bytes that CUDA reports."""

    budget: Budget
    free: int

    @property
    def total(self) -> int:
        """Bytes that CUDA reports as the GPU's memory."""
        return self.budget.total_mib * MIB

    @property
    def usable(self) -> int:
        """Bytes that the program may use at most."""
        return self.budget.usable_mib * MIB


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes that a framework allocates at its start, and that it lets itself have; ``None``: until CUDA refuses."""

    start: int
    most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How a framework sizes its memory given what ``when`` says.

    Attributes:
        capped: it stays within the usable memory by itself, whatever the back end.
    """

    when: str
    size: Callable[[Program], Size]
    capped: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One row. ``line`` stands in the ``example`` as it is, a file of ``examples/frameworks``."""

    name: str
    default: str
    advice: str
    line: str
    rules: tuple[Rule, ...]
    settings: tuple[Setting, ...] = ()
    backends: str = "the same on all"
    source: str
    evidence: Evidence
    example: str


def _vllm(program: Program) -> Size:
    """Ask for a fraction of the total; the start is refused if less is free."""
    asked = math.ceil(program.total * float(program.budget.of_total))
    return Size(asked, asked)


def _sglang(program: Program) -> Size:
    """Keep a fraction of what is free at the start for weights and cache."""
    static = int(program.free * float(program.budget.of_free))
    return Size(static, static)


def _as_needed(_: Program) -> Size:
    return Size(0)


def _fraction(program: Program) -> Size:
    """Grow up to a fraction of the total."""
    return Size(0, int(program.total * float(program.budget.of_total)))


def _usable(program: Program) -> Size:
    """Grow up to an amount that was given."""
    return Size(0, program.usable)


def _jax_growth(program: Program) -> Size:
    return Size(0, int(program.total * JAX_SHARE))


def _tensorflow_growth(program: Program) -> Size:
    system = next(kept for below, kept in TENSORFLOW_SYSTEM if program.free < below)
    return Size(0, program.free - system)


def _triton(_: Program) -> Size:
    return Size(TRITON_POOL)


def _llama(program: Program) -> Size:
    """Fit weights and cache to the free memory less a margin; where nothing limits, less what is not usable."""
    unusable = program.total - program.usable
    fits = max(0, program.free - max(LLAMA_MARGIN, unusable if program.budget.watch_only else 0))
    return Size(fits, fits)


def _ollama(program: Program) -> Size:
    """Place layers in the free memory less an overhead: what of it is not usable."""
    free_at_most = program.total if program.budget.watch_only else program.budget.limit_mib * MIB
    return Size(0, max(0, program.free - (free_at_most - program.usable)))


def _cudf(program: Program) -> Size:
    """Begin a pool with four fifths of the free memory under ``async``, with nothing under ``cuda``."""
    return Size(0 if program.budget.watch_only else round(program.free * CUDF_SHARE / CUDF_UNIT) * CUDF_UNIT)


_RESERVE: Final = f"$((({contract.MEMORY_MIB} - {contract.USABLE_MIB}) * 1048576))"
TABLE: Final = (
    Framework(
        name="vLLM",
        default="Asks for 92 % of the total memory (older releases 90 %) and refuses to start if less is free.",
        advice=(
            "Pass `GPU_SHARE_MEMORY_FRACTION`, the part of the total that CUDA reports. In a small share also pass "
            "`--enforce-eager`: older releases use memory for CUDA graphs beyond the fraction."
        ),
        line=f'--gpu-memory-utilization="${contract.MEMORY_FRACTION}"',
        rules=(Rule(when="with the fraction", size=_vllm),),
        source="`request_memory` in vllm/v1/worker/utils.py; `gpu_memory_utilization` in vllm/config/cache.py",
        evidence=Evidence.DOCUMENTED,
        example="vllm.yaml",
    ),
    Framework(
        name="SGLang",
        default="Reserves a fraction of the memory free at its start; the GPU's size determines the fraction.",
        advice="Pass the fraction of the free memory.",
        line=f'--mem-fraction-static="${contract.FREE_FRACTION}"',
        rules=(Rule(when="with the fraction", size=_sglang),),
        source="`profile_max_num_token` in sglang/srt/model_executor/model_runner.py",
        evidence=Evidence.DOCUMENTED,
        example="sglang.yaml",
    ),
    Framework(
        name="PyTorch",
        default="Allocates as needed. When CUDA returns out of memory, it frees its cache and tries again.",
        advice=(
            "No setting is needed under `mps-v2` or `driver-cgroup`. Under `watch-only`, pass the fraction of the "
            "total memory, or annotate the namespace with `frameworks: torch`."
        ),
        line=f'set_per_process_memory_fraction(float(os.environ["{contract.MEMORY_FRACTION}"]))',
        rules=(
            Rule(when="by default", size=_as_needed, capped=False),
            Rule(when="with the fraction", size=_fraction),
        ),
        settings=(TORCH_FRACTION,),
        backends="gpu-share sets `PYTORCH_CUDA_ALLOC_CONF` under `watch-only` only",
        source="PyTorch 2.11; docs.pytorch.org torch.cuda.set_per_process_memory_fraction; pytorch PR 161035",
        evidence=Evidence.MEASURED,
        example="pytorch.yaml",
    ),
    Framework(
        name="JAX",
        default="Allocates 75 % of the total memory at its start.",
        advice=(
            "No setting is needed: gpu-share turns preallocation off. `frameworks: jax` also sets a "
            "limit. Set only one of JAX's two fraction variables."
        ),
        line="jax.jit(step)",
        rules=(
            Rule(when="with `XLA_PYTHON_CLIENT_PREALLOCATE=false`", size=_jax_growth, capped=False),
            Rule(when="with `frameworks: jax`", size=_fraction),
        ),
        settings=(JAX_GROWTH, JAX_FRACTION),
        source="docs.jax.dev gpu_memory_allocation; variables accepted by jaxlib 0.4.38, 0.7.2 and 0.10.2",
        evidence=Evidence.MEASURED,
        example="jax.yaml",
    ),
    Framework(
        name="CuPy",
        default="Its memory pool grows as needed, and keeps what was freed.",
        advice="No setting is needed under `mps-v2` or `driver-cgroup`. To cap the pool, set its limit in bytes.",
        line=f'set_limit(size=int(os.environ["{contract.USABLE_MIB}"]) * 2**20)',
        rules=(
            Rule(when="by default", size=_as_needed, capped=False),
            Rule(when="with `set_limit`", size=_usable),
        ),
        source="docs.cupy.dev memory management, `MemoryPool.set_limit`",
        evidence=Evidence.MEASURED,
        example="cupy.yaml",
    ),
    Framework(
        name="TensorFlow",
        default="Allocates nearly all free memory at its start.",
        advice=(
            "No setting is needed: gpu-share sets `TF_FORCE_GPU_ALLOW_GROWTH`. "
            "To cap TensorFlow at the usable memory, use `LogicalDeviceConfiguration`."
        ),
        line=f'LogicalDeviceConfiguration(memory_limit=int(os.environ["{contract.USABLE_MIB}"]))',
        rules=(
            Rule(when="with `TF_FORCE_GPU_ALLOW_GROWTH=true`", size=_tensorflow_growth, capped=False),
            Rule(when="with `memory_limit`", size=_usable),
        ),
        settings=(TENSORFLOW_GROWTH,),
        source="`MinSystemMemory`, `SingleVirtualDeviceMemoryLimit` in TensorFlow's gpu_device.cc",
        evidence=Evidence.DOCUMENTED,
        example="tensorflow.yaml",
    ),
    Framework(
        name="Triton Inference Server",
        default=(
            "Allocates 64 MiB on each visible GPU. Each backend allocates its own memory. Each Python "
            "backend is a process of its own."
        ),
        advice="Configure each backend. TensorFlow's `gpu-memory-fraction` is a fraction of the total memory.",
        line=f'--backend-config=tensorflow,gpu-memory-fraction="${contract.MEMORY_FRACTION}"',
        rules=(
            Rule(when="by default", size=_triton, capped=False),
            Rule(when="TensorFlow's backend with the fraction", size=_fraction),
        ),
        source="`tritonserver --help` (CUDA memory pool); triton-inference-server/tensorflow_backend README",
        evidence=Evidence.DOCUMENTED,
        example="triton.yaml",
    ),
    Framework(
        name="ONNX Runtime",
        default="Its arena grows by powers of two, without a limit.",
        advice="Set `gpu_mem_limit`, and `arena_extend_strategy=kSameAsRequested`, so that growth does not double.",
        line=f'"gpu_mem_limit": int(os.environ["{contract.USABLE_MIB}"]) * 2**20',
        rules=(Rule(when="with `gpu_mem_limit`", size=_usable),),
        source="onnxruntime.ai CUDA execution provider, `OrtCUDAProviderOptions`",
        evidence=Evidence.DOCUMENTED,
        example="onnxruntime.yaml",
    ),
    Framework(
        name="llama.cpp",
        default="Fits weights and cache to the free memory less 1 GiB.",
        advice=(
            "Under `watch-only`, set `--fit-target` to the MiB that the share cannot use. Unset "
            "`GGML_CUDA_ENABLE_UNIFIED_MEMORY`."
        ),
        line="--fit on",
        rules=(Rule(when="with `--fit on`", size=_llama),),
        backends="under `watch-only` llama.cpp sees the free memory of the whole GPU",
        source="llama.cpp tools/fit-params/README.md, PR 16653",
        evidence=Evidence.DOCUMENTED,
        example="llama-cpp.yaml",
    ),
    Framework(
        name="Ollama",
        default="Places as many layers as fit into the free memory that it finds; the rest runs on the CPU.",
        advice="Set `OLLAMA_GPU_OVERHEAD` to the bytes that the share cannot use. Load one model at a time.",
        line=f"OLLAMA_GPU_OVERHEAD={_RESERVE}",
        rules=(Rule(when="with `OLLAMA_GPU_OVERHEAD`", size=_ollama),),
        backends=(
            "under `watch-only` Ollama sees the whole GPU; `OLLAMA_GPU_OVERHEAD` is then the GPU's total "
            "memory less the usable memory"
        ),
        source="ollama envconfig/config.go; ollama issue 5754",
        evidence=Evidence.BELIEVED,
        example="ollama.yaml",
    ),
    Framework(
        name="RAPIDS (cudf.pandas)",
        default="Takes a pool of managed memory, which the MPS limit counts and NVML shows for no process.",
        advice="No setting is needed. Give the size of an RMM pool of your own in bytes, not as a percentage.",
        line="python -m cudf.pandas",
        rules=(Rule(when="with `CUDF_PANDAS_RMM_MODE`", size=_cudf, capped=False),),
        settings=(CUDF_MODE,),
        backends="`CUDF_PANDAS_RMM_MODE` is `cuda` under `watch-only`, else `async`",
        source="cudf/pandas/__init__.py; docs.rapids.ai cudf.pandas, how it works",
        evidence=Evidence.DOCUMENTED,
        example="rapids.yaml",
    ),
    Framework(
        name="NCCL",
        default="Refuses two ranks on one GPU since 2.5, with MPS as well. Buffers count against the share.",
        advice="Start one rank for each GPU of a share. Mount a `/dev/shm` of 1 GiB or more.",
        line=f'--nproc-per-node="${contract.GPUS_VARIABLE}"',
        rules=(Rule(when="by default", size=_as_needed, capped=False),),
        backends="several GPUs in `time-slicing`",
        source='NCCL 2.28.9: "Duplicate GPU detected"; NVIDIA/nccl issues 418 and 231',
        evidence=Evidence.MEASURED,
        example="nccl.yaml",
    ),
    Framework(
        name="Ray",
        default="A fractional `num_gpus` only schedules work. It limits no GPU memory.",
        advice="Annotate the worker pods, and configure the framework in them. KubeRay mounts its own `/dev/shm`.",
        line="--num-gpus=1",
        rules=(Rule(when="by default", size=_as_needed, capped=False),),
        source="docs.ray.io accelerator support; ray-project/kuberay issue 3634",
        evidence=Evidence.DOCUMENTED,
        example="ray.yaml",
    ),
    Framework(
        name="Jupyter",
        default="Each notebook kernel is a process with its own CUDA context. It keeps its GPU memory until it exits.",
        advice="Cull idle kernels. The enforcer kills the largest process first: a kernel, not the server.",
        line="--MappingKernelManager.cull_idle_timeout=3600",
        rules=(Rule(when="by default", size=_as_needed, capped=False),),
        source="jupyter-server.readthedocs.io, `MappingKernelManager.cull_idle_timeout`",
        evidence=Evidence.DOCUMENTED,
        example="jupyter.yaml",
    ),
)
