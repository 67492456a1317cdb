"""``python -m tests.safety.power [CUTS [SEED]]``: cut the power so often, on each kind of disk in turn; prints JSON.

A cut takes some ten seconds.
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.safety.power import disk
from tests.safety.power.ledger import SETTLED, Ledger
from tests.safety.power.machine import Machine

DISKS: Final = (("ext4", False), ("xfs", False), ("ext4", True), ("xfs", True))
"""File system, and whether the disk is slow."""
FRESH: Final = 10
"""Cuts after which another disk begins: the log of many boots takes long to read."""
EARLY: Final = 0.2
"""Share of cuts at any moment from power-on, and not only once the enforcer is at work."""
START_SECONDS: Final = 8.0
WORK_SECONDS: Final = 6.0


def cut_power(
    root: Path, cuts: int, seed: int, *, slow: bool = False, file_system: str = "ext4", syncs: bool = True
) -> Ledger:
    """Cut the power of one machine so often, on one disk; the last life shows what the last cut left."""
    chance, ledger = random.Random(f"{seed} {file_system} {slow}"), Ledger()
    machine = Machine(root.parent / f"{seed}-{file_system}-{slow}-{syncs}", root, file_system, slow, syncs)
    try:
        for cut in range(cuts + 1):
            machine.power_on()
            if 0 < cut < cuts and chance.random() < EARLY:
                time.sleep(chance.uniform(0, START_SECONDS))
            else:
                machine.wait(lambda said: any(line["what"] == SETTLED for line in said))
                time.sleep(chance.uniform(0, WORK_SECONDS))
            ledger.take(machine.lives, machine.cut())
    finally:
        machine.cut()
    return ledger


def main(argv: list[str]) -> dict[str, Any]:
    """Cut the power on every kind of disk in turn."""
    cuts, first = int(argv[0]) if argv else len(DISKS), int(argv[1]) if argv[1:] else 0
    rounds = max(min(cuts, len(DISKS)), round(cuts / FRESH))
    with tempfile.TemporaryDirectory() as folder:
        root, found = disk.root(Path(folder)), Counter[str]()
        broken: list[str] = []
        for number in range(rounds):
            (file_system, slow), seed = DISKS[number % len(DISKS)], first + number
            share = cuts // rounds + (number < cuts % rounds)
            ledger = cut_power(root, share, seed, slow=slow, file_system=file_system)
            found += Counter(cuts=share, **ledger.counts())
            broken += [f"{file_system}{', slow' * slow}, seed {seed}, {each}" for each in ledger.broken]
            print(f"{file_system}{', slow' * slow}: {dict(found)} {broken}", file=sys.stderr, flush=True)
    return {**found, "broken": broken}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
