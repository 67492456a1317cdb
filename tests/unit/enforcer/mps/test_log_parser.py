"""Lines of MPS's logs: known ones are told apart, and nothing that stands in them does harm."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.mps.log_parser import MAX_LINE, SHOWN, Line, Severity, most_severe, parsed, read, safe, split

CONTROL = b"[2026-11-21 10:00:00.123 Control 4711] "
SERVER = b"[2026-11-21 10:00:00.123 Other 4712] "


@pytest.mark.parametrize(
    ("message", "weight"),
    [
        ("Starting new server 25951 for user 0", Severity.CHANGE),
        ("NEW SERVER 25951: Ready", Severity.CHANGE),
        ("Server 25951 exited with status 0", Severity.CHANGE),
        ("Server 25951 exited with status 1", Severity.TROUBLE),
        ("NEW CLIENT 11801 from user 1000: Server already exists", Severity.ROUTINE),
        (
            "NEW CLIENT 0 from user 1000: Server is not ready, push client to pending list",
            Severity.ROUTINE,
        ),
        ("Accepting connection...", Severity.ROUTINE),
        ("NEW UI", Severity.ROUTINE),
        ("UI closed", Severity.ROUTINE),
        ("Cmd:get_server_list", Severity.ROUTINE),
        ("Cmd:ps -p 4", Severity.ROUTINE),
        ("Cmd:psx", Severity.CHANGE),
        ("Cmd:set_default_device_pinned_mem_limit 0 1G", Severity.CHANGE),
        ("Cmd:quit", Severity.CHANGE),
        ("Volta MPS: Server is handling a fatal GPU error.", Severity.TROUBLE),
        ("The following clients have a sticky error set:", Severity.TROUBLE),
        ("11661", Severity.ROUTINE),
        (
            "Client {PID: 4293, Context ID: 1} on the error-trigging process 4293 to be torn down",
            Severity.TROUBLE,
        ),
        ("Volta MPS: status of client {11661, 1} is ACTIVE", Severity.ROUTINE),
        ("Client {11661, 1} exit", Severity.ROUTINE),
        ("Destroy server context on device 0", Severity.CHANGE),
        ("Volta MPS: Creating server context on device 0", Severity.CHANGE),
        ("Removed Shm file at ", Severity.ROUTINE),
        ("NEW SERVER 1: Ready, Server 2 exited with status 1", Severity.ROUTINE),
    ],
)
def test_known_lines_are_distinguished(message: str, weight: Severity) -> None:
    line = read(CONTROL + message.encode())
    assert line is not None
    assert (line.severity, line.by) == (weight, "Control 4711")
    assert (line.at, line.text) == ("2026-11-21 10:00:00.123", message.strip())


def test_a_line_without_a_head_is_routine_whatever_it_says() -> None:
    for raw in (b"Server 1 exited with status 1", b"[soon Control 1] NEW UI", b"\xff\xfe\x00junk"):
        line = read(raw)
        assert line is not None
        assert (line.severity, line.at, line.by) == (Severity.ROUTINE, "", "")


def test_what_would_move_a_terminal_or_forge_a_line_is_escaped() -> None:
    line = read(SERVER + b'\x1b[2J\r{"level": "error"}\x00\x9b31m \xe2\x80\xae\\n')
    assert line is not None
    assert line.text == '\\x1b[2J\\x0d{"level": "error"}\\x00\\x9b31m \\xe2\\x80\\xae\\x5cn'


def test_nothing_and_zeros_are_no_line() -> None:
    assert [read(raw) for raw in (b"", b"\0" * 4096, b" \r")] == [None] * 3
    after_a_hole = read(b"\0" * 50 + SERVER + b"NEW UI")
    assert after_a_hole is not None
    assert after_a_hole.text == "NEW UI"


@given(st.binary(max_size=4000), st.lists(st.integers(0, 4000), max_size=8))
def test_lines_are_the_same_however_they_come_in(data: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    found, half = list[bytes](), b""
    for begin, end in pairwise(bounds):
        whole, half = split(half, data[begin:end])
        found += whole
        assert len(half) <= MAX_LINE
    assert [*found, half] == [line[:MAX_LINE] for line in data.split(b"\n")]


def test_of_a_line_without_end_the_front_is_kept_and_no_more() -> None:
    whole, half = split(b"", b"x" * 10 * MAX_LINE)
    assert (whole, half) == ([], b"x" * MAX_LINE)
    assert split(half, b"y\nnext\n") == ([b"x" * MAX_LINE, b"next"], b"")


@given(st.one_of(st.binary(max_size=3000), st.binary(max_size=500).map(lambda tail: SERVER + tail)))
def test_whatever_stands_there_is_passed_on_short_and_printable(raw: bytes) -> None:
    line = read(raw.replace(b"\n", b""))
    for text in () if line is None else (line.text, line.at, line.by):
        assert text.isascii()
        assert text.isprintable()
        assert len(text) <= SHOWN + 3


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_different_lines_stay_different(one: bytes, other: bytes) -> None:
    assert (safe(one) == safe(other)) == (one == other)


def test_a_flood_does_not_hide_what_is_grave() -> None:
    flood = [SERVER + f"noise {number}".encode() for number in range(1000)]
    lines = parsed(
        [*flood, SERVER + b"Volta MPS: Server is handling a fatal GPU error.", *flood, CONTROL + b"Cmd:quit"]
    )
    told, left = most_severe(lines, 3)
    assert [line.severity for line in told] == [Severity.ROUTINE, Severity.TROUBLE, Severity.CHANGE]
    assert left == {Severity.ROUTINE: 1999}
    assert most_severe([Line(Severity.ROUTINE, "")], 3) == ([Line(Severity.ROUTINE, "")], {})
