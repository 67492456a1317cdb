"""Structured logging for the webhook process: one JSON object per line on standard error, gunicorn's own included.

In the worker a thread writes the lines: the event loop must not wait for a reader of standard error.
"""

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TextIO

import structlog

MAX_WAITING: Final = 1000
"""Lines that wait for the writer; later ones are dropped. A line is at most some 15 kB."""
END_SECONDS: Final = 2.0
EVERY_SECONDS: Final = 0.1
"""How often the thread writes: woken for each line, it would take the interpreter from the loop each time."""

_SHARED: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


class LogStream:
    """Where lines go: straight to ``stream`` until ``start`` is called, through a thread from then on.

    Args:
        stream: standard error.
        on_dropped: called for each line that is dropped because too many wait.
    """

    def __init__(self, stream: TextIO, on_dropped: Callable[[], object]) -> None:
        self._stream, self._on_dropped = stream, on_dropped
        self._waiting: deque[str] = deque()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Call it after the fork: threads do not survive one."""
        self._thread = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Write what waits, for at most two seconds: a reader that is stuck must not keep the process."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def write(self, text: str) -> None:
        """Take one or more whole lines."""
        if len(self._waiting) >= MAX_WAITING:
            self._on_dropped()
            return
        self._waiting.append(text)
        if self._thread is None:
            self._write_waiting()

    def flush(self) -> None:
        """Return at once: structlog and logging call this after each line."""

    def _write_all(self) -> None:
        while not self._ending.wait(EVERY_SECONDS):
            self._write_waiting()
        self._write_waiting()

    def _write_waiting(self) -> None:
        while self._waiting:
            with suppress(OSError, ValueError):  # the reader is gone
                self._stream.write(self._waiting.popleft())  # one system call: lines of the arbiter come between
                self._stream.flush()


def configure(level: str, stream: LogStream) -> None:
    """Send every line of this process, ours and the standard library's, to standard error as JSON."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*_SHARED, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        # One system call a line: `print` would make two.
        logger_factory=structlog.WriteLoggerFactory(stream),  # type: ignore[arg-type] # as far as structlog uses one
        cache_logger_on_first_use=True,
    )


def standard_library(level: str, stream: LogStream) -> dict[str, Any]:
    """A ``logging.config`` dictionary that formats records like ours; gunicorn takes it as ``logconfig_dict``."""
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        "processors": [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
        "foreign_pre_chain": [*_SHARED, structlog.stdlib.add_logger_name],
    }
    handler = {"class": "logging.StreamHandler", "stream": stream, "formatter": "json"}
    gunicorn = {"level": level.upper(), "handlers": ["stderr"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": formatter},
        "handlers": {"stderr": handler},
        "root": {"level": "WARNING", "handlers": ["stderr"]},
        "loggers": {"gunicorn.error": gunicorn},
    }
