"""Audit logs as they are found: files of this machine, or the log of another node; read once, line by line.

What verifying one came to is an ``Outcome``: sentences, which ``audit verify`` and ``ui`` say.

Files may be torn, foreign, without end, or no files at all: nothing here takes more than a line at a time.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from enforcer.audit.record import GENESIS, ChainHead, VerifyResult, read, replaced, truncated, verify
from enforcer.audit.segments import first_of, lines_of, segments
from gpushare.errors import ConfigError, RecordError
from gpushare.patterns import Match, Pattern
from gpushare_cli.audit.filters import Record, RecordFilter, printable
from gpushare_cli.words import counted, some

LOOKS: Final = 10
"""So often a last line without an end is looked at: it may be in the middle of being written."""
LOOK_SECONDS: Final = 0.05
ENDLESS: Final = 1024
"""After so many pieces of one line without end the rest of a part is left alone: it is no log."""
REMOVED: Final = (
    "missing: the enforcer removed the oldest records, or somebody deleted them; run 'gpu-share audit verify'"
)
_SEQ: Final = Pattern(rb'\{"seq":(\d{1,15}),', 23)
_HASH_BYTES: Final = len('"hash":"sha256:"}\n') + 64
_HASH: Final = Pattern(rb'"hash":"(sha256:[0-9a-f]{64})"\}\n', _HASH_BYTES)
_PREV_BYTES: Final = len('"prev":"sha256:",') + 64 + _HASH_BYTES
_PREV: Final = Pattern(rb'"prev":"(sha256:[0-9a-f]{64})","hash":"sha256:[0-9a-f]{64}"\}\n', _PREV_BYTES)


@dataclass(frozen=True, slots=True)
class LogPart:
    """A stretch of a log: how messages name it, and its lines with their ends.

    ``segment`` is whether it stands in a log's folder, where every file has the name that its first record gives it.
    """

    name: str
    lines: Callable[[], Iterator[bytes]]
    segment: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """One log; ``node`` is the node of the log, empty where it is unknown."""

    node: str
    parts: tuple[LogPart, ...]


def local(folder: Path, node: str = "") -> Source:
    """Find the segments in a folder, or take one segment.

    Raises:
        ConfigError: there is no log there.
    """
    try:
        alone = folder.is_file()
        files = [folder] if alone else segments(folder)
    except PermissionError as error:
        message = f"permission denied reading {folder}: {error.strerror}; run as root or as the folder's owner"
        raise ConfigError(message) from error
    except OSError as error:
        raise ConfigError(
            f"no audit log in {folder}: {error.strerror}; name its folder with --state or --log, or read those of all "
            "nodes with --all-nodes"
        ) from error
    return Source(node, tuple(LogPart(str(printable(file.name)), _lines(file), not alone) for file in files))


def _lines(file: Path) -> Callable[[], Iterator[bytes]]:
    name = printable(str(file))

    def read() -> Iterator[bytes]:
        try:
            yield from lines_of(file, _patience())
        except OSError as error:
            gone = isinstance(error, FileNotFoundError) and not os.path.lexists(file)
            why = "was removed during the read, as the enforcer does with old segments; run the command again"
            raise RecordError(f"{name} {why if gone else f'cannot be read: {error.strerror}'}") from error

    return read


def _patience() -> Callable[[], bool]:
    looks = iter(range(LOOKS))

    def again() -> bool:
        time.sleep(LOOK_SECONDS)
        return next(looks, None) is not None

    return again


class Reading:
    """Goes through a log once, and notes what verifying wants to know of it.

    Args:
        source: the log.
        wanted: numbers of records whose heads are to be noted.
    """

    def __init__(self, source: Source, wanted: Collection[int] = ()) -> None:
        self._source, self._wanted = source, frozenset(wanted)
        self._begins: list[tuple[int, str]] = []
        """Of each part that was begun: how many lines were before it, and its name."""
        self.lines = 0
        """So many were read."""
        self.first: int | None = None
        """Number of the log's first record."""
        self.heads = {0: GENESIS}
        """Of the records wanted, and of the one that the first follows; before record 1 every log is the same."""
        self.at: dict[int, int] = {}
        """In which line those heads stand."""
        self.misnamed: str | None = None
        """The first part whose name is not that of its first record, and what is wrong with it."""
        self._next = 1
        """Number of the record that comes next, as far as the lines say theirs."""
        self._last = b""

    @property
    def since(self) -> int:
        """Number of the first record that is known: the first one also says what it follows. 0: there is none."""
        first = self.first or 0
        return first - 1 if first - 1 in self.at else first

    @property
    def node(self) -> str:
        """Of which node the last record is; empty where it does not say."""
        try:
            node = read(self._last).get("node")
        except RecordError:
            return ""
        return node if isinstance(node, str) else ""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines, with their ends."""
        for part in self._source.parts:
            self._begins.append((self.lines, part.name))
            endless = 0
            for number, line in enumerate(part.lines(), start=1):
                self.lines += 1
                self._note(part, number, line)
                yield line
                endless = 0 if line.endswith(b"\n") else endless + 1
                if endless > ENDLESS:
                    break
            if self.lines == self._begins[-1][0]:
                why = (
                    f" is empty, and its name does not match the next record {self._next}: the file was emptied, "
                    "renamed or added"
                )
                self._name_says(part, self._next, why)

    def place(self, line: int) -> str:
        """Name a line, counted over the whole log, as ``<part>:<number>``."""
        if not self.lines:
            return "empty log"
        before, name = next((begin for begin in reversed(self._begins) if begin[0] < line), self._begins[0])
        return f"{name}: after its last line" if line > self.lines else f"{name}:{line - before}"

    def _note(self, part: LogPart, number: int, line: bytes) -> None:
        seq = seq_of(line)
        if seq is None:
            return
        if self.first is None:
            self.first = seq
            self._note_head(seq - 1, _PREV.fullmatch(line[-_PREV_BYTES:]))
        self._next, self._last = seq + 1, line
        if number == 1:
            why = f":1: starts with record {seq}, which does not match the file name: the file was renamed or moved"
            self._name_says(part, seq, why)
        if seq in self._wanted:
            self._note_head(seq, _HASH.fullmatch(line[-_HASH_BYTES:]))

    def _note_head(self, seq: int, found: Match[bytes] | None) -> None:
        if found is not None and seq > 0:
            self.heads[seq], self.at[seq] = ChainHead(seq, found[1].decode()), self.lines

    def _name_says(self, part: LogPart, first: int, otherwise: str) -> None:
        if part.segment and self.misnamed is None and first_of(part.name) != first:
            self.misnamed = part.name + otherwise


class Selection:
    """The records of a log that are asked for; lines that are no record are counted, and noted which are missing."""

    def __init__(self, lines: Iterable[bytes], wanted: RecordFilter) -> None:
        self._lines, self._wanted = lines, wanted
        self._last = 0
        """Number of the record before the next one; 0: there is none."""
        self._bad = 0
        self._gaps: list[str] = []

    def problems(self) -> list[str]:
        """Return what was wrong with the lines that were read."""
        bad = f"{self._bad} lines are not records; run 'gpu-share audit verify'"
        return [*self._gaps, *[bad] * (self._bad > 0)]

    def __iter__(self) -> Iterator[tuple[bytes, Record]]:
        """Yield each record's line, and what it says."""
        begins = True
        for line in self._lines:
            try:
                record = read(line)
            except RecordError:
                self._bad += begins  # a long one comes in pieces
            else:
                self._gaps += filter(None, [missing(self._last, record["seq"])])
                self._last = record["seq"]
                if self._wanted.matches(record):
                    yield line, record
            begins = line.endswith(b"\n")


def seq_of(line: bytes) -> int | None:
    """Return the number that a line says it has; ``None`` where it is not a record's beginning."""
    found = _SEQ.match(line[: _SEQ.most])
    return int(found[1]) if found else None


def missing(last: int, seq: int) -> str:
    """Say what is missing between a record (0: there was none) and the one that came next; empty where nothing is."""
    if not 0 < last < seq - 1:
        return ""
    which = f"record {last + 1} is" if seq == last + 2 else f"records {last + 1} to {seq - 1} are"
    return f"{which} {REMOVED}"


def node_of(source: Source) -> str:
    """Return whose log it is, as the last record before the first bad line says; empty where none does."""
    node = ""
    with suppress(RecordError):
        for line in Reading(source):
            found = read(line).get("node")
            node = found if isinstance(found, str) else node
    return node


_HOLD: Final = ("is intact", "are intact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Whether a log is ``ok`` or ``broken``, and why; ``doubts`` prove nothing, ``lack`` says what is missing."""

    word: str = "ok"
    sentence: str
    more: str
    doubts: tuple[str, ...] = ()
    lack: str = ""
    fine: bool


def verified(
    source: Source,
    anchors: Collection[tuple[ChainHead, str]] = (),
    hints: Collection[tuple[ChainHead, str]] = (),
    *,
    asked: bool = False,
) -> Outcome:
    """Verify a log, and compare it with what was seen of it elsewhere.

    Args:
        source: the log.
        anchors: heads it must hold, and for each who says so.
        hints: heads it should hold, likewise; somebody may have made them up.
        asked: whether it was to be compared with anchors.
    """
    reading = Reading(source, [head.seq for head, _ in (*anchors, *hints)])
    result = verify(reading)
    problem = reading.misnamed if result.problem is None else _placed(reading, result)
    compared = [(head, who) for head, who in anchors if head.seq >= reading.since]
    strange = [(head, who) for head, who in compared if reading.heads.get(head.seq) != head]
    if problem is None and strange:
        problem = _missing(reading, result, *min(strange, key=lambda each: each[0].seq))
    records = counted(result.records, "record")
    if problem is not None:
        where = "before the broken record"
        if result.problem is None:
            where = "by only the hash chain; the problem above is in the anchors or file names"
        more = f"{records} {_HOLD[result.records != 1]} {where}"
        return Outcome(word="broken", sentence=problem, more=more, fine=False)
    older = len(anchors) - len(compared)
    holds = f"{records} in {counted(len(source.parts), 'segment')} {_HOLD[result.records != 1]}"
    holds += f"; {counted(len(compared), 'anchor', ('matches', 'match'))}" if compared else ""
    holds += f"; {counted(older, 'anchor', ('is', 'are'))} older than the log" if older else ""
    lack = "" if result.records else NO_RECORDS
    uncompared = asked and bool(result.records) and not compared
    if uncompared:
        lack = f"no anchor to compare the log with: {OLDER if older else _no_anchor(source)}"
    forged = [who for head, who in hints if head.seq >= reading.since and reading.heads.get(head.seq) != head]
    doubts = tuple(str(printable(each)) for each in _doubts(source, reading, forged))
    return Outcome(sentence=holds, more=f"head {result.head}", doubts=doubts, lack=lack, fine=not uncompared)


def _placed(reading: Reading, result: VerifyResult) -> str:
    """What is wrong, and where."""
    problems = [(result.line or 1, result.problem), *([result.beside] if result.beside else [])]
    return "; and ".join(f"{reading.place(line)}: {problem}" for line, problem in problems)


def _missing(reading: Reading, result: VerifyResult, head: ChainHead, who: str) -> str:
    if head.seq > result.head.seq:
        return f"{reading.place(reading.lines + 1)}: {truncated(result.head, head)} ({who})"
    return f"{reading.place(reading.at.get(head.seq, 1))}: {replaced(head)} ({who})"


NO_RECORDS: Final = (
    "the log has no records: none was written yet, or all were removed. Verify with an anchor to know which"
)
OLDER: Final = "all anchors are older than the first record of the log; give a later anchor"


def _no_anchor(source: Source) -> str:
    node = source.node or "unknown; name the node with --node"
    return f"the cluster or file has no anchor for this log (node: {printable(node)})"


def _doubts(source: Source, reading: Reading, forged: Sequence[str]) -> Iterator[str]:
    """What proves nothing, and is odd."""
    if forged:
        unheld = f"{some(forged)} refer to records that are not in this log; this does not prove that the log"
        yield f"{unheld} was changed: every user who may create Events can forge them"
    if source.node and reading.node not in {"", source.node}:
        yield f"the last record names node {reading.node}: this is the log of another node, or the node was renamed"
