"""What the machine outside knows of one state disk, and what a power cut may not have changed. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

Line = dict[str, Any]
SETTLED: Final = "settled"


@dataclass
class Ledger:
    """What was acknowledged on one disk, over all its lives.

    Attributes:
        records: acknowledged records of the audit log, number and hash.
        signalled: containers that a signal was sent to.
        signals: how many were sent.
        kept: claims whose preparing was acknowledged, and whose undoing had not begun.
        gone: claims whose undoing was acknowledged.
        recovered: torn lines that were found and recorded.
        troubles: how often each befell it.
        resumed: lives in which a signal followed a trouble that was lifted.
        broken: what did not hold, a sentence each.
    """

    records: set[tuple[int, str]] = field(default_factory=set)
    signalled: set[str] = field(default_factory=set)
    signals: int = 0
    kept: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    undone: int = 0
    recovered: int = 0
    settled: int = 0
    troubles: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    broken: list[str] = field(default_factory=list)

    def take(self, life: int, said: Iterable[Line]) -> None:
        """Take in what the machine said in one life, the first line being about what the last one left."""
        lifted = resumed = False
        for line in said:
            lifted |= line["what"] == "lifted"
            resumed |= lifted and line["what"] == "signal"
            match line["what"]:
                case "left":
                    self.broken += [f"life {life}: {each}" for each in self._lost(line)]
                case "settled":
                    self.settled += 1
                    self.recovered = line["recovered"]
                    self.broken += [f"life {life}: {each}" for each in _unsettled(line)]
                case _:
                    self._happened(line)
        self.resumed += resumed

    def counts(self) -> dict[str, int]:
        """Name how much was seen."""
        return {
            "signals": self.signals,
            "records": len(self.records),
            "claims": len(self.kept) + self.undone,
            "torn": self.recovered,
            "settled": self.settled,
            "resumed": self.resumed,
            **self.troubles,
        }

    def _happened(self, line: Line) -> None:
        match line["what"]:
            case "record":
                self.records.add((line["seq"], line["hash"]))
            case "signal":
                self.signalled.add(line["container"])
                self.signals += 1
            case "prepared":
                self.kept.add(line["uid"])
            case "undoing":
                self.kept.discard(line["uid"])
            case "trouble":
                self.troubles[line["kind"]] += 1
            case "undone":
                self.gone.add(line["uid"])
                self.undone += 1

    def _lost(self, line: Line) -> Iterable[str]:
        there = {(seq, digest) for seq, digest, *_ in line["records"]}
        intents = {container for _, _, kind, container in line["records"] if kind == "INTENT"}
        claims = set(line["claims"])
        if lost := sorted(self.records - there):
            yield f"acknowledged records are lost: {lost}"
        if unannounced := sorted(self.signalled - intents):
            yield f"signals without a durable INTENT: {unannounced}"
        if missing := sorted(self.kept - claims):
            yield f"prepared claims are lost: {missing}"
        if risen := sorted(self.gone & claims):
            yield f"undone claims are back: {risen}"
        if line["unreadable"]:
            yield f"claims cannot be read: {line['unreadable']}"


def _unsettled(line: Line) -> Iterable[str]:
    if not line["holds"]:
        yield f"the chain does not verify: {line['verdict']}"
    if line["twice"]:
        yield f"{line['twice']} INTENTs have two answers"
    if old := [seq for seq in line["unanswered"] if seq <= line["newest"]]:
        yield f"INTENTs of an earlier life have no answer: {old}"
