"""The format of the audit log: one JSON object a line; each contains the hash of the one before. Pure.

A record's hash covers its line's exact bytes without the hash itself, so there is one way to write a record and any
other is an edit. The chain is unkeyed: what it cannot show by itself is a tail cut off or a log replaced whole; for
that it is compared with an anchor, a sequence number and hash kept elsewhere (the pod's Event carries one).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from gpushare.contract import AUDIT_HEAD
from gpushare.errors import ConfigError, RecordError
from gpushare.formats import AUDIT_RECORD
from gpushare.patterns import Pattern

MAX_BYTES: Final = 4096
"""Of one line, its end included: what a single write may be expected to do at once."""
TEXT_LIMITS: Final = (1024, 512, 256, 128, 64, 32, 16)
LIST_LIMITS: Final = (64, 32, 16, 8, 4, 2, 1)
CUT: Final = "..."
WIDEST: Final = 12
"""Bytes one character can take: two escaped surrogates."""
DEEPEST: Final = 16
"""Levels of a record, itself included: what is deeper was not written here, and might be too deep to be read."""
HASH: Final = "hash"
REMOVED: Final = "removed"
"""In a PRUNED record: ``first`` and ``last`` number of what was removed, and the ``hash`` of the last."""
_GRAMMAR: Final = frozenset({"seq", "time", "kind", "prev", HASH})
_HASH_TEXT: Final = Pattern(r"sha256:[0-9a-f]{64}", 71)


class Kind(StrEnum):
    """What a record says. Every INTENT is followed by one ABORTED or one OUTCOME that names its number.

    Where a process does not end an UNKILLABLE comes first, and the OUTCOME once it has ended.
    """

    GRACE_STARTED = "GRACE_STARTED"
    WARNED = "WARNED"
    LENT = "LENT"
    RECLAIM_NOTICE = "RECLAIM_NOTICE"
    INTENT = "INTENT"
    ABORTED = "ABORTED"
    UNKILLABLE = "UNKILLABLE"
    OUTCOME = "OUTCOME"
    RECOVERED = "RECOVERED"
    PRUNED = "PRUNED"


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Where a chain stands: the last record's number and hash. Numbers begin at 1."""

    seq: int
    hash: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an anchor written ``<number>:sha256:<64 hex digits>``.

        Raises:
            ConfigError: it is not written so.
        """
        number, _, digest = text.partition(":")
        if not (number.isascii() and number.isdigit() and len(number) < 16 and _HASH_TEXT.fullmatch(digest)):  # noqa: PLR2004
            raise ConfigError(f"{text[:100]!r} is not an anchor; write <number>:sha256:<64 hex digits>")
        return cls(int(number), digest)

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


GENESIS: Final = ChainHead(0, "sha256:" + "0" * 64)


def append_hash(previous: ChainHead, kind: Kind, time: str, fields: Mapping[str, Any]) -> tuple[bytes, ChainHead]:
    """Write the next record. Texts of any content and length are made to fit.

    Args:
        previous: the chain's head.
        kind: what it says.
        time: RFC 3339 in UTC; a label only, nothing is ever decided by it.
        fields: texts, integers, booleans, ``None``, and lists and objects of them, less than ``DEEPEST`` levels.

    Returns:
        The line, its end included, at most ``MAX_BYTES`` long, and the new head.

    Raises:
        RecordError: the fields cannot be made to fit.
    """
    if taken := sorted(_GRAMMAR & fields.keys()):
        raise RecordError(f"field {taken[0]!r:.80} is reserved for the record itself; choose another field name")
    seq = previous.seq + 1
    for text_limit, list_limit in zip(TEXT_LIMITS, LIST_LIMITS, strict=True):
        short = {name: _fitting(value, text_limit, list_limit) for name, value in fields.items()}
        record = {"seq": seq, "time": time, "kind": str(kind), **short, "prev": previous.hash}
        if _deeper(record, DEEPEST):
            raise RecordError(
                f"the fields of the {kind} record have more than {DEEPEST} levels of lists and objects: report this bug"
            )
        digest = digest_of(record)
        line = _dump({**record, HASH: digest}) + b"\n"
        if len(line) <= MAX_BYTES:
            return line, ChainHead(seq, digest)
    raise RecordError(f"the {kind} record is larger than {MAX_BYTES} bytes, the maximum of a record: report this bug")


def read(line: bytes) -> dict[str, Any]:
    """Read one line that claims to be a record, and check it against itself.

    Raises:
        RecordError: it is not, in every byte, what ``seal`` writes; the message says what is wrong with it.
    """
    if len(line) > MAX_BYTES:
        raise RecordError(f"the line has more than {MAX_BYTES} bytes, the maximum of a record")
    if not line.endswith(b"\n"):
        raise RecordError("the line has no newline at its end: it is incomplete")
    _check_version(line)
    try:
        record = json.loads(line.decode("ascii"))  # of bytes it would guess the encoding
        if _deeper(record, DEEPEST):
            raise RecordError(f"the line has more than {DEEPEST} levels of lists and objects, the maximum of a record")
        canonical = _dump(record) + b"\n"
    except json.JSONDecodeError as error:
        raise RecordError(f"the line is not valid JSON: {error.msg} at byte {error.pos + 1}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"the line is not valid JSON: {str(error)[:100]}") from error
    if not isinstance(record, dict) or canonical != line:
        raise RecordError(
            "the line is not in the exact JSON form of the enforcer: another program wrote or edited the line"
        )
    if type(record.get("seq")) is not int or not isinstance(record.get("prev"), str):
        raise RecordError("the line has no `seq` or no `prev`, so it is not an audit record")
    if not isinstance(record.get("kind"), str) or not isinstance(record.get("time"), str):
        raise RecordError(f"line {record['seq']} has no `kind` or no `time`, so it is not an audit record")
    if record.get(HASH) != digest_of({name: value for name, value in record.items() if name != HASH}):
        raise RecordError(f"`hash` of record {record['seq']} is not the hash of its fields: the record was edited")
    return record


def _check_version(line: bytes) -> None:
    try:
        AUDIT_RECORD.check(line)
    except ConfigError as error:
        raise RecordError(error.message) from error


def head_of(record: Mapping[str, Any]) -> ChainHead:
    """Where the chain stands after this record."""
    return ChainHead(record["seq"], record[HASH])


def published_head(resource_slice: Mapping[str, Any]) -> ChainHead | None:
    """Return the anchor that a node's enforcer wrote on its slice; ``None`` where there is none, or no head."""
    try:
        return ChainHead.parse(str((resource_slice["metadata"].get("annotations") or {}).get(AUDIT_HEAD)))
    except ConfigError:
        return None


def digest_of(record: Mapping[str, Any]) -> str:
    """Hash a record without its own hash."""
    return "sha256:" + hashlib.sha256(_dump(record)).hexdigest()


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What verifying found: how many records hold, where the chain stands, and the first bad line if there is one.

    ``line`` counts from 1 over everything read; it is one past the end where something is missing there. ``beside`` is
    a second bad line: where nothing that holds says why a log begins where it does, either may be what was altered.
    """

    records: int
    head: ChainHead
    line: int | None = None
    problem: str | None = None
    beside: tuple[int, str] | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.problem is None


def verify(lines: Iterable[bytes], *, anchor: ChainHead | None = None) -> VerifyResult:
    """Check a log from its first record on.

    A log may begin with another record than the first where a PRUNED record in it accounts for all before it.

    Args:
        lines: its lines with their ends, over all segments.
        anchor: a head seen earlier; the log must still contain it.
    """
    reader = _Reader(anchor)
    rest = iter(lines)
    for line in rest:
        if (problem := reader.problem_of(line)) is not None:
            number = reader.records + 1
            if reader.accounted or any(map(reader.accounts, rest)):
                return VerifyResult(reader.records, reader.head, number, problem)
            return VerifyResult(0, GENESIS, 1, _gap(1, reader.base.seq + 1), (number, problem))
    if not reader.accounted:
        return VerifyResult(0, GENESIS, 1, _gap(1, reader.base.seq + 1))
    if anchor is not None and not reader.anchored:
        line_number, problem = reader.unanchored(anchor)
        return VerifyResult(reader.records, reader.head, line_number, problem)
    return VerifyResult(reader.records, reader.head)


class _Reader:
    """Goes along a chain: ``base`` is what its first record follows, ``head`` where it stands."""

    def __init__(self, anchor: ChainHead | None) -> None:
        self._anchor = anchor
        self.base = self.head = GENESIS
        self.records = 0
        self.accounted = True
        self.anchored = anchor in {None, GENESIS}

    def problem_of(self, line: bytes) -> str | None:
        """What is wrong with the next line, if anything is; else the chain stands after it."""
        try:
            record = read(line)
            if not self.records and record["seq"] > 1:
                self._begin(ChainHead(record["seq"] - 1, record["prev"]))
            _follows(record, self.head)
            if self._anchor is not None and record["seq"] == self._anchor.seq:
                _anchored(record[HASH], self._anchor)
                self.anchored = True
        except RecordError as error:
            return error.message
        self.head = head_of(record)
        self.records += 1
        self.accounted = self.accounted or _accounts(record, self.base)
        return None

    def accounts(self, line: bytes) -> bool:
        """Whether this line, wherever it stands, says why the log begins where it does."""
        try:
            return _accounts(read(line), self.base)
        except RecordError:
            return False

    def unanchored(self, anchor: ChainHead) -> tuple[int, str]:
        """The line where the anchor ought to stand, and why it does not."""
        if anchor.seq > self.head.seq:
            return self.records + 1, truncated(self.head, anchor)
        pruned = f"the enforcer pruned the anchor's record, {anchor.seq}, with all records up to {self.base.seq}"
        return 1, f"{pruned}; compare with a later anchor"

    def _begin(self, base: ChainHead) -> None:
        self.base = self.head = base
        self.accounted = False
        if self._anchor is not None and self._anchor.seq == base.seq:
            _anchored(base.hash, self._anchor)
            self.anchored = True


def _accounts(record: Mapping[str, Any], base: ChainHead) -> bool:
    """Whether a record says that everything up to ``base`` was removed. Removing may have been cut short by a crash.

    No record says it of itself, or of what comes after it.
    """
    removed = record.get(REMOVED)
    if record["kind"] != Kind.PRUNED or not isinstance(removed, dict) or type(last := removed.get("last")) is not int:
        return False
    return base.seq < last < record["seq"] or (last == base.seq and removed.get(HASH) == base.hash)


def truncated(head: ChainHead, anchor: ChainHead) -> str:
    """Say that a log ends at ``head``, before its anchor."""
    return f"the log ends at record {head.seq}, but the anchor is record {anchor.seq}: the log was truncated"


def replaced(anchor: ChainHead) -> str:
    """Say that a log has another record in the place of its anchor."""
    return f"record {anchor.seq} has another hash than the anchor: the log was replaced"


def _gap(expected: int, seq: int) -> str:
    gap = f"record {expected} is" if seq == expected + 1 else f"records {expected} to {seq - 1} are"
    return f"{gap} missing before record {seq}: deleted or moved"


def _follows(record: Mapping[str, Any], head: ChainHead) -> None:
    seq, expected = record["seq"], head.seq + 1
    if seq > expected:
        raise RecordError(_gap(expected, seq))
    if seq < expected:
        raise RecordError(f"record {seq} is in the place of record {expected}: a record was moved or repeated")
    if record["prev"] != head.hash:
        raise RecordError(f"`prev` of record {seq} is not the hash of record {head.seq}: one of the two was changed")


def _anchored(digest: str, anchor: ChainHead) -> None:
    if digest != anchor.hash:
        raise RecordError(replaced(anchor))


def _deeper(value: object, levels: int) -> bool:
    """Whether lists and objects stand in each other by more than so many levels; goes no deeper than that itself."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(each, levels - 1) for each in inner)


def _fitting(value: Any, text_limit: int, list_limit: int) -> Any:
    if isinstance(value, str):
        return _fitting_text(value, text_limit)
    if isinstance(value, Mapping):
        return {str(name): _fitting(each, text_limit, list_limit) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_fitting(each, text_limit, list_limit) for each in value[:list_limit]]
    if value is None or isinstance(value, int):
        return value
    raise RecordError(f"an audit record cannot hold a {type(value).__name__}: pass the value as text")


def _fitting_text(text: str, limit: int) -> str:
    """Cut a text so that it takes ``limit`` bytes as JSON. What is no Unicode is written as backslash escapes."""
    clean = text[: limit + 1].encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit and _size(clean) <= limit:
        return clean
    while (excess := _size(clean) - limit + len(CUT)) > 0:
        clean = clean[: -max(1, excess // WIDEST)]
    return clean + CUT


def _size(text: str) -> int:
    return len(_dump(text)) - 2


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
