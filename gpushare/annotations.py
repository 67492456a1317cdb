"""Which container asks for how much: a pod's annotations, read alike at admission and on the node. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare import contract


@dataclass(frozen=True, slots=True)
class Asked:
    """One annotation that asks for an amount."""

    key: str
    value: object


def asked(annotations: Mapping[str, Any], main: str) -> tuple[dict[str, Asked], dict[str, Asked]]:
    """Collect who asks for memory and who for compute, by container; its own annotation wins over the pod-wide one."""
    memory = _asked(annotations, main, contract.MEMORY, contract.MEMORY_OF)
    return memory, _asked(annotations, main, contract.COMPUTE, contract.COMPUTE_OF)


def instances(annotations: Mapping[str, Any], main: str) -> dict[str, Asked]:
    """Collect who asks for a MIG instance, by container; its own annotation wins over the pod-wide one."""
    return _asked(annotations, main, contract.MIG_PROFILE, contract.MIG_PROFILE_OF)


def several(annotations: Mapping[str, Any], main: str) -> dict[str, Asked]:
    """Collect who asks for a number of GPUs, by container; its own annotation wins over the pod-wide one."""
    return _asked(annotations, main, contract.GPUS, contract.GPUS_OF)


def _asked(annotations: Mapping[str, Any], main: str, wide: str, prefix: str) -> dict[str, Asked]:
    found = {main: Asked(wide, annotations[wide])} if wide in annotations else {}
    named = {
        key.removeprefix(prefix): Asked(key, value) for key, value in annotations.items() if key.startswith(prefix)
    }
    return found | named
