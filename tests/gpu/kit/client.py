"""A CUDA program of ours (``tests/gpu/client.py``) seen from an experiment: one command a line, one JSON object back.

It is a process of its own, by its pid; nothing here waits without a limit. The program may be told to go on working
while others are asked: ``send`` and ``receive`` are the halves of ``ask``.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from tests.gpu.kit.journal import Journal

READY_S: Final = 30.0
ASK_S: Final = 30.0
END_S: Final = 5.0
HURRY_S: Final = 0.3
Answer = dict[str, Any]


class ClientGoneError(RuntimeError):
    """The program has ended; ``status`` is its exit status, negative for a signal."""

    def __init__(self, command: str, status: int | None, said: str) -> None:
        super().__init__(f"the CUDA client ended with status {status} at {command!r}: {said}")
        self.status = status


class ClientTimeoutError(TimeoutError):
    """The program did not answer in time; it may still be at it."""


class Client:
    """One CUDA process. Use as a context: it is gone at the end of it, whatever happened.

    ``end_s``: how long each is waited for when it is closed; shorter for all of them when time is up.
    """

    end_s: ClassVar[float] = END_S

    def __init__(self, command: Sequence[str], env: Mapping[str, str], errors: Path, journal: Journal) -> None:
        self._errors, self._journal, self._pending, self._buffer = errors, journal, "", b""
        with errors.open("wb") as sink:
            self.process = subprocess.Popen(
                command, env=dict(env), cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self.process.pid
        self.hello: Answer = {}

    def ready(self, timeout: float = READY_S) -> Answer:
        """Wait for the first line: ``{"ready": true, ...}``, or an error such as a context that was refused.

        Raises:
            ClientTimeoutError: it says nothing.
            ClientGoneError: it ended without a word.
        """
        if not self.hello:
            self._pending = "start"
            self.hello = self.receive(timeout)
        return self.hello

    @property
    def usable(self) -> bool:
        """Whether it got a context."""
        return bool(self.hello.get("ready"))

    def ask(self, command: str, timeout: float = ASK_S) -> Answer:
        """One command, one answer; a refusal by CUDA is an answer too: ``{"error": 2, "name": ...}``.

        Raises:
            ClientTimeoutError: no answer in time.
            ClientGoneError: it has ended.
        """
        self.send(command)
        return self.receive(timeout)

    def send(self, command: str) -> None:
        """Let it begin. Raises ``ClientGoneError``."""
        assert self.process.stdin is not None
        self._pending = command
        try:
            self.process.stdin.write(f"{command}\n".encode())
            self.process.stdin.flush()
        except OSError:
            raise self._gone() from None

    def receive(self, timeout: float = ASK_S) -> Answer:
        """The answer to what was sent. Raises as ``ask``."""
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            self._buffer += self._read(max(0.0, end - time.monotonic()), timeout)
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: Answer = json.loads(line)
        self._journal.add("client", {"pid": self.pid, "command": self._pending}, answer)
        return answer

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; nothing where it has ended."""
        self.process.send_signal(number)

    def close(self) -> None:
        """Ask it to quit, then end it by its pid."""
        with suppress(OSError):
            if self.process.stdin is not None and self.alive:
                self.process.stdin.write(b"quit\n")
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(self.end_s)
        if self.alive:
            self.process.kill()
            self.process.wait(END_S)
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, seconds: float, whole: float) -> bytes:
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            self._journal.add("client", {"pid": self.pid, "command": self._pending}, f"nothing within {whole} s")
            raise ClientTimeoutError(f"the CUDA client did not answer {self._pending!r} within {whole:g} s")
        data = os.read(self.process.stdout.fileno(), 65536)
        if not data:
            raise self._gone()
        return data

    def _gone(self) -> ClientGoneError:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        said = self._errors.read_text(errors="replace")[-2000:].strip()
        self._journal.add("client", {"pid": self.pid, "command": self._pending}, f"ended: {self.process.returncode}")
        return ClientGoneError(self._pending, self.process.returncode, said)
