"""``python -m tests.safety.matrix.worker MOUNT FOLDER PATIENCE``: plays the runs named on its input, one at a time.

Each line in is ``[fault, moment, trial, saboteur or null]``, each line out what was found. Forks from a process that
never had a thread.
"""

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.safety.matrix import saboteurs
from tests.safety.matrix.checker import check
from tests.safety.matrix.evidence import Evidence
from tests.safety.matrix.people import Bed, bed
from tests.safety.matrix.run import GRACE, Case, Run
from tests.safety.matrix.trace import Moment

SURE: Final = 1.0
"""Seconds of grace that half of is seen to be missing on a busy machine, too."""
LAST: Final = 80
"""Events shown of a run that broke something."""


def main(argv: list[str]) -> int:
    mount, folder, patience = argv
    parent = os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the neighbours are ended on the way out
    left = [json.loads(line) for line in sys.stdin]
    while left:
        with bed(Path(mount), Path(folder)) as made:
            while left:
                if os.getppid() != parent:
                    return 1  # nobody reads what is found
                if _play(made, left.pop(0), float(patience)).harmed:
                    break  # the neighbours are not what they were: others come in
    return 0


def _play(made: Bed, row: list[Any], patience: float) -> Evidence:
    fault, moment, trial, saboteur = row
    sabotage = [saboteurs.BY_NAME[saboteur].act] if saboteur else []
    grace = SURE if saboteur else GRACE
    seen = Run(made, Case(fault, Moment(moment), trial), sabotage, patience, grace).go()
    print(json.dumps({"case": row, **_told(seen, check(seen))}), flush=True)
    return seen


def _told(seen: Evidence, broken: list[str]) -> Mapping[str, Any]:
    what = [event.what for event in seen.events]
    shown = [f"{event.at:.4f} {event.what} {json.dumps(event.data)}" for event in seen.events]
    counts = {name: what.count(name) for name in ("signal", "decided", "sample", "synced")}
    return {
        "broken": broken,
        "seconds": seen.seconds,
        "counts": counts,
        "trace": [*shown[-LAST:], *seen.log[-LAST:]] if broken else [],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
