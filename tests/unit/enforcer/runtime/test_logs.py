import io
import os
import threading
from pathlib import Path

import structlog

from enforcer.runtime.logs import MAX_LINE, NonBlockingStream


def say(outlet: NonBlockingStream, text: str = "hello") -> None:
    structlog.PrintLogger(outlet).msg(text)  # type: ignore[arg-type]


def test_lines_come_out_whole() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as lines, os.fdopen(writer, "w") as stream:
        say(NonBlockingStream(stream))
        say(NonBlockingStream(stream), "ümlaut \udcff")
        say(NonBlockingStream(stream), "x" * 10000)
        assert lines.readline() == b"hello\n"
        assert lines.readline() == "ümlaut \\udcff\n".encode()
        long = lines.readline()
    assert (len(long), long[-4:]) == (MAX_LINE, b"...\n")


def test_a_stream_without_a_file_behind_it_is_written_to() -> None:
    stream = io.StringIO()
    say(NonBlockingStream(stream))
    assert stream.getvalue() == "hello\n"


def test_a_full_disk_and_a_reader_that_is_gone_raise_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        say(NonBlockingStream(full))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        say(NonBlockingStream(stream))
    say(NonBlockingStream(stream))


def test_a_reader_that_sleeps_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb"), os.fdopen(writer, "w") as stream:
        outlet = NonBlockingStream(stream)

        def chatter() -> None:
            for _ in range(500):
                say(outlet, "x" * 1000)

        thread = threading.Thread(target=chatter, daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
