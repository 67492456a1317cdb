"""Shows a text again and again in place: on the terminal's other screen, line over line, so that nothing flickers."""

import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

from gpushare_cli.terminal import Terminal

ENTER: Final = "\x1b[?1049h\x1b[?25l"
"""The other screen, without a cursor: what was on the terminal comes back with ``LEAVE``."""
LEAVE: Final = "\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
REST_OF_LINE: Final = "\x1b[K"
REST_OF_SCREEN: Final = "\x1b[J"


@contextmanager
def other_screen(terminal: Terminal) -> Iterator[None]:
    """Use the other screen meanwhile, where the stream is a terminal."""
    if not terminal.stream.isatty():
        yield
        return
    before = signal.signal(signal.SIGTERM, _end)  # its default leaves no time for LEAVE
    try:
        print(ENTER, end="", file=terminal.stream, flush=True)
        yield
    finally:
        print(LEAVE, end="", file=terminal.stream, flush=True)
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def show(lines: Sequence[str], terminal: Terminal) -> None:
    """Write lines over those shown before; where the stream is not a terminal, below them."""
    if not terminal.stream.isatty():
        terminal.say("\n".join(lines))
        return
    fitting = lines[: max(1, shutil.get_terminal_size().lines - 1)]
    whole = "".join(f"{line}{REST_OF_LINE}\n" for line in fitting)
    print(f"{HOME}{whole}{REST_OF_SCREEN}", end="", file=terminal.stream, flush=True)
