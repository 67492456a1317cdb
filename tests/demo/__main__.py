"""``make demo``: exit code 0 only if everything it tells of was seen to happen."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from gpushare.errors import GpuShareError
from gpushare_cli.terminal import Colour, Terminal
from tests.demo.children import INTERRUPTIONS, ROOT, Children, DemoError, uninterrupted
from tests.demo.recording import PICTURE, TRANSCRIPT, Recording
from tests.demo.stage import Stage
from tests.demo.story import tell

INTERRUPTED = 130
WEB_VIEW: Final = ROOT / "docs" / "pictures" / "ui-kills.png"
"""Drawn by the tests of ``gpu-share ui``: the demo has no API server, which that verb reads."""


def main(argv: Sequence[str]) -> int:
    """Run the demo."""
    options = parser().parse_args(argv)
    for number in INTERRUPTIONS:
        signal.signal(number, _interrupt)
    recording = Recording(sys.stdout)
    shown = Terminal.of(sys.stdout, options.color)
    terminal = Terminal(recording, colour=True, unicode=True) if options.write else shown
    try:
        with tempfile.TemporaryDirectory(prefix="gpu-share-demo-") as name:
            folder = Path(name)
            code = perform(Stage(terminal, folder, Children(folder), with_enforcer=not options.without_enforcer))
    except KeyboardInterrupt:
        terminal.say("\ninterrupted; everything it started is ended and removed")
        return INTERRUPTED
    if options.write and code == 0:
        recording.save()
    if code == 0:
        shown.say(f"Kills in a browser: {WEB_VIEW.relative_to(ROOT)}. make cluster starts a cluster for gpu-share ui.")
    return code


def perform(stage: Stage) -> int:
    """Show it all, and leave nothing behind; returns the exit code."""
    try:
        tell(stage)
    except (DemoError, GpuShareError, OSError) as error:
        failure = stage.terminal.paint(f"\nthe demo failed in step {stage.steps}: {error}", Colour.RED)
        print(failure, file=sys.stderr)
        return 1
    finally:
        with uninterrupted():
            stage.close()
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(prog="make demo", description=__doc__)
    options.add_argument("--without-enforcer", action="store_true", help="leave the enforcer out: the demo has to fail")
    what = f"put transcript and picture into {TRANSCRIPT.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}"
    options.add_argument("--write", action="store_true", help=what)
    options.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    return options


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
