"""What verifying a log came to, in sentences: ``audit verify`` and ``ui`` say the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpushare_cli.audit.filters import printable
from gpushare_cli.audit.log_reader import VerifyFinding
from gpushare_cli.words import counted, some

_HOLD: Final = ("is intact", "are intact")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Whether a log holds, and the sentences about it; ``doubts`` prove nothing, ``lack`` says what is missing."""

    broken: bool
    sentence: str
    more: tuple[str, ...]
    doubts: tuple[str, ...] = ()
    lack: str = ""
    fine: bool

    @property
    def word(self) -> str:
        """Return ``ok`` or ``broken``."""
        return "broken" if self.broken else "ok"


def outcome(finding: VerifyFinding, *, asked: bool) -> Outcome:
    """Put a finding into words; ``asked`` is whether the log was to be compared with anchors."""
    result = finding.result
    if finding.problem is not None:
        where = "before the broken record"
        if result.problem is None:
            where = "by only the hash chain; the problem above is in the anchors or file names"
        more = f"{counted(result.records, 'record', _HOLD)} {where}"
        return Outcome(broken=True, sentence=finding.problem, more=(more,), fine=False)
    segments = counted(len(finding.source.parts), "segment")
    holds = f"{counted(result.records, 'record')} in {segments} {_HOLD[result.records != 1]}"
    holds += f"; {counted(finding.compared, 'anchor', ('matches', 'match'))}" if finding.compared else ""
    holds += f"; {counted(finding.older, 'anchor', ('is', 'are'))} older than the log" if finding.older else ""
    lack, fine = "", True
    if not result.records:
        lack = "the log has no records: none was written yet, or all were removed. Verify with an anchor to know which"
    elif asked and not finding.compared:
        lack, fine = f"no anchor to compare the log with: {_no_anchor(finding)}", False
    doubts = tuple(str(printable(each)) for each in _doubts(finding))
    return Outcome(
        broken=False, sentence=holds, more=(f"head {result.head}",), doubts=doubts, lack=lack, fine=fine
    )  # fmt: skip


def _no_anchor(finding: VerifyFinding) -> str:
    if finding.older:
        return "all anchors are older than the first record of the log; give a later anchor"
    node = finding.source.node or "unknown; name the node with --node"
    return f"the cluster or file has no anchor for this log (node: {printable(node)})"


def _doubts(finding: VerifyFinding) -> Iterator[str]:
    """What proves nothing, and is odd."""
    if finding.doubts:
        unheld = f"{some(finding.doubts)} refer to records that are not in this log; this does not prove that the log"
        yield f"{unheld} was changed: every user who may create Events can forge them"
    if finding.source.node and finding.node_in_log not in {"", finding.source.node}:
        yield (
            f"the last record names node {finding.node_in_log}: this is the log of another node, or the node was "
            "renamed"
        )
