"""The demo's output as it came: its transcript, and an animated picture of it."""

import io
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TextIO

from tests.demo.children import ROOT
from tests.support.pictures.svg import FOLDER
from tests.support.pictures.terminal import Written, animated

TRANSCRIPT: Final = ROOT / "docs" / "demo.txt"
PICTURE: Final = FOLDER / "demo.svg"
COLUMNS, ROWS = 92, 34
TOGETHER: Final = 0.05
"""Lines that come within so many seconds of each other are shown at once."""
LONGEST: Final = 1.0
"""Seconds that a pause of the demo takes in the picture at most."""
READING: Final = 0.12
"""Seconds that the picture adds for each line, to read it."""
HOLD: Final = 6.0
_CODE: Final = re.compile(r"\x1b\[\d*m")


class Recording(io.StringIO):
    """A stream that passes on what it gets, without colours, and notes when each line came."""

    def __init__(self, to: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._to, self._clock = to, clock
        self._lines: list[tuple[float, str]] = []
        self._begun = ""

    def write(self, text: str, /) -> int:
        """Take a text; a line is noted when it ends."""
        self._to.write(_CODE.sub("", text))
        *ended, self._begun = (self._begun + text).split("\n")
        self._lines += [(self._clock(), line) for line in ended]
        return len(text)

    def flush(self) -> None:
        """Show at once what was passed on."""
        self._to.flush()

    def transcript(self) -> str:
        """Return all lines, without colours."""
        return "".join(f"{_CODE.sub('', line)}\n" for _, line in self._lines)

    def picture(self) -> str:
        """Return the animated picture: pauses are shortened, and there is time to read."""
        return animated("make demo: a transcript of its run", list(self._shown()), COLUMNS, ROWS, HOLD)

    def _shown(self) -> Iterator[Written]:
        at, before = 0.0, self._lines[0][0]
        lines = list[str]()
        for when, line in self._lines:
            if when - before > TOGETHER:
                yield Written(at, lines)
                at += min(when - before, LONGEST) + READING * len(lines)
                lines = []
            lines.append(line)
            before = when
        yield Written(at, lines)

    def save(self, transcript: Path = TRANSCRIPT, picture: Path = PICTURE) -> None:
        """Write both."""
        transcript.write_text(self.transcript(), encoding="utf-8")
        picture.write_text(self.picture(), encoding="utf-8")
