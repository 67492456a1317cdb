"""Child processes of the demo: each in a group of its own, its output in a file, ended by its own pid."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

ROOT: Final = Path(__file__).resolve().parents[2]
STOP_SECONDS: Final = 3.0
INTERRUPTIONS: Final = (signal.SIGINT, signal.SIGTERM)
_Found = TypeVar("_Found")


class DemoError(Exception):
    """Something the demo has to show did not happen. The message is one sentence."""


@dataclass(slots=True)
class Child:
    """A running process and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def tail(self, lines: int = 6) -> str:
        return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])

    def send(self, number: signal.Signals) -> None:
        if self.alive:
            self.process.send_signal(number)

    def stop(self) -> None:
        self.send(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session of its own, see Children.start
            self.process.wait()


@dataclass(slots=True)
class Children:
    """Starts processes of this checkout and ends what it started, newest first."""

    folder: Path
    started: list[Child] = field(default_factory=list)

    def python(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        """Start this Python with arguments, from the checkout."""
        return self.start(name, [sys.executable, *arguments], environment)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        output = self.folder / f"{name}.log"
        with uninterrupted(), output.open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment or {}),
                cwd=ROOT,
                start_new_session=True,
            )
            child = Child(name, process, output)
            self.started.append(child)
        return child

    def stop(self) -> None:
        """End them all."""
        for child in reversed(self.started):
            child.stop()
        self.started.clear()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put an interruption off to the end: what is started has to be known, and what is removed to be gone."""
    came: list[int] = []
    before = [(each, signal.signal(each, lambda number, _: came.append(number))) for each in INTERRUPTIONS]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def wait_for(
    what: str, seconds: float, look: Callable[[], _Found | None], *needed: Child, every: float = 0.05
) -> _Found:
    """Wait until ``look`` finds something.

    Raises:
        DemoError: it did not within that time, or a process it depends on ended.
    """
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        for child in needed:
            if not child.alive:
                raise DemoError(f"{child.name} ended with {child.process.returncode} before {what}:\n{child.tail()}")
        if time.monotonic() > deadline:
            detail = "".join(f"\nlast output of {child.name}:\n{child.tail()}" for child in needed)
            raise DemoError(f"{what}: not within {seconds:g} s{detail}")
        time.sleep(every)
