"""What was done, one JSON object a line, so that a run that was cut off goes on."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Noticed:
    """What tenants noticed of a step.

    Attributes:
        refused: seconds for which a sharing pod was refused, or admitted without a share.
        unwatched: the longest time without a look of the enforcer at its GPUs, in seconds.
        waited: seconds from creation until ready, of the slowest pod that became ready.
        restarts: of containers of steady tenants; ``lost``: steady tenants that went, announced or not.
        daemons: new MPS daemons.
    """

    refused: float = 0.0
    unwatched: float = 0.0
    waited: float = 0.0
    restarts: int = 0
    lost: int = 0
    daemons: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One step of the run of a seed.

    Attributes:
        seed: what the run follows from; ``number``: of the step in it.
        on: the cluster, by the options of the command: the steps of a seed follow from them as well.
        seconds: from its beginning to its end, with the churn before and after it.
        healed: seconds from the act on until all held; ``None``: it did not.
        noticed: see there.
        awaited: what held last, and how many seconds after the churn it did not yet.
        violations: what did not hold.
    """

    seed: int
    number: int
    name: str
    seconds: float
    healed: float | None = None
    noticed: Noticed = Noticed()
    awaited: tuple[str, float] = ("", 0.0)
    violations: Sequence[str] = ()
    on: str = "--nodes 1"


class Journal:
    """The file of a run. A last line that a crash tore does not count: its step is done again."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def entries(self) -> list[Entry]:
        """Return all that is in it, in order."""
        if not self._file.exists():
            return []
        return [_entry(json.loads(line)) for line in self._file.read_text().split("\n")[:-1]]

    def following(self, seed: int, on: str) -> int:
        """Return the number of the first step of this seed on such a cluster that is not in it."""
        return max((each.number + 1 for each in self.entries() if (each.seed, each.on) == (seed, on)), default=0)

    def add(self, entry: Entry) -> None:
        """Write a step down."""
        whole = self._file.read_text() if self._file.exists() else ""
        kept = whole[: whole.rfind("\n") + 1]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(kept + json.dumps(asdict(entry)) + "\n")


def _entry(row: dict[str, Any]) -> Entry:
    return Entry(
        **{
            **row,
            "noticed": Noticed(**row["noticed"]),
            "awaited": tuple(row.get("awaited", ("", 0.0))),
            "violations": tuple(row["violations"]),
        }
    )
