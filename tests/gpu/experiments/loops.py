"""Clients that compute without end, and how to tell that they still do, and rightly."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from tests.gpu.kit.client import Client

PATIENCE = 20.0
"""Seconds after which a computation that does not come back counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One computation: when it was back (monotonic), how long it took, of that on the GPU, and what was wrong."""

    at: float
    seconds: float
    gpu_ms: float = 0.0
    wrong: str | None = None


def turn(client: Client, command: str, patience: float = PATIENCE) -> Turn:
    """Have one computation done. What goes wrong is in the answer: this is about what happens to clients."""
    begun = time.monotonic()
    answer = asked(client, command, patience)
    now = time.monotonic()
    return Turn(at=now, seconds=now - begun, gpu_ms=float(answer.get("ms", 0.0)), wrong=wrong(answer))


def asked(client: Client, command: str, patience: float = PATIENCE) -> dict[str, Any]:
    """Ask a client that may be dead, dying or hung; then the answer says so."""
    try:
        return client.ask(command, patience)
    except TimeoutError:
        return {"error": -1, "name": f"no answer within {patience:g} s"}
    except (OSError, ValueError, RuntimeError) as error:
        return {"error": -1, "name": f"ended: {error}"}


def wrong(answer: dict[str, Any]) -> str | None:
    """What is wrong with an answer; ``None`` where nothing is."""
    if "error" in answer:
        return f"{answer.get('name', '')} ({answer['error']})"
    return None if answer.get("ok", True) else "a wrong result"


class Loop:
    """One client that computes again and again in a thread of ours, until something is wrong or it is told to stop.

    Args:
        client: it is asked by nobody else meanwhile.
        command: what to compute.
        pause: seconds between two computations.
    """

    def __init__(self, client: Client, command: str, pause: float = 0.0) -> None:
        self.client, self.turns = client, list[Turn]()
        self._command, self._pause = command, pause
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.turns.append(turn(self.client, self._command))
            if self.turns[-1].wrong is not None:
                return
            self._stopped.wait(self._pause)

    @property
    def wrong(self) -> str | None:
        """What went wrong; ``None`` while all is well."""
        return self.turns[-1].wrong if self.turns else None

    def right_since(self, moment: float) -> bool:
        """Whether a computation that ended after this moment was right, and none wrong."""
        return self.wrong is None and any(each.at > moment for each in list(self.turns))

    def stop(self) -> list[Turn]:
        """Let it finish what it computes; returns all it did."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(2 * PATIENCE)
        return list(self.turns)


def until(true: Callable[[], bool], seconds: float, every: float = 0.02) -> float | None:
    """Wait until something is true; how long that took, ``None`` where it was not in time."""
    begun = time.monotonic()
    while not true():
        if time.monotonic() - begun > seconds:
            return None
        time.sleep(every)
    return time.monotonic() - begun


def settle(loops: Iterable[Loop], seconds: float, count: int = 1) -> bool:
    """Wait until each has computed something, or fallen out; whether all are well."""
    all_loops = list(loops)
    until(lambda: all(len(each.turns) >= count or each.wrong for each in all_loops), seconds)
    return all(each.turns and each.wrong is None for each in all_loops)
