import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.audit.record import GENESIS, HASH, MAX_BYTES, ChainHead, Kind, append_hash, digest_of, read, verify
from gpushare.errors import ConfigError, RecordError

TIME = "2026-11-20T22:16:05.123Z"
POD = {"namespace": "asr", "name": "tts-0", "uid": "0a1b2c3d-1111-2222-3333-444455556666"}


def log(count: int) -> list[bytes]:
    head, lines = GENESIS, []
    for number in range(count):
        line, head = append_hash(head, Kind.INTENT, TIME, {"node": "gpu-7", "pod": POD, "pid": number})
        lines.append(line)
    return lines


def test_a_record_reads_as_the_design_shows_it() -> None:
    record = json.loads(log(1)[0])
    assert list(record) == ["seq", "time", "kind", "node", "pod", "pid", "prev", "hash"]
    assert record["seq"] == 1
    assert record["prev"] == GENESIS.hash


def test_an_untouched_log_verifies_and_names_its_head() -> None:
    lines = log(20)
    decision = verify(lines)
    assert decision.ok
    assert decision.records == 20
    assert decision.head == ChainHead(20, json.loads(lines[-1])["hash"])


def test_an_empty_log_verifies() -> None:
    assert verify([]).ok


HOSTILE = [
    "line\nbreak", "\x1b[2J\x1b[31mred", "nul\x00nul", 'quote","pid":1,"x":"', "\u2028\u2029", "\U0001f600" * 3000,
    b"\xff\xfe\x80".decode("utf-8", "surrogateescape"), "a" * 2 * 1024 * 1024, "\\" * 5000, "\ud800" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_breaks_a_line(text: str) -> None:
    fields: dict[str, Any] = dict.fromkeys(("node", "gpu", "container", "command", "note"), text)
    line, head = append_hash(
        GENESIS, Kind.OUTCOME, TIME, fields | {"pod": dict.fromkeys(POD, text), "targets": [text] * 500}
    )
    assert len(line) <= MAX_BYTES
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert not any(byte < 32 for byte in line[:-1])
    assert read(line)["seq"] == head.seq
    assert verify([line]).ok


VALUES = st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(), st.lists)


@given(st.dictionaries(st.sampled_from(["note", "container", "targets", "ok", "n"]), VALUES))
def test_whatever_is_recorded_verifies(fields: dict[str, Any]) -> None:
    line, _ = append_hash(GENESIS, Kind.INTENT, TIME, fields)
    assert verify([line]).ok


def test_short_texts_are_kept_whole() -> None:
    line, _ = append_hash(GENESIS, Kind.WARNED, TIME, {"note": "ä\n\x1b" * 20})
    assert read(line)["note"] == "ä\n\x1b" * 20


def test_a_float_is_refused() -> None:
    with pytest.raises(RecordError, match="float"):
        append_hash(GENESIS, Kind.WARNED, TIME, {"seconds": 1.5})


def test_fields_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(RecordError, match="larger than 4096 bytes"):
        append_hash(GENESIS, Kind.WARNED, TIME, {f"field{number}": number for number in range(1000)})


def bad(lines: Iterable[bytes], anchor: ChainHead | None = None) -> tuple[int | None, str]:
    decision = verify(lines, anchor=anchor)
    assert not decision.ok
    return decision.line, decision.problem or ""


def test_an_edited_record_is_named() -> None:
    lines = log(9)
    lines[4] = lines[4].replace(b'"pid":4', b'"pid":5')
    assert bad(lines) == (5, "`hash` of record 5 is not the hash of its fields: the record was edited")


def test_a_deleted_record_is_named_where_it_is_missing() -> None:
    lines = log(9)
    del lines[4]
    line, problem = bad(lines)
    assert line == 5
    assert "record 5 is missing before" in problem


def test_swapped_records_are_named() -> None:
    lines = log(9)
    lines[3], lines[4] = lines[4], lines[3]
    assert bad(lines)[0] == 4


def test_a_repeated_record_is_named() -> None:
    lines = log(9)
    lines.insert(6, lines[5])
    assert bad(lines) == (7, "record 6 is in the place of record 7: a record was moved or repeated")


def test_a_torn_tail_is_named() -> None:
    lines = log(9)
    lines[8] = lines[8][:-20]
    assert bad(lines) == (9, "the line has no newline at its end: it is incomplete")


def test_a_cut_middle_is_named() -> None:
    lines = log(9)
    lines[3] = lines[3][:40] + b"\n"
    line, problem = bad(lines)
    assert line == 4
    assert "not valid JSON" in problem


def test_a_record_replaced_with_its_own_valid_hash_is_named() -> None:
    lines = log(9)
    forged, _ = append_hash(ChainHead(4, json.loads(lines[3])["hash"]), Kind.INTENT, TIME, {"pid": 1})
    lines[4] = forged
    assert bad(lines)[0] == 6


def test_a_rechained_log_is_found_by_the_anchor_alone() -> None:
    lines = log(9)
    anchor = ChainHead(9, json.loads(lines[8])["hash"])
    forged, head = append_hash(ChainHead(4, json.loads(lines[3])["hash"]), Kind.INTENT, TIME, {"pid": 1})
    lines[4:] = [forged]
    for number in range(5, 9):
        line, head = append_hash(head, Kind.INTENT, TIME, {"pid": number})
        lines.append(line)
    assert verify(lines).ok
    assert bad(lines, anchor) == (9, "record 9 has another hash than the anchor: the log was replaced")


def test_a_cut_tail_is_found_by_the_anchor_alone() -> None:
    lines = log(9)
    anchor = ChainHead.parse(f"9:{json.loads(lines[8])['hash']}")
    assert verify(lines, anchor=anchor).ok
    assert verify(lines[:7]).ok
    line, problem = bad(lines[:7], anchor)
    assert line == 8
    assert "the log was truncated" in problem
    assert bad([], anchor)[0] == 1


def test_an_anchor_at_the_very_end_holds_and_one_after_it_does_not() -> None:
    lines = log(3)
    last = ChainHead(3, json.loads(lines[2])["hash"])
    assert verify(lines, anchor=last).ok
    reported = "the log ends at record 3, but the anchor is record 4: the log was truncated"
    assert bad(lines, ChainHead(4, last.hash)) == (4, reported)


@pytest.mark.parametrize(
    "text", ["", "9", "9:", "9:sha256:abc", "x:" + GENESIS.hash, "\u0669:" + GENESIS.hash, "-1:" + GENESIS.hash]
)
def test_an_anchor_written_otherwise_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an anchor"):
        ChainHead.parse(text)


def test_an_anchor_is_read_as_it_is_shown() -> None:
    assert ChainHead.parse(str(GENESIS)) == GENESIS
    assert ChainHead.parse("9" * 15 + f":{GENESIS.hash}") == ChainHead(10**15 - 1, GENESIS.hash)


def test_one_that_is_refused_is_shown_as_far_as_it_is_worth() -> None:
    reported = "is not an anchor; write <number>:sha256:<64 hex digits>"
    with pytest.raises(ConfigError) as raised:
        ChainHead.parse("9" * 16 + f":{GENESIS.hash}")
    assert raised.value.message == f"'{'9' * 16}:{GENESIS.hash}' {reported}"
    with pytest.raises(ConfigError) as raised:
        ChainHead.parse("x" * 101)
    assert raised.value.message == f"'{'x' * 100}' {reported}"


@pytest.mark.parametrize(
    "line", [b"\n", b"{}\n", b"[]\n", b"null\n", b"NaN\n", b'{"seq":NaN}\n', b"\xff\xfe\n", b"[" * 4000 + b"\n",
             b'{"seq":' + b"9" * 4500 + b"}\n", b'{"seq":true,"prev":"","hash":""}\n', b'{"a":1,"a":1}\n'],
)  # fmt: skip
def test_rubbish_is_named_and_never_an_accident(line: bytes) -> None:
    line_number, problem = bad([line])
    assert line_number == 1
    assert "utf-" not in problem, "no encoding is guessed"


def test_the_order_of_fields_is_part_of_the_record() -> None:
    record = json.loads(log(1)[0])
    turned = dict(reversed(record.items()))
    assert bad([json.dumps(turned, separators=(",", ":")).encode() + b"\n"])[0] == 1


def _flip(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def _cut_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    del lines[at : at + chance.randint(1, 3)]
    return b"".join(lines)


def _swap(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    one, other = chance.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def _repeat(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))
    return b"".join(lines)


def _truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def _cut_bytes(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + data[at + chance.randint(1, 200) :]


def _insert(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.randbytes(chance.randint(1, 5)) + data[at:]


def _rehash(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    record = json.loads(lines[at])
    record["pid"] += 1
    record[HASH] = digest_of({name: value for name, value in record.items() if name != HASH})
    lines[at] = json.dumps(record, separators=(",", ":")).encode() + b"\n"
    return b"".join(lines)


@pytest.mark.parametrize("mutate", [_flip, _cut_lines, _swap, _repeat, _truncate, _cut_bytes, _insert, _rehash])
def test_every_random_mutation_is_found(mutate: Any) -> None:
    chance = random.Random(mutate.__name__)
    lines = log(12)
    whole = b"".join(lines)
    anchor = ChainHead(12, json.loads(lines[-1])["hash"])
    missed = []
    for _ in range(500):
        changed = mutate(whole, chance)
        if changed != whole and verify(changed.splitlines(keepends=True), anchor=anchor).ok:
            missed.append(changed)
    assert missed == []


OTHER_BYTES = [(b'"pid":4', b'"pid": 4'), (b'"pid":4', b'"pid":4,"pid":4'), (b"INTENT", b"\\u0049NTENT")]


@pytest.mark.parametrize("change", OTHER_BYTES)
def test_the_same_reported_in_other_bytes_is_an_edit(change: tuple[bytes, bytes]) -> None:
    lines = log(9)
    assert change[0] in lines[4]
    lines[4] = lines[4].replace(*change)
    assert bad(lines) == (
        5,
        "the line is not in the exact JSON form of the enforcer: another program wrote or edited the line",
    )
