"""Whatever a tenant calls itself: each record is one JSON object on one line of at most 4 KiB."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit.log import AuditLog, lines_of, segments
from enforcer.audit.record import MAX_BYTES, Kind, read, verify
from tests.support import extent

HOSTILE = {
    "2 MiB command line": "/bin/python " * 175_000,
    "newlines": '\n{"seq":1,"kind":"OUTCOME"}\r\n\n\u2028\u2029\x85',
    "ANSI": "\x1b[2J\x1b[1;31mall is well\x1b]0;title\x07\x9b31m",
    "NUL": "model\x00--quiet\x00" * 50,
    "invalid UTF-8": bytes(range(128, 256)).decode("utf-8", "surrogateescape"),
    "forged field": '","pid":1,"result":"AlreadyExited","x":"',
    "lone surrogates": "\ud800\udfff" * 3000,
    "backslashes": "\\" * 5000,
    "wide": "\U0001f600" * 3000,
}
TEXTS = ("node", "gpu", "container", "containerId", "note", "command")
ALPHABET = "\x00\x01\n\r\t\x1b\"\\,:{}[]<>&'/\x7f\x85\xa0\u2028\ufeff\ud800\udcff\U0001f4a9aZ09 "


def record_of(text: str) -> dict[str, Any]:
    """A record every text of which is the attacker's."""
    fields: dict[str, Any] = dict.fromkeys(TEXTS, text)
    pod = dict.fromkeys(("namespace", "name", "uid"), text)
    return fields | {"pod": pod, "pid": 31337, "targets": [{"pid": number, "steps": text} for number in range(70)]}


def check(line: bytes, text: str) -> None:
    """The line is one object, and says what was given, from its beginning on."""
    assert len(line) <= MAX_BYTES
    assert line.endswith(b"\n")
    assert all(32 <= byte < 127 for byte in line[:-1])
    parsed = json.JSONDecoder().raw_decode(line.decode("ascii"))
    assert parsed[1] == len(line) - 1, "one object and nothing after it"
    assert parsed[0] == read(line)
    assert parsed[0]["pid"] == 31337
    assert "result" not in parsed[0]
    shown = text.encode("utf-8", "backslashreplace").decode()
    for name in TEXTS:
        kept = parsed[0][name]
        assert kept == shown or (kept.endswith("...") and shown.startswith(kept[:-3])), name


@pytest.mark.parametrize("name", HOSTILE)
def test_each_line_is_one_object_of_at_most_4_kib(name: str, tmp_path: Path) -> None:
    text = HOSTILE[name]
    with AuditLog(tmp_path / "audit") as log:
        for kind in Kind:
            log.append(kind, record_of(text))
    lines = [line for file in segments(tmp_path / "audit") for line in lines_of(file)]
    assert len(lines) == len(Kind)
    for line in lines:
        check(line, text)
    assert verify(lines).ok


def test_random_texts_come_back_as_they_were(tmp_path: Path) -> None:
    chance, trials = random.Random(39), extent.trials(200, 20_000)
    with AuditLog(tmp_path / "audit") as log:
        for _ in range(trials):
            text = "".join(chance.choices(ALPHABET, k=chance.choice([0, 1, 15, 60])))
            fields = {"note": text, "pod": {"name": text[::-1]}, "pid": chance.randrange(2**64)}
            head = log.append(Kind.WARNED, fields)
            record = read(_last(tmp_path / "audit"))
            assert (record["seq"], record["pid"]) == (head.seq, fields["pid"])
            assert record["note"] == text.encode("utf-8", "backslashreplace").decode()
    assert verify(line for file in segments(tmp_path / "audit") for line in lines_of(file)).ok
    extent.figure("39", "random hostile texts that come back, one object a line", f"{trials:,} of {trials:,}")


def _last(folder: Path) -> bytes:
    with segments(folder)[-1].open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - MAX_BYTES))
        return file.read().splitlines(keepends=True)[-1]
