"""What the enforcer under test does, written down below it: at its calls of the kernel, not at its own methods."""

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.safety.matrix.page import Page


class Moment(StrEnum):
    """When a fault strikes."""

    BEFORE_SAMPLE = "before the sample"
    AFTER_DECISION = "after the decision"
    AFTER_INTENT = "after the INTENT"
    AFTER_SIGNAL = "after the signal"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: seconds since boot, what, and particulars."""

    at: float
    what: str
    data: Mapping[str, Any]

    @classmethod
    def parse(cls, line: bytes) -> "Event":
        return cls(*json.loads(line))


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Trace:
    """A pipe to the supervisor: each event arrives whole and in order, also of a process that is killed next."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._write = pipe, os.write

    def tell(self, what: str, **data: Any) -> None:
        data["thread"] = f"{os.getpid()}:{threading.get_ident()}"  # ids of threads are those of their forks, too
        self._write(self._pipe, json.dumps([now(), what, data]).encode() + b"\n")


class Moments:
    """Stops the thread that reaches the wanted moment, once, until the supervisor has done what it does then."""

    def __init__(self, wanted: Moment, page: Page, trace: Trace, go_on: int) -> None:
        self._wanted, self._page, self._trace, self._go_on = wanted, page, trace, go_on
        self._lock = threading.Lock()

    def reached(self, moment: Moment) -> None:
        if moment is not self._wanted:
            return
        with self._lock:
            if self._page.fired:
                return
            self._page.fire()
        self._trace.tell("moment", moment=moment)
        os.read(self._go_on, 1)
