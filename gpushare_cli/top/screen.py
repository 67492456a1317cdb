"""Shows a text again and again in place: on the terminal's other screen, line over line, so that nothing flickers."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gpushare_cli.terminal import Terminal

ENTER = "\x1b[?1049h\x1b[?25l"
"""The other screen, without a cursor: what was on the terminal comes back with ``LEAVE``."""
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
REST_OF_LINE = "\x1b[K"
REST_OF_SCREEN = "\x1b[J"


@contextmanager
def other_screen(terminal: Terminal) -> Iterator[None]:
    """Use the other screen meanwhile, where the stream is a terminal."""
    if not terminal.stream.isatty():
        yield
        return
    try:
        print(ENTER, end="", file=terminal.stream, flush=True)
        yield
    finally:
        print(LEAVE, end="", file=terminal.stream, flush=True)


def show(lines: Sequence[str], terminal: Terminal) -> None:
    """Write lines over those shown before; where the stream is not a terminal, below them."""
    if not terminal.stream.isatty():
        terminal.say("\n".join(lines))
        return
    fitting = lines[: max(1, shutil.get_terminal_size().lines - 1)]
    whole = "".join(f"{line}{REST_OF_LINE}\n" for line in fitting)
    print(f"{HOME}{whole}{REST_OF_SCREEN}", end="", file=terminal.stream, flush=True)
