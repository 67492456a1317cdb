"""Which container asks for how much: a pod's annotations, read alike at admission and on the node. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare import contract
from gpushare.annotation_table import PREFIX_OF


@dataclass(frozen=True, slots=True)
class ShareAnnotation:
    """One annotation that asks for an amount."""

    key: str
    value: object


def memory_and_compute(
    annotations: Mapping[str, Any], main: str
) -> tuple[dict[str, ShareAnnotation], dict[str, ShareAnnotation]]:
    """Return the annotations for memory and for compute by container; a container's own wins over the pod-wide one."""
    return by_container(annotations, main, contract.MEMORY), by_container(annotations, main, contract.COMPUTE)


def by_container(annotations: Mapping[str, Any], main: str, key: str) -> dict[str, ShareAnnotation]:
    """Collect the containers for which an annotation asks; the one with a container's name wins over ``key``."""
    prefix = PREFIX_OF[key]
    found = {main: ShareAnnotation(key, annotations[key])} if key in annotations else {}
    named = {
        each.removeprefix(prefix): ShareAnnotation(each, value)
        for each, value in annotations.items()
        if each.startswith(prefix)
    }
    return found | named
