"""One row of ``gpushare.reason_table``: what a Reason means, what to do, where it appears. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from gpushare.reasons import Reason


class Place(StrEnum):
    """Where people meet a Reason, the most visible place first."""

    ADMISSION = "admission"
    POD_EVENT = "Event on the pod"
    NODE_EVENT = "Event on the node"
    CONDITION = "condition of the claim"
    RESIZE = "answer to a resize"
    CHECK = "gpu-share check"
    TAINT = "taint of the GPU"
    AUDIT = "audit record"
    METRIC = "metric label"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonRow:
    """One row. ``places`` has at least one place, in the order of ``Place``; ``action`` is empty if nothing is due."""

    reason: Reason
    meaning: str
    places: tuple[Place, ...]
    action: str = ""

    @property
    def anchor(self) -> str:
        """The anchor of its heading in docs/reference/reasons.md."""
        return self.reason.lower()
