"""Several workers, each with neighbours of its own, deal the runs among them: a run mostly waits."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.integration.processes.containers import PROJECT

Row = tuple[str, str, int, str | None]
"""Fault, moment, trial, saboteur."""
Found = dict[str, Any]
WORKERS: Final = 4
PATIENCE: Final = 30.0


def play(
    rows: Sequence[Row], mount: Path, folder: Path, *, workers: int = WORKERS, patience: float = PATIENCE
) -> list[Found]:
    """Play them all and return what each worker told. Raises ``RuntimeError`` where one did not come to its end."""
    command = [sys.executable, "-m", "tests.safety.matrix.worker", str(mount), str(folder), str(patience)]
    hands = []
    for number in range(workers):
        listed, told = folder / f"rows-{number}", folder / f"told-{number}"
        listed.write_text("\n".join(json.dumps(row) for row in rows[number::workers]))
        with listed.open() as source, told.open("w") as sink:
            hands.append((subprocess.Popen(command, cwd=PROJECT, stdin=source, stdout=sink), told))
    codes = [hand.wait() for hand, _ in hands]
    if any(codes):
        raise RuntimeError(f"workers ended with {codes}")
    return [json.loads(line) for _, told in hands for line in told.read_text().splitlines()]
