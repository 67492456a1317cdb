"""The audit log in the hands of one who may write to it: what is found without an anchor, and what only with one."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from enforcer.audit.record import GENESIS, HASH, REMOVED, ChainHead, Kind, append_hash, digest_of, head_of, read, verify
from tests.support import extent

TIME = "2026-11-20T22:16:05.123Z"
RECORDS = 12
Lines = list[bytes]


def a_log(pruned: int = 0, *, salt: int = 0) -> Lines:
    """A log of which the first ``pruned`` records were removed, as a record in the middle of it says."""
    head, lines, cut = GENESIS, [], GENESIS
    for number in range(1, RECORDS + pruned + 1):
        fields: dict[str, Any] = {"node": "gpu-7", "pid": 1000 * salt + number, "container": "model"}
        kind = Kind.INTENT
        if number == pruned:
            line, head = append_hash(head, kind, TIME, fields)
            lines.append(line)
            cut = head
            continue
        if pruned and number == pruned + 6:
            kind, fields = Kind.PRUNED, {REMOVED: {"first": 1, "last": cut.seq, "hash": cut.hash}}
        line, head = append_hash(head, kind, TIME, fields)
        lines.append(line)
    return lines[pruned:]


def first_bad(lines: Sequence[bytes], changed: Sequence[bytes]) -> int:
    """The first line, from 1 on, that is not what it was."""
    pairs = zip(lines, changed, strict=False)
    return next((at for at, (old, new) in enumerate(pairs, 1) if old != new), min(len(lines), len(changed)) + 1)


def flip(lines: Lines, chance: random.Random) -> Lines:
    at = chance.randrange(len(lines))
    place = chance.randrange(len(lines[at]))
    byte = bytes([lines[at][place] ^ (1 << chance.randrange(8))])
    changed = [*lines[:at], lines[at][:place] + byte + lines[at][place + 1 :], *lines[at + 1 :]]
    return b"".join(changed).splitlines(keepends=True)


def delete(lines: Lines, chance: random.Random) -> Lines:
    """Some records, never the last: that is a cut."""
    at = chance.randrange(len(lines) - 1)
    return lines[:at] + lines[min(at + chance.randint(1, 3), len(lines) - 1) :]


def duplicate(lines: Lines, chance: random.Random) -> Lines:
    at = chance.randrange(len(lines) + 1)
    return [*lines[:at], chance.choice(lines), *lines[at:]]


def swap(lines: Lines, chance: random.Random) -> Lines:
    one, other = sorted(chance.sample(range(len(lines)), 2))
    return [*lines[:one], lines[other], *lines[one + 1 : other], lines[one], *lines[other + 1 :]]


def tear(lines: Lines, chance: random.Random) -> Lines:
    """Cut the tail in the middle of a line."""
    at = chance.randrange(len(lines))
    return [*lines[:at], lines[at][: chance.randint(1, len(lines[at]) - 1)]]


def splice(lines: Lines, chance: random.Random) -> Lines:
    """Put part of another node's log, which holds in itself, in the place of ours."""
    at = chance.randrange(1, len(lines) - 1)
    to = chance.randint(at + 1, len(lines))
    return lines[:at] + OTHER[at:to] + lines[to:]


def rehash(lines: Lines, chance: random.Random) -> Lines:
    """Change a record and its hash, but no record after it; of the last that is a new tail."""
    at = chance.randrange(len(lines) - 1)
    record = json.loads(lines[at])
    record["note"] = "somebody else did it"
    record[HASH] = digest_of({name: value for name, value in record.items() if name != HASH})
    return [*lines[:at], json.dumps(record, separators=(",", ":")).encode() + b"\n", *lines[at + 1 :]]


def insert(lines: Lines, chance: random.Random) -> Lines:
    at = chance.randrange(len(lines))
    return [*lines[:at], chance.choice([b"\n", b"{}\n", b"x\n", lines[at][:40] + b"\n"]), *lines[at:]]


def respell(lines: Lines, chance: random.Random) -> Lines:
    """Say the same in other bytes."""
    at = chance.randrange(len(lines))
    old, new = chance.choice(
        [(b'":', b'": '), (b",", b", "), (b"model", b"\\u006dodel"), (b"}\n", b"}\r\n"), (b"{", b" {")]
    )
    return [*lines[:at], lines[at].replace(old, new, 1), *lines[at + 1 :]]


OTHER = a_log(salt=1)
LOGS = {0: a_log(), 5: a_log(5)}
IN_PLACE = (flip, delete, duplicate, swap, tear, splice, rehash, insert, respell)


def located(lines: Lines, changed: Lines, change: Callable[..., Lines]) -> bool:
    """Whether the verifier names the first line that is not what it was.

    A record with a new hash of its own can only be told by the next one, which no longer follows it. Where the record
    that accounts for a log's beginning does not hold, the beginning is what is bad, and that line is named beside it.
    """
    verdict = verify(changed)
    expected = first_bad(lines, changed) + (change is rehash)
    beside = verdict.line == 1 and verdict.beside is not None and verdict.beside[0] == expected
    unsaid = verdict.line == 1 and not any(b"PRUNED" in line for line in changed)
    return not verdict.ok and (verdict.line == expected or beside or (lines is LOGS[5] and unsaid))


@pytest.mark.parametrize("change", IN_PLACE, ids=lambda change: change.__name__)
def test_every_change_in_place_is_located(change: Callable[[Lines, random.Random], Lines]) -> None:
    chance, trials, changes = random.Random(change.__name__), extent.trials(250, 12_500), 0
    while changes < trials:
        lines = LOGS[chance.choice([0, 0, 5]) if change is not splice else 0]
        changed = change(lines, chance)
        if changed != lines:
            changes += 1
            assert located(lines, changed, change), (change.__name__, verify(changed), changed)
    extent.figure("37", f"changes in place located: {change.__name__}", f"{changes:,} of {trials:,}")


def rechain(lines: Lines, chance: random.Random) -> Lines:
    """Change a record and write everything from there on anew, as somebody with our program can."""
    at = chance.randrange(len(lines))
    head = ChainHead(read(lines[at])["seq"] - 1, read(lines[at])["prev"])
    changed = lines[:at]
    for number, line in enumerate(lines[at:]):
        record = {
            name: value for name, value in read(line).items() if name not in {"seq", "time", "kind", "prev", HASH}
        }
        again, head = append_hash(head, Kind(read(line)["kind"]), TIME, record | ({} if number else {"pid": -1}))
        changed.append(again)
    return changed


def replace(lines: Lines, chance: random.Random) -> Lines:
    """Put a log that somebody made up in its place."""
    return a_log(salt=chance.randint(2, 10**6))[: chance.randint(1, RECORDS)]


def cut(lines: Lines, chance: random.Random) -> Lines:
    """Take whole records off the end."""
    return lines[: chance.randrange(len(lines))]


@pytest.mark.parametrize("change", [rechain, replace, cut], ids=lambda change: change.__name__)
def test_a_log_written_again_or_cut_is_found_with_an_anchor_and_only_with_one(
    change: Callable[[Lines, random.Random], Lines],
) -> None:
    chance, trials = random.Random(change.__name__), extent.trials(150, 5000)
    for _ in range(trials):
        lines = LOGS[0]
        changed = change(lines, chance)
        assert changed != lines
        assert verify(changed).ok, "without an anchor nobody can tell"
        later = verify(changed, anchor=ChainHead(RECORDS, read(lines[-1])[HASH]))
        assert not later.ok
        assert later.line == min(RECORDS, len(changed) + 1)
    extent.figure("37", f"logs with {change.__name__} found: with an anchor, without", f"{trials:,}, 0 of {trials:,}")


def test_a_log_that_nobody_touched_holds_with_and_without_an_anchor() -> None:
    for lines in (*LOGS.values(), OTHER):
        assert verify(lines).ok
        assert verify(lines, anchor=ChainHead(read(lines[-1])["seq"], read(lines[-1])[HASH])).ok


@pytest.mark.parametrize("last", [13, 14, 10**9])
def test_no_record_accounts_for_itself_or_for_what_comes_after_it(last: int) -> None:
    """A log cut from the front, excused by a record that was written for that; only a fitting one is believed."""
    cut, end = (head_of(read(LOGS[0][at])) for at in (4, -1))
    for removed, holds in (({"last": 5, "hash": cut.hash}, True), ({"last": last, "hash": cut.hash}, False)):
        excuse, _ = append_hash(end, Kind.PRUNED, TIME, {REMOVED: {"first": 1, **removed}})
        verdict = verify([*LOGS[0][5:], excuse])
        assert (verdict.ok, verdict.line) == (holds, None if holds else 1)


def test_an_anchor_from_before_the_change_says_nothing() -> None:
    """It has to be taken often: what came after it is not held by it."""
    lines = LOGS[0]
    changed = [*lines[:6], *rechain(lines[6:], random.Random(1))]
    assert verify(changed, anchor=ChainHead(6, read(lines[5])[HASH])).ok
