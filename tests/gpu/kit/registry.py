"""Which experiments there are, in which order they run, and what each needs of the machine."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.gpu.kit.backend import Backend
from tests.gpu.kit.result import Result

Function = Callable[[Backend], Result]
Judge = Callable[[Mapping[str, Any], str], Result]
"""From an experiment's figures and the driver's version to what they say: those of an old run can be asked again."""
Group = Literal["core", "bench"]
BASE_NEEDS: Final = ("nvml", "cuda", "idle")
NEEDS: Final = {
    "nvml": "NVML answers and shows a GPU",
    "cuda": "libcuda.so.1 can be loaded",
    "idle": "nobody else uses the GPU",
    "mps": "both MPS programs of the driver's own version",
    "mode-change": "the compute mode may be changed (--allow-mode-change, root)",
    "root": "we are root",
    "initial-pidns": "we are in the initial pid namespace",
    "cgroup": "cgroups can be made for tenants",
    "mounts": "a private mount namespace can be made",
    "user-namespace": "an unprivileged user can make a user namespace",
    "kernel-log": "the kernel's log can be read",
    "torch": "PyTorch is installed",
}
"""What ``Facts.missing`` may name; the runner answers "not measured" for an experiment that needs what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One registered experiment. ``order``: smaller runs first; ``limit_s``: after so long it is ended.

    ``judge``: what its figures say; ``None`` where only the run itself can say.
    """

    name: str
    title: str
    hypothesis: str
    needs: tuple[str, ...]
    limit_s: float
    group: Group
    order: int
    run: Function
    judge: Judge | None = None


_known: dict[str, Experiment] = {}


def experiment(
    name: str,
    *,
    title: str,
    hypothesis: str,
    needs: tuple[str, ...] = (),
    limit_s: float = 60,
    group: Group = "core",
    order: int = 100,
    judge: Judge | None = None,
) -> Callable[[Function], Function]:
    """Register a function ``(backend) -> Result``. Beside ``needs``, each needs ``BASE_NEEDS``."""
    unknown = set(needs) - NEEDS.keys()
    if unknown or name in _known:
        raise ValueError(f"experiment {name}: registered twice, or needs unknown things: {sorted(unknown)}")

    def register(function: Function) -> Function:
        _known[name] = Experiment(
            name=name, title=title, hypothesis=hypothesis, needs=(*BASE_NEEDS, *needs), limit_s=limit_s,
            group=group, order=order, run=function, judge=judge,
        )  # fmt: skip
        return function

    return register


def experiments() -> tuple[Experiment, ...]:
    """All of them, loaded from ``tests/gpu/experiments``, in the order in which they run."""
    package = importlib.import_module("tests.gpu.experiments")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(sorted(_known.values(), key=lambda each: (each.group != "core", each.order, each.name)))


def named(name: str) -> Experiment:
    """Find one, whatever the case. Raises ``KeyError`` naming those that exist."""
    found = {each.name.lower(): each for each in experiments()}
    if name.lower() not in found:
        raise KeyError(f"no experiment {name!r}; there are {', '.join(each.name for each in experiments())}")
    return found[name.lower()]
