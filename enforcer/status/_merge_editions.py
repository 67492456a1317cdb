"""What one look led to, put into words; where it found all as it was, those of the last look are taken again.

Most looks do. To see that costs a tenth of writing everything down.
"""

from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, Final

from enforcer.detection.detector import State
from enforcer.status.node_status import Snapshot, status

_TIMES: Final = frozenset({"time", "now", "edition"})
_CONTENT: Final = attrgetter(*(field.name for field in fields(Snapshot) if field.name not in _TIMES))


class Editions:
    """Numbers what looks led to: two with the same number say the same, but for their time."""

    def __init__(self) -> None:
        self._content: object = None
        self._number = 0
        self._found: dict[str, Any] = {}

    def of(self, snapshot: Snapshot) -> tuple[Snapshot, dict[str, Any]]:
        """Give a look its number, from 1, and say what it led to, of the shape of ``enforcer.status.node_status``."""
        content = _CONTENT(snapshot)
        if content != self._content or not is_timeless(snapshot):
            self._number += 1
            self._content, self._found = content, status(snapshot)
        numbered = replace(snapshot, edition=self._number)
        return numbered, {**self._found, "time": snapshot.time}


def is_timeless(snapshot: Snapshot) -> bool:
    """Whether time alone changes nothing of what there is to say: nobody is over a quota or was ended lately."""
    return not snapshot.sight and has_settled(snapshot.state)


def has_settled(state: State) -> bool:
    """Whether no case, no kill and no cool-down has a time that still runs."""
    return not (state.kills or state.cooling or any(case.samples or case.acting for case in state.cases.values()))
