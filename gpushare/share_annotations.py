"""Find the pod annotations that request memory or compute, by container; admission and node use the same. Pure.

``gpushare.annotation_table`` has the table of all annotations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare import contract
from gpushare.annotation_table import PREFIX_OF


@dataclass(frozen=True, slots=True)
class ShareAnnotation:
    """One annotation that requests memory or compute."""

    key: str
    value: object


def memory_and_compute(
    annotations: Mapping[str, Any], main: str
) -> tuple[dict[str, ShareAnnotation], dict[str, ShareAnnotation]]:
    """Return the annotations for memory and for compute by container; a container's own wins over the pod-wide one."""
    return by_container(annotations, main, contract.MEMORY), by_container(annotations, main, contract.COMPUTE)


def by_container(annotations: Mapping[str, Any], main: str, key: str) -> dict[str, ShareAnnotation]:
    """Return the annotation of each container; one with the container's name takes precedence over ``key``."""
    prefix = PREFIX_OF[key]
    found = {main: ShareAnnotation(key, annotations[key])} if key in annotations else {}
    named = {
        each.removeprefix(prefix): ShareAnnotation(each, value)
        for each, value in annotations.items()
        if each.startswith(prefix)
    }
    return found | named
