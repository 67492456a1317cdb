"""The grammar of records to the last byte: what is cut, where, and which sentence names what is wrong."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from enforcer.audit.record import (
    DEEPEST,
    GENESIS,
    HASH,
    MAX_BYTES,
    ChainHead,
    Kind,
    append_hash,
    digest_of,
    head_of,
    published_head,
    read,
    verify,
)
from gpushare import contract
from gpushare.errors import RecordError
from gpushare.formats import AUDIT_RECORD, newer

NO_NUMBER = "the line has no `seq` or no `prev`, so it is not an audit record"
FORM = "the line is not in the exact JSON form of the enforcer: another program wrote or edited the line"
EDITED = "`hash` of record 7 is not the hash of its fields: the record was edited"
HEAD = ChainHead(7, "sha256:" + "a" * 64)
NO_KIND = "line 7 has no `kind` or no `time`, so it is not an audit record"


def _line(record: dict[str, Any]) -> bytes:
    """A line with a right hash, whatever else is wrong with it."""
    return json.dumps({**record, HASH: digest_of(record)}, separators=(",", ":")).encode() + b"\n"


def _log(count: int, previous: ChainHead = GENESIS) -> list[bytes]:
    lines = []
    for number in range(count):
        line, previous = append_hash(previous, Kind.WARNED, "t", {"n": number})
        lines.append(line)
    return lines


def _heads(lines: list[bytes]) -> list[ChainHead]:
    return [head_of(read(line)) for line in lines]


def _kept(**fields: Any) -> dict[str, Any]:
    record = read(append_hash(GENESIS, Kind.WARNED, "t", fields)[0])
    return {name: record[name] for name in fields}


def _refused(line: bytes) -> str:
    with pytest.raises(RecordError) as raised:
        read(line)
    return raised.value.message


def test_a_record_of_a_newer_release_is_refused_as_such() -> None:
    assert _refused(b'{"version":2,"seq":1}\n') == newer(AUDIT_RECORD.name, 2, 1, AUDIT_RECORD.fix)


@pytest.mark.parametrize(
    ("annotations", "head"),
    [
        ({}, None),
        ({"annotations": None}, None),
        ({"annotations": {}}, None),
        ({"annotations": {contract.AUDIT_HEAD: "7"}}, None),
        ({"annotations": {contract.AUDIT_HEAD: str(HEAD)}}, HEAD),
    ],
    ids=["no annotations", "null", "none of ours", "no head", "a head"],
)
def test_the_head_on_a_slice_is_read_where_there_is_one(annotations: dict[str, Any], head: ChainHead | None) -> None:
    assert published_head({"metadata": {"name": "gpu-7", **annotations}}) == head


def test_a_record_is_one_line_of_compact_json_in_a_fixed_order() -> None:
    line, head = append_hash(
        ChainHead(6, "sha256:" + "a" * 64), Kind.INTENT, "noon", {"b": 1, "a": [True, None, "\u00e4"]}
    )
    body = '{"seq":7,"time":"noon","kind":"INTENT","b":1,"a":[true,null,"\\u00e4"],"prev":"sha256:' + "a" * 64 + '"'
    digest = digest_of(json.loads(body + "}"))
    assert line.decode() == body + f',"hash":"{digest}"}}\n'
    assert head == ChainHead(7, digest) == head_of(read(line))
    assert str(head) == f"7:{digest}"


@pytest.mark.parametrize("name", ["seq", "time", "kind", "prev", "hash"])
def test_a_field_may_not_be_called_like_one_of_the_records_own(name: str) -> None:
    with pytest.raises(RecordError) as raised:
        append_hash(GENESIS, Kind.WARNED, "t", {name: 1})
    assert raised.value.message == f"field {name!r} is reserved for the record itself; choose another field name"


def test_of_several_the_first_by_name_is_reported() -> None:
    with pytest.raises(RecordError, match="field 'kind' is reserved"):
        append_hash(GENESIS, Kind.WARNED, "t", {"time": 1, "kind": 2, "seq": 3})


@pytest.mark.parametrize("value", [1.5, b"x", {1, 2}, object()], ids=lambda value: type(value).__name__)
def test_what_a_record_cannot_hold_is_named_by_its_type(value: object) -> None:
    for fields in ({"x": value}, {"x": [value]}, {"x": {"y": value}}):
        with pytest.raises(RecordError) as raised:
            append_hash(GENESIS, Kind.WARNED, "t", fields)
        assert raised.value.message == f"an audit record cannot hold a {type(value).__name__}: pass the value as text"


def test_more_fields_than_fit_are_refused() -> None:
    with pytest.raises(RecordError) as raised:
        append_hash(GENESIS, Kind.OUTCOME, "t", {f"f{n}": n for n in range(900)})
    assert (
        raised.value.message == "the OUTCOME record is larger than 4096 bytes, the maximum of a record: report this bug"
    )


@pytest.mark.parametrize("size", [1, 1023, 1024])
def test_a_text_up_to_its_limit_is_kept_whole(size: int) -> None:
    assert _kept(x="a" * size) == {"x": "a" * size}


@pytest.mark.parametrize("size", [1025, 1026, 5000])
def test_a_longer_one_is_cut_to_it_and_ends_in_dots(size: int) -> None:
    assert _kept(x="a" * size) == {"x": "a" * 1021 + "..."}


def test_what_counts_is_its_length_as_json() -> None:
    assert _kept(x="\x01" * 170) == {"x": "\x01" * 170}
    assert _kept(x="\x01" * 171) == {"x": "\x01" * 170 + "..."}
    assert _kept(x='"' * 512) == {"x": '"' * 512}
    assert _kept(x='"' * 513) == {"x": '"' * 510 + "..."}
    assert _kept(x="\U0001f600" * 85) == {"x": "\U0001f600" * 85}
    assert _kept(x="\U0001f600" * 86) == {"x": "\U0001f600" * 85 + "..."}


def test_what_is_no_unicode_is_written_as_escapes() -> None:
    assert _kept(x="a\ud800b\udcff") == {"x": "a\\ud800b\\udcff"}


def test_lists_objects_and_names_are_cut_as_deep_as_they_go() -> None:
    many = list(range(100))
    assert _kept(w=[many], x=many, y={"z": tuple(many), "t": "a" * 2000}) == {
        "w": [many[:64]], "x": many[:64], "y": {"z": many[:64], "t": "a" * 1021 + "..."},
    }  # fmt: skip
    assert _kept(x={7: "seven"}, y=[], z={}) == {"x": {"7": "seven"}, "y": [], "z": {}}


@pytest.mark.parametrize(("count", "limit", "length"), [(3, 1024, 64), (7, 512, 32), (14, 256, 16), (25, 128, 8)])
def test_where_that_is_not_enough_all_are_cut_shorter_together(count: int, limit: int, length: int) -> None:
    fields = {f"f{n}": "a" * 2000 for n in range(count)} | {"list": ["b"] * 100}
    found = _kept(**fields)
    assert found.pop("list") == ["b"] * length
    assert set(found.values()) == {"a" * (limit - 3) + "..."}


def test_the_shortest_limits_come_last() -> None:
    fields = {f"f{n}": "a" * 100 for n in range(105)} | {"list": [1, 2, 3]}
    found = _kept(**fields)
    assert found.pop("list") == [1]
    assert set(found.values()) == {"a" * 13 + "..."}


def test_a_line_of_the_longest_length_is_sealed_and_read() -> None:
    fields: dict[str, Any] = {f"t{n}": "x" * 512 for n in range(7)}
    room = MAX_BYTES - len(append_hash(GENESIS, Kind.WARNED, "t", {**fields, "z": ""})[0])
    line, _ = append_hash(GENESIS, Kind.WARNED, "t", {**fields, "z": "x" * room})
    assert len(line) == MAX_BYTES
    assert read(line)["z"] == "x" * room
    shorter, _ = append_hash(GENESIS, Kind.WARNED, "t", {**fields, "z": "x" * (room + 1)})
    assert len(shorter) < MAX_BYTES
    assert _refused(line[:-2] + b'"}\n') == "the line has more than 4096 bytes, the maximum of a record"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"seq":1}', "the line has no newline at its end: it is incomplete"),
        (b"[]\n", FORM),
        (b'{"a": 1}\n', FORM),
        (_line({"seq": True, "time": "t", "kind": "k", "prev": "p"}), NO_NUMBER),
        (_line({"time": "t", "kind": "k", "prev": "p"}), NO_NUMBER),
        (_line({"seq": 7, "time": "t", "kind": "k"}), NO_NUMBER),
        (_line({"seq": 7, "time": "t", "kind": "k", "prev": 1}), NO_NUMBER),
        (_line({"seq": 7, "time": "t", "prev": "p"}), NO_KIND),
        (_line({"seq": 7, "time": 1, "kind": "k", "prev": "p"}), NO_KIND),
        (_line({"seq": 7, "time": "t", "kind": 1, "prev": "p"}), NO_KIND),
        (b'{"seq":7,"time":"t","kind":"k","prev":"p"}\n', EDITED),
    ],
)  # fmt: skip
def test_each_thing_that_is_wrong_with_a_line_has_its_sentence(line: bytes, why: str) -> None:
    assert _refused(line) == why


def test_of_what_is_no_json_it_is_reported_why() -> None:
    assert _refused(b"x\n") == "the line is not valid JSON: Expecting value at byte 1"
    assert _refused(b"[" * 2000 + b"\n").startswith("the line is not valid JSON: ")


def test_nor_is_it_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: str) -> None:
        raise ValueError("x" * 99 + "yz")

    monkeypatch.setattr(json, "loads", fails)
    assert _refused(b"{}\n") == "the line is not valid JSON: " + "x" * 99 + "y"


def test_what_json_does_not_know_is_no_json_however_right_the_hash_is() -> None:
    body = '{"seq":7,"time":"t","kind":"k","prev":"p","n":NaN'
    digest = hashlib.sha256(f"{body}}}".encode()).hexdigest()
    assert _refused(f'{body},"hash":"sha256:{digest}"}}\n'.encode()).startswith("the line is not valid JSON: ")


def test_any_record_that_holds_is_read() -> None:
    record = {"seq": 7, "time": "t", "kind": "k", "prev": "p", "more": [1]}
    assert read(_line(record)) == {**record, HASH: digest_of(record)}


def _decision(lines: list[bytes], anchor: ChainHead | None = None) -> tuple[int, ChainHead, int | None, str | None]:
    found = verify(lines, anchor=anchor)
    assert found.ok is (found.problem is None)
    return found.records, found.head, found.line, found.problem


def test_of_a_log_that_holds_there_are_its_records_and_its_head() -> None:
    lines = _log(5)
    heads = _heads(lines)
    assert _decision([]) == (0, GENESIS, None, None)
    assert _decision(lines) == (5, heads[4], None, None)
    for anchor in (GENESIS, *heads):
        assert _decision(lines, anchor) == (5, heads[4], None, None)


def test_what_is_missing_is_counted() -> None:
    lines = _log(9)
    heads = _heads(lines)
    one = "record 4 is missing before record 5: deleted or moved"
    assert _decision(lines[:3] + lines[4:]) == (3, heads[2], 4, one)
    some = "records 4 to 6 are missing before record 7: deleted or moved"
    assert _decision(lines[:3] + lines[6:]) == (3, heads[2], 4, some)
    back = "record 2 is in the place of record 4: a record was moved or repeated"
    assert _decision(lines[:3] + lines[1:]) == (3, heads[2], 4, back)


def test_a_record_of_another_chain_is_named() -> None:
    lines, others = _log(3), _log(3, ChainHead(0, "sha256:" + "1" * 64))
    text = "`prev` of record 3 is not the hash of record 2: one of the two was changed"
    assert _decision([*lines[:2], others[2]]) == (2, _heads(lines)[1], 3, text)
    text = "`prev` of record 1 is not the hash of record 0: one of the two was changed"
    assert _decision(others) == (0, GENESIS, 1, text)


def test_what_the_anchor_names_has_to_be_there() -> None:
    lines = _log(4)
    heads = _heads(lines)
    forged = ChainHead(3, heads[0].hash)
    text = "record 3 has another hash than the anchor: the log was replaced"
    assert _decision(lines, forged) == (2, heads[1], 3, text)
    text = "the log ends at record 4, but the anchor is record 6: the log was truncated"
    assert _decision(lines, ChainHead(6, heads[0].hash)) == (4, heads[3], 5, text)


def _pruned(previous: ChainHead, **removed: Any) -> tuple[bytes, ChainHead]:
    return append_hash(previous, Kind.PRUNED, "t", {"removed": removed})


def test_a_log_whose_front_was_pruned_holds_from_there() -> None:
    lines = _log(5)
    heads = _heads(lines)
    text, head = _pruned(heads[4], last=3, hash=heads[2].hash)
    whole = [*lines[3:], text]
    assert _decision(whole) == (3, head, None, None)
    assert _decision(whole, heads[2]) == (3, head, None, None), "where it was cut is an anchor too"
    assert _decision(whole, heads[3]) == (3, head, None, None)
    forged = "record 3 has another hash than the anchor: the log was replaced"
    assert _decision(whole, ChainHead(3, heads[0].hash)) == (0, heads[2], 1, forged)
    why = "the enforcer pruned the anchor's record, 2, with all records up to 3; compare with a later anchor"
    assert _decision(whole, heads[1]) == (3, head, 1, why)


@pytest.mark.parametrize(
    ("removed", "accounts"),
    [
        ({"last": 3, "hash": "right"}, True), ({"last": 5, "hash": "any"}, True),
        ({"last": 6, "hash": "any"}, False), ({"last": 3, "hash": "any"}, False),
        ({"last": 2, "hash": "right"}, False), ({"last": True, "hash": "right"}, False), ({"hash": "right"}, False),
    ],
)  # fmt: skip
def test_only_a_record_that_accounts_for_all_before_it_lets_a_log_begin_later(
    removed: dict[str, Any], *, accounts: bool
) -> None:
    lines = _log(5)
    heads = _heads(lines)
    removed = {**removed} | ({"hash": heads[2].hash} if removed["hash"] == "right" else {})
    text, head = _pruned(heads[4], **removed)
    missing = "records 1 to 3 are missing before record 4: deleted or moved"
    expected = (3, head, None, None) if accounts else (0, GENESIS, 1, missing)
    assert _decision([*lines[3:], text]) == expected
    other, _ = append_hash(heads[4], Kind.WARNED, "t", {"removed": removed})
    assert _decision([*lines[3:], other]) == (0, GENESIS, 1, missing), "it has to be a PRUNED record"
    strange, _ = append_hash(heads[4], Kind.PRUNED, "t", {"removed": "all"})
    assert _decision([*lines[3:], strange]) == (0, GENESIS, 1, missing)


def test_an_edit_before_that_record_is_found_where_it_is_and_without_it_both_are_reported() -> None:
    lines = _log(6)
    heads = _heads(lines)
    text, _ = _pruned(heads[5], last=3, hash=heads[2].hash)
    edited = lines[4].replace(b'"n":4', b'"n":9')
    why = "`hash` of record 5 is not the hash of its fields: the record was edited"
    assert _decision([lines[3], edited, lines[5], b"rubbish\n", text]) == (1, heads[3], 2, why)
    missing = "records 1 to 3 are missing before record 4: deleted or moved"
    for log in ([lines[3], edited, lines[5]], [lines[3], edited, b"rubbish\n"]):
        assert _decision(log) == (0, GENESIS, 1, missing)
        assert verify(log).beside == (2, why)
    assert verify([lines[3], edited, lines[5], text]).beside is None


def _nested(levels: int, inner: object) -> object:
    for _ in range(levels):
        inner = [inner]
    return inner


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": value}], ids=["lists", "an object"])
def test_a_record_has_so_many_levels_and_not_one_more(wrap: Callable[[object], object]) -> None:
    within = DEEPEST - 1 - (wrap(None) is not None)
    line, head = append_hash(GENESIS, Kind.WARNED, "t", {"x": wrap(_nested(within, "text"))})
    assert head_of(read(line)) == head
    with pytest.raises(RecordError) as refused:
        append_hash(GENESIS, Kind.WARNED, "t", {"x": wrap(_nested(within + 1, "text"))})
    assert (
        refused.value.message
        == "the fields of the WARNED record have more than 16 levels of lists and objects: report this bug"
    )


@pytest.mark.parametrize("levels", [DEEPEST, DEEPEST + 1, *range(900, 1000)])
def test_a_line_that_is_nested_deeper_is_no_record_however_right_its_hash(levels: int) -> None:
    before = b'{"seq":1,"time":"t","kind":"GRACE_STARTED","x":' + b"[" * levels + b"0" + b"]" * levels
    before += b',"prev":"' + GENESIS.hash.encode() + b'"'
    line = before + b',"hash":"sha256:' + hashlib.sha256(before + b"}").hexdigest().encode() + b'"}\n'
    deep, deepest = (
        "the line has more than 16 levels of lists and objects, the maximum of a record",
        "the line is not valid JSON: ",
    )
    text = _refused(line)
    assert text == deep or (levels > DEEPEST + 1 and text.startswith(deepest)), text
