"""Log output that never blocks: log lines, and the copies of audit records on standard output.

A full disk, a reader that is gone or one that sleeps would raise in, or stop, the caller. Such lines are lost.
"""

import logging
import os
import select
import sys
from contextlib import suppress
from typing import Any, Final, TextIO

import structlog

MAX_LINE: Final = 4096
"""Bytes of one line: a pipe that takes anything at all takes these at once (``PIPE_BUF``)."""


class NonBlockingStream:
    """A text stream for ``structlog.PrintLoggerFactory`` that neither fails nor waits."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""

    def write(self, text: str) -> int:
        """Take a text; whole lines go out at once."""
        self._line += text
        if self._line.endswith("\n"):
            line, self._line = self._line, ""
            with suppress(OSError, ValueError):
                self._send(line)
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""

    def _send(self, line: str) -> None:
        try:
            descriptor = self._stream.fileno()
        except (OSError, ValueError):  # no file behind it: a test's
            self._stream.write(line)
            return
        data = line.encode("utf-8", "backslashreplace")
        if len(data) > MAX_LINE:
            data = data[: MAX_LINE - 4] + b"...\n"
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        if any(event & select.POLLOUT for _, event in poll.poll(0)):
            os.write(descriptor, data)


def configure_logging(level: str = "info") -> None:
    """Let this process log JSON lines to standard error, from that level on."""
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        # A text stream as far as structlog uses one.
        logger_factory=structlog.PrintLoggerFactory(NonBlockingStream(sys.stderr)),  # type: ignore[arg-type]
    )
