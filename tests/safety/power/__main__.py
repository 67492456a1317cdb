"""``python -m tests.safety.power [CUTS [SEED]]``: cut the power so often, on each kind of disk in turn; prints JSON.

A cut takes half a minute.
"""

import json
import random
import sys
import tempfile
import time
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
BOOT_SECONDS: Final = 25.0
WORK_SECONDS: Final = 4.0


def cut_power(
    cuts: int, seed: int, folder: Path, *, slow: bool = False, file_system: str = "ext4", syncs: bool = True
) -> Ledger:
    """Cut the power of one machine so often, on one disk; the last boot shows what the last cut left."""
    chance, ledger = random.Random(f"{seed} {file_system} {slow}"), Ledger()
    machine = Machine(folder / "machine", disk.root(folder), file_system, slow, syncs)
    try:
        for cut in range(cuts + 1):
            machine.power_on()
            if 0 < cut < cuts and chance.random() < EARLY:
                time.sleep(chance.uniform(0, BOOT_SECONDS))
            else:
                machine.wait(lambda said: any(line["what"] == SETTLED for line in said))
                time.sleep(chance.uniform(0, WORK_SECONDS))
            ledger.take(machine.boots, machine.cut())
    finally:
        machine.cut()
    return ledger


def main(argv: list[str]) -> dict[str, Any]:
    """Cut the power on every kind of disk in turn."""
    cuts, seed = int(argv[0]) if argv else len(DISKS), int(argv[1]) if argv[1:] else 0
    found: dict[str, Any] = {"cuts": 0, "signals": 0, "records": 0, "claims": 0, "torn": 0, "settled": 0, "broken": []}
    rounds = max(min(cuts, len(DISKS)), round(cuts / FRESH))
    for number in range(rounds):
        file_system, slow = DISKS[(seed + number) % len(DISKS)]
        share = cuts // rounds + (number < cuts % rounds)
        with tempfile.TemporaryDirectory() as folder:
            ledger = cut_power(share, seed + number, Path(folder), slow=slow, file_system=file_system)
        found["cuts"] += share
        found["signals"] += ledger.signals
        found["records"] += len(ledger.records)
        found["claims"] += len(ledger.kept) + ledger.undone
        found["torn"] += ledger.recovered
        found["settled"] += ledger.settled
        found["broken"] += [f"{file_system}{', slow' * slow}, seed {seed + number}, {each}" for each in ledger.broken]
        print(f"{time.monotonic():.0f} {file_system} slow={slow} {found}", file=sys.stderr, flush=True)
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
