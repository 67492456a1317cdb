"""All that is found out about a pod or a workload, as data, with the text for people and the JSON for programs."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any, Final

from gpushare_cli.explain.findings import MAX_TEXT, Finding, FindingType
from gpushare_cli.explain.pod_record import NO_USAGE, Usage
from gpushare_cli.explain.shares import NO_GPU
from gpushare_cli.terminal import table
from gpushare_cli.words import clean

COLUMNS: Final = ("CONTAINER", "ASKED", "GIVEN", "GPU", "STATE")
PODS: Final = ("POD", "STATE", "ASKED", "GIVEN")
TROUBLES: Final = frozenset({
    FindingType.NO_SHARE, FindingType.OBSTACLE, FindingType.KILL, FindingType.ENDED, FindingType.EVENT
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFacts:
    """What a container asked for and was given, where, and how it is; in words, empty where there is nothing."""

    container: str
    asked: str
    given: str
    gpu: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExplanation:
    """All about one pod. ``share`` tells whether it has a share or is to have one, ``asks`` whether it asks for one."""

    namespace: str
    name: str
    fine: bool = False
    phase: str
    node: str
    share: bool = False
    asks: bool
    summary: str
    containers: tuple[ContainerFacts, ...] = ()
    findings: tuple[Finding, ...] = ()
    usage: Usage = NO_USAGE

    @property
    def lines(self) -> list[str]:
        """Return the text for people."""
        body = table(COLUMNS, map(astuple, self.containers)) if self.containers else []
        return [_line(self.summary), *(f"  {_line(each)}" for each in (*body, *_with_hints(self.findings)))]

    @property
    def row(self) -> tuple[str, str, str, str]:
        """Return the pod's row in the table of its workload."""
        asked, given = ("; ".join(filter(None, texts)) for texts in (
            [each.asked for each in self.containers], [each.given for each in self.containers if each.given != NO_GPU]
        ))  # fmt: skip
        return self.name, f"{self.phase} on {self.node}" if self.node else self.phase, asked, given

    def json(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            "kind": "Pod", "namespace": self.namespace, "name": self.name, "fine": self.fine, "summary": self.summary,
            "phase": self.phase, "node": self.node, "share": self.share, "asks": self.asks,
            "containers": [asdict(each) for each in self.containers],
            "use": _use(self.usage),
            "findings": [each.json() for each in self.findings],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadExplanation:
    """All about one workload. ``wanted`` is its number of pods, ``None`` where it has none of its own.

    ``pods`` are the first of the ``found`` ones.
    """

    kind: str
    namespace: str
    name: str
    fine: bool
    wanted: int | None
    found: int
    asks: bool
    summary: str
    findings: tuple[Finding, ...] = ()
    pods: tuple[PodExplanation, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Return the text for people."""
        rows = table(PODS, [each.row for each in self.pods]) if self.pods else []
        more = [f"and {self.found - len(self.pods)} more"] if self.found > len(self.pods) else []
        body = (*_with_hints(self.findings), *rows, *more, *self._troubles())
        return [_line(self.summary), *(f"  {_line(each)}" for each in body)]

    def _troubles(self) -> Iterator[str]:
        """The worst fact about each pod that is not fine, and what to do; ``explain`` on that pod shows the others."""
        for pod in self.pods:
            worst = [each for each in pod.findings if each.type in TROUBLES]
            yield from (f"{pod.name}: {each.line}" for each in worst[:1] if not pod.fine)
            advice = [each for each in pod.findings if each.type is FindingType.ADVICE]
            yield from (f"{pod.name}: {each.line}; {each.hint}" for each in advice[:1])

    def json(self) -> dict[str, Any]:
        """Return all of it for programs."""
        return {
            "kind": self.kind, "namespace": self.namespace, "name": self.name, "fine": self.fine,
            "summary": self.summary, "asks": self.asks, "podsWanted": self.wanted, "podsFound": self.found,
            "findings": [each.json() for each in self.findings],
            "pods": [each.json() for each in self.pods],
        }  # fmt: skip


def _use(usage: Usage) -> dict[str, Any] | None:
    """What the containers hold, as the enforcer wrote it; ``None`` where that is not known."""
    if usage.status is None:
        return None
    containers = [
        {
            "container": each.container, "gpu": each.gpu, "usedMiB": each.used_mib, "peakMiB": each.peak_mib,
            "quotaMiB": each.quota_mib, "state": each.state,
        }
        for each in usage.status.uses
    ]  # fmt: skip
    return {"time": usage.status.time, "ageSeconds": usage.age, "containers": containers}


def _with_hints(findings: Sequence[Finding]) -> Iterator[str]:
    for each in findings:
        yield each.line
        if each.hint:
            yield f"  {each.hint}"


def _line(whole: str) -> str:
    return clean(whole[:MAX_TEXT])
