"""Log lines of the worker: whole, in order, and never waited for."""

import io
import os
import threading
import time
from contextlib import suppress

import pytest

from webhook.serving.logs import MAX_WAITING, LogStream


def nobody() -> None:
    raise AssertionError("a line was dropped")


def test_lines_are_written_at_once_before_the_thread_starts_and_by_it_afterwards() -> None:
    written = io.StringIO()
    stream = LogStream(written, nobody)
    stream.write("one\n")
    assert written.getvalue() == "one\n"

    stream.start()
    stream.write("two\n")
    stream.stop()

    assert written.getvalue() == "one\ntwo\n"


def test_a_reader_that_sleeps_is_not_waited_for_and_its_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.serving.logs.END_SECONDS", 0.1)
    reader, writer = os.pipe()
    dropped: list[None] = []
    with os.fdopen(reader, "rb") as lines, os.fdopen(writer, "w") as pipe:
        stream = LogStream(pipe, lambda: dropped.append(None))
        stream.start()
        began = time.monotonic()
        for number in range(MAX_WAITING + 200):
            stream.write(f"{number:01000}\n")
        kept = MAX_WAITING + 200 - len(dropped)
        stream.stop()
        assert time.monotonic() - began < 5
        assert dropped

        read = threading.Thread(target=lambda: [lines.readline() for _ in range(kept)])
        read.start()
        read.join(10)
        assert not read.is_alive()
        stream.stop()


def test_a_reader_that_is_gone_raises_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as pipe:  # closing it tries once more
        stream = LogStream(pipe, nobody)
        stream.start()
        stream.write("one\n")
        stream.stop()
