"""Find the pod annotations that request memory or compute, by container; admission and node use the same. Pure.

``gpushare.annotation_table`` has the table of all annotations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.annotation_table import PREFIX_OF

_WIDE_OF: Final = {prefix: key for key, prefix in PREFIX_OF.items()}


@dataclass(frozen=True, slots=True)
class ShareAnnotation:
    """One annotation that requests memory or compute."""

    key: str
    value: object


def by_container(annotations: Mapping[str, Any], main: str) -> dict[str, dict[str, ShareAnnotation]]:
    """Return, for each annotation of ``PREFIX_OF``, the one that each container has: of its own, else the pod-wide one.

    Args:
        annotations: the pod's.
        main: name of its main container, which pod-wide annotations mean.
    """
    found = {key: {main: ShareAnnotation(key, annotations[key])} if key in annotations else {} for key in PREFIX_OF}
    for key, value in annotations.items():
        prefix, slash, container = key.partition("/")
        wide = _WIDE_OF.get(prefix + slash)
        if wide is not None:
            found[wide][container] = ShareAnnotation(key, value)
    return found
