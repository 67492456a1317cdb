"""Tells the owners of containers that may hold memory that nobody is counted for, each once, what to close."""

from collections.abc import Iterator
from typing import Final

from enforcer.detection.hidden import Finding, Suspect
from enforcer.quota.types import Quota
from enforcer.status.events import EventRecorder
from enforcer.status.messages import UserMessage
from enforcer.status.node_status import Snapshot
from gpushare.quantity import format_mib
from gpushare.reasons import Reason

NAMED: Final = 5
"""So many pids are spelled out."""
Key = tuple[str, str]
"""Container id and GPU."""


class HiddenNotices:
    """Warns each container once, and again after it was none of those that may hold such memory.

    Args:
        events: takes the warnings.
    """

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._warned: frozenset[Key] = frozenset()

    def observe(self, snapshot: Snapshot) -> None:
        """Take in one sample."""
        found = {
            (quota.container_id or "", gpu): UserMessage(
                quota=quota, reason=Reason.UNACCOUNTED_MEMORY, note=note, action="Warn"
            )
            for gpu, finding in snapshot.hidden.items()
            for quota, note in _notes(finding, gpu, snapshot.unaccounted[gpu][0])
        }
        for key in found.keys() - self._warned:
            self._events.record(found[key])
        self._warned = frozenset(found)


def _notes(finding: Finding, gpu: str, mib: int) -> Iterator[tuple[Quota, str]]:
    amount = f"{format_mib(mib)} of {gpu} are in use and NVML lists them for no process"
    for each in finding.suspects:
        yield each.quota, f"{amount}; {_descriptors(each)}"
    if finding.owner is not None and not finding.suspects:
        why = f"container {finding.owner.container} was the only one with a share there while they were taken"
        what = "likely its managed memory (cudaMallocManaged) or memory that it imported: free it"
        yield finding.owner, f"{amount}; {why}, so they are {what}"


def _descriptors(suspect: Suspect) -> str:
    pids = ", ".join(str(holder.identity.pid) for holder in suspect.holders[:NAMED])
    more = ", ..." if len(suspect.holders) > NAMED else ""
    return (
        f"container {suspect.quota.container} has {suspect.descriptors} descriptors of GPU memory (pid {pids}{more}): "
        "close those that cuMemExportToShareableHandle made once the memory is released, also in processes without CUDA"
    )
