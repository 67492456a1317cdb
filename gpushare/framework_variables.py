"""Variables by which frameworks start within a share, set by the driver where a container leaves them free. Pure.

CDI replaces what a pod or an image says, so a variable is set only where no ``env`` of the container names it and the
container has no ``envFrom``, whose names are not known. What an image says is not seen: it is replaced.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.memory_fraction import Budget

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Variables that are set together or not at all.

    Attributes:
        values: the variables; none where the setting has no use.
        names: all that ``values`` can name. The first one is the setting's key.
        others: variables that do the same: a container that has one has decided.
        asked: the framework's name in ``gpu-share.io/frameworks``; empty for what is set without being asked for.
    """

    values: Callable[[Budget], Mapping[str, str]]
    names: tuple[str, ...]
    others: tuple[str, ...] = ()
    asked: str = ""

    @property
    def key(self) -> str:
        """What a prepared claim knows it by."""
        return self.names[0]


def _torch(budget: Budget) -> Mapping[str, str]:
    return {"PYTORCH_CUDA_ALLOC_CONF": f"per_process_memory_fraction:{budget.of_total}"} if budget.watch_only else {}


JAX_GROWTH: Final = Setting(
    names=("XLA_PYTHON_CLIENT_PREALLOCATE",), values=lambda _: {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
)
"""JAX then allocates as needed, and not three quarters of the card at its start."""
TENSORFLOW_GROWTH: Final = Setting(
    names=("TF_FORCE_GPU_ALLOW_GROWTH",), values=lambda _: {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
)
CUDF_MODE: Final = Setting(
    names=("CUDF_PANDAS_RMM_MODE",),
    values=lambda budget: {"CUDF_PANDAS_RMM_MODE": "cuda" if budget.watch_only else "async"},
)
"""``async`` begins with 80 % of the free memory, which is that of the card where nothing limits."""
JAX_FRACTION: Final = Setting(
    asked="jax",
    names=("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
    values=lambda budget: {"XLA_PYTHON_CLIENT_MEM_FRACTION": budget.of_total, "XLA_CLIENT_MEM_FRACTION": ""},
)
"""Every release knows the first name. The second is empty, because JAX refuses two values and goes on without a GPU."""
TORCH_FRACTION: Final = Setting(
    asked="torch",
    names=("PYTORCH_CUDA_ALLOC_CONF",),
    others=("PYTORCH_ALLOC_CONF",),
    values=_torch,
)
"""Only where nothing else refuses an allocation: releases before 2.10 do not know the key and refuse the variable."""
SETTINGS: Final = (JAX_GROWTH, TENSORFLOW_GROWTH, CUDF_MODE, JAX_FRACTION, TORCH_FRACTION)
ON_REQUEST: Final = tuple(sorted({each.asked for each in SETTINGS if each.asked}))


def free(containers: Sequence[Object], asked: Collection[str]) -> tuple[str, ...]:
    """Name the settings that all of these containers leave free.

    Args:
        containers: those that get the same variables.
        asked: frameworks that the namespace asks for.
    """
    if not containers or any(each.get("envFrom") for each in containers):
        return ()
    named = {str(entry.get("name")) for each in containers for entry in each.get("env") or ()}
    wanted = (each for each in SETTINGS if not each.asked or each.asked in asked)
    return tuple(each.key for each in wanted if named.isdisjoint((*each.names, *each.others)))


def variables(keys: Collection[str], budget: Budget) -> dict[str, str]:
    """Return the variables of settings, by the keys that ``free`` returned."""
    found: dict[str, str] = {}
    for each in SETTINGS:
        if each.key in keys:
            found |= each.values(budget)
    return found
