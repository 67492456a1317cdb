"""Every framework under every back end on every card: what it finds, asks for, and what its share says.

``python -m tests.support.frameworks`` writes the tables of docs/tenants/frameworks.md from that and
``tests.support.framework_table``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.cuda_context import context_mib
from gpushare.fractions import TABLE as FRACTIONS
from gpushare.fractions import VARIABLE
from gpushare.framework_variables import SETTINGS
from gpushare.memory_fraction import Reserve, budget
from tests.fakes.gpu.machine import Machine, MachineGpu
from tests.support.framework_table import MIB, TABLE, Program, Rule
from tests.support.table import Row, with_rows

PAGE: Final = Path(__file__).parents[2] / "docs" / "tenants" / "frameworks.md"
BACKENDS: Final = ("mps-v2", "driver-cgroup", "watch-only", "mig-instance")
CARDS: Final = Machine.named("cards").gpus
SHARES: Final = tuple(gib * 1024 for gib in (2, 4, 8, 12, 16, 24))
CONTEXTS: Final = (lambda _: 0, lambda card: card.bare_context_mib, lambda card: context_mib(card.sms), None)
"""MiB that the CUDA context of a program takes on a card; ``None``: as much as the limit keeps in reserve."""
SHOWN: Final = ("NVIDIA H100 80GB HBM3", 12288, lambda _: 612)
"""A context of 612 MiB is that of PyTorch there, measured with driver 580.159.04."""
MARK: Final = "<!-- python -m tests.support.frameworks: {} -->\n"
END: Final = "<!-- end -->\n"
HEADS: Final = {
    "frameworks": ("framework", "by default", "what to do", "line"),
    "evidence": ("framework", "evidence", "source", "back ends", "example"),
    "variables": ("variable", "value", "where it is set", "framework"),
    "figures": ("framework", *BACKENDS),
    "fractions": ("framework", "option or variable", "fraction of", "pass instead", "on request", "source"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program with a context of so many MiB, in a share of so many of a card."""

    backend: str
    card: MachineGpu
    limit: int
    context: Callable[[MachineGpu], int] | None

    @property
    def program(self) -> Program:
        watched, whole = self.backend == "watch-only", self.backend in {"mps-v2", "watch-only"}
        total = self.card.usable_mib if whole else self.limit
        needed = context_mib(self.card.sms)
        mine = budget(self.limit, total, Reserve(), context_mib=needed, watch_only=watched)
        context = mine.limit_mib - mine.usable_mib if self.context is None else self.context(self.card)
        return Program(budget=mine, free=((total if watched else self.limit) - context) * MIB)


def cases() -> Iterator[Case]:
    """Yield every case in which the share fits on its card. Of a MIG instance the share is all of it."""
    for card in CARDS:
        for limit in (each for each in SHARES if each <= card.usable_mib):
            for backend in BACKENDS:
                yield from (Case(backend=backend, card=card, limit=limit, context=context) for context in CONTEXTS)


def page() -> str:
    """Return docs/tenants/frameworks.md with its tables written anew."""
    text = PAGE.read_text()
    for name, rows in (
        ("frameworks", _frameworks()), ("evidence", _evidence()), ("variables", _variables()), ("figures", _figures()),
        ("fractions", _fractions()),
    ):  # fmt: skip
        text = with_rows(text, (MARK.format(name), END), HEADS[name], lambda _, rows=rows: rows)  # type: ignore[misc] # bound by a default
    return text


def _frameworks() -> list[Row]:
    return [(each.name, each.default, each.advice, f"`{each.line}`") for each in TABLE]


def _evidence() -> list[Row]:
    return [
        (
            each.name, str(each.evidence), each.source, each.backends,
            f"[{each.example}](../../examples/frameworks/{each.example})",
        )
        for each in TABLE
    ]  # fmt: skip


FRACTION_SOURCES: Final = {
    "--gpu-memory-utilization": ("vLLM", "`gpu_memory_utilization` in vllm/config/cache.py"),
    "--mem-fraction-static": ("SGLang", "`profile_max_num_token` in sglang/srt/model_executor/model_runner.py"),
    "--cuda-memory-fraction": ("Text Generation Inference", "`text-generation-launcher --help`"),
    "--per-process-gpu-memory-fraction": (
        "TensorFlow Serving",
        "tensorflow_serving/model_servers/main.cc; `GPUOptions` in TensorFlow's config.proto",
    ),
    "--backend-config": ("Triton, TensorFlow's backend", "triton-inference-server/tensorflow_backend README"),
    "--rmm-pool-size": ("Dask-CUDA", "docs.nvidia.com dask-cuda, `dask cuda worker`"),
    "XLA_PYTHON_CLIENT_MEM_FRACTION": ("JAX", "docs.jax.dev gpu_memory_allocation"),
    "PYTORCH_CUDA_ALLOC_CONF": ("PyTorch", "pytorch PR 161035; docs.pytorch.org CUDA semantics"),
    "--cache-max-entry-count": ("LMDeploy", "`cache_max_entry_count` in lmdeploy/messages.py"),
    "--kv-cache-free-gpu-memory-fraction": (
        "TensorRT-LLM",
        "nvidia.github.io TensorRT-LLM, `free_gpu_memory_fraction` of `KvCacheConfig`",
    ),
}
"""Framework and source of each fraction, by its first option or variable."""


def _fractions() -> list[Row]:
    return [
        (
            framework,
            " ".join(f"`{name}{f' {each.before}' * bool(each.before)}`" for name in (*each.options, *each.variables)),
            str(each.of), f"`${VARIABLE[each.of]}`" if each.of in VARIABLE else "a smaller number",
            f"`{each.asked}`" if each.asked else "no", source,
        )
        for each in FRACTIONS
        for framework, source in (FRACTION_SOURCES[(*each.options, *each.variables)[0]],)
    ]  # fmt: skip


def _variables() -> list[Row]:
    return [
        (
            f"`{name}`",
            " / ".join(f"{value} ({backends})" for backends, value in _values(name)),
            f"on request: `{setting.asked}`" if setting.asked else "everywhere",
            next(each.name for each in TABLE if setting in each.settings),
        )
        for setting in SETTINGS
        for name in setting.names
    ]


def _values(name: str) -> Iterator[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for backend in BACKENDS:
        mine = _shown(backend).budget
        for setting in SETTINGS:
            value = setting.values(mine).get(name)
            if value is not None:
                text = f"`{value.replace(mine.of_total, 'F')}`" if value else "empty"
                found.setdefault(text, []).append(backend)
    for text, backends in found.items():
        yield "all" if len(backends) == len(BACKENDS) else ", ".join(backends), text


def _shown(backend: str) -> Program:
    name, limit, context = SHOWN
    card = next(each for each in CARDS if each.name == name)
    return Case(backend=backend, card=card, limit=limit, context=context).program


def _figures() -> list[Row]:
    return [(f"{each.name}, {rule.when}", *_sizes(rule)) for each in TABLE for rule in each.rules]


def _sizes(rule: Rule) -> Iterator[str]:
    for backend in BACKENDS:
        size = rule.size(_shown(backend))
        most = "until refused" if size.most is None else f"{size.most // MIB:,}"
        yield f"{size.start // MIB:,} / {most}"


if __name__ == "__main__":
    PAGE.write_text(page())
