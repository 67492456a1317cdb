"""``python -m tests.support.killed_writer FOLDER TRIALS SEED MODE``: an audit log whose writer is killed repeatedly.

Each trial forks a writer from this small process and has it killed: by SIGKILL from outside at a random instant, by
itself right before or after a random system call, or (MODE ``rotation``) at one of those by which a segment begins.
Prints one JSON object: records acknowledged and killed writers, what was lost, what does not hold.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

from enforcer.audit.log import AuditLog, segments
from enforcer.audit.record import Kind, read, verify

BATCH: Final = 100
"""Writers to one log."""
CALLS: Final = ("write", "fdatasync", "fsync", "open", "ftruncate", "pwrite", "rename", "unlink")
SEGMENT: Final = {"random": 4000, "rotation": 240_000}
"""Bytes: of ``rotation`` a thousand records."""
LONGEST: Final = 0.004
"""Seconds a writer may live, from its start or from its first record on."""


def main(argv: list[str]) -> int:
    """Run all trials."""
    folder, trials, chance, mode = Path(argv[0]), int(argv[1]), random.Random(int(argv[2])), argv[3]
    counts: dict[str, Any] = {"killed": 0, "acknowledged": 0, "lost": 0, "broken": [], "torn": 0, "segments": 0}
    for begun in range(0, trials, BATCH):
        acknowledged: list[str] = []
        for _ in range(min(BATCH, trials - begun)):
            heads, killed = _trial(folder, chance, mode)
            acknowledged += heads
            counts["killed"] += killed
        _look(folder, acknowledged, counts)
        shutil.rmtree(folder)
    print(json.dumps(counts))
    return 0


def _look(folder: Path, acknowledged: list[str], counts: dict[str, Any]) -> None:
    with AuditLog(folder, segment_bytes=SEGMENT["random"]):
        lines = list(chain.from_iterable(path.read_bytes().splitlines(keepends=True) for path in segments(folder)))
    result = verify(lines)
    there = {f"{record['seq']}:{record['hash']}" for record in map(read, lines)} if result.ok else set()
    counts["acknowledged"] += len(acknowledged)
    counts["lost"] += sum(head not in there for head in acknowledged)
    counts["broken"] += [] if result.ok else [result.problem]
    counts["torn"] += sum(b'"kind":"RECOVERED"' in line for line in lines)
    counts["segments"] += len(segments(folder))


def _trial(folder: Path, chance: random.Random, mode: str) -> tuple[list[str], bool]:
    """One writer's life: the heads it was told of, and whether it was killed."""
    reading, writing = os.pipe()
    own = mode == "rotation" or chance.random() < 0.5
    fatal, before, seed = chance.randrange(1, 5 if mode == "rotation" else 50), chance.random() < 0.5, chance.random()
    pid = os.fork()
    if pid == 0:
        _write(folder, writing, mode, _fate(mode, fatal, before=before) if own else None, seed)
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as heads:
        first = heads.readline() if own or chance.random() < 0.7 else b""
        if not own:
            time.sleep(chance.uniform(0.0, LONGEST))
            os.kill(pid, signal.SIGKILL)
        rest = heads.read()
    _, status = os.waitpid(pid, 0)
    found = [line.decode().strip() for line in (first + rest).splitlines(keepends=True) if line.endswith(b"\n")]
    return found, os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _fate(mode: str, fatal: int, *, before: bool) -> Callable[[], None]:
    """Arrange for this process to end at a system call: the ``fatal``-th of all, or after a segment was begun."""
    left, armed = fatal, mode == "random"

    def passing(name: str, args: tuple[Any, ...]) -> None:
        nonlocal left, armed
        armed = armed or (name == "open" and "kills-" in str(args[0]) and bool(args[1] & os.O_CREAT))
        left -= armed
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def mortal(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if before:
                passing(name, args)
            done = real(*args, **named)
            if not before:
                passing(name, args)
            return done

        return call

    def arrange() -> None:
        for name in CALLS:
            setattr(os, name, mortal(name, getattr(os, name)))

    return arrange


def _write(folder: Path, counts: int, mode: str, arrange: Callable[[], None] | None, seed: float) -> None:
    """Append until killed. What is told to the parent is what an enforcer would act upon."""
    chance, tell = random.Random(seed), os.write
    if arrange is not None:
        arrange()
    with suppress(KeyboardInterrupt), AuditLog(folder, segment_bytes=SEGMENT[mode]) as log:
        while True:
            kind = chance.choice((Kind.INTENT, Kind.OUTCOME))
            note = "x" * (20 if mode == "rotation" else chance.choice((0, 50, 500, 1020)))
            tell(counts, f"{log.append(kind, {'note': note})}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
