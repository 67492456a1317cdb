"""Options and variables that take a fraction of a GPU's memory. Pure.

A number that was chosen for a card does not fit a share of it. docs/tenants/frameworks.md is written from this table.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpushare import contract


class Of(StrEnum):
    """What memory a fraction is of, as CUDA reports it."""

    TOTAL = "the total"
    """Of the whole card, unless the limit is one of cgroups or a MIG instance."""
    FREE = "what is free at the start"
    """Of the share under MPS; where nothing limits, of the whole card."""
    REST = "what is free after the weights"
    """The same, without the weights, which nobody here knows."""


VARIABLE: Final = {Of.TOTAL: contract.MEMORY_FRACTION, Of.FREE: contract.FREE_FRACTION}
"""The variable of a share with the fraction that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fraction:
    """One row.

    Attributes:
        options: of a command line, with hyphens where people also write underscores.
        variables: of the environment.
        before: what stands before the number in the value.
        asked: the framework's name in ``gpu-share.io/frameworks``; empty where the webhook sets nothing.
    """

    of: Of
    options: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    before: str = ""
    asked: str = ""


TABLE: Final = (
    # vLLM
    Fraction(of=Of.TOTAL, options=("--gpu-memory-utilization",), asked="vllm"),
    # SGLang
    Fraction(of=Of.FREE, options=("--mem-fraction-static",), asked="sglang"),
    # Text Generation Inference
    Fraction(of=Of.TOTAL, options=("--cuda-memory-fraction",), variables=(contract.TGI_FRACTION,), asked="tgi"),
    # TensorFlow Serving
    Fraction(of=Of.TOTAL, options=("--per-process-gpu-memory-fraction",), asked="tensorflow-serving"),
    # Triton, TensorFlow's backend
    Fraction(of=Of.TOTAL, options=("--backend-config",), before="tensorflow,gpu-memory-fraction="),
    # Dask-CUDA
    Fraction(of=Of.TOTAL, options=("--rmm-pool-size", "--rmm-maximum-pool-size", "--device-memory-limit")),
    # JAX
    Fraction(of=Of.TOTAL, variables=("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")),
    # PyTorch
    Fraction(
        of=Of.TOTAL, variables=("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), before="per_process_memory_fraction:"
    ),
    # LMDeploy
    Fraction(of=Of.REST, options=("--cache-max-entry-count",)),
    # TensorRT-LLM
    Fraction(
        of=Of.REST,
        options=(
            "--kv-cache-free-gpu-memory-fraction",
            "--kv-cache-free-gpu-mem-fraction",
            "--free-gpu-memory-fraction",
        ),
    ),
)
BY_OPTION: Final = {option: row for row in TABLE for option in row.options}
BY_VARIABLE: Final = {name: row for row in TABLE for name in row.variables}
ON_REQUEST: Final = tuple(row.asked for row in TABLE if row.asked)
