"""Results as Markdown: a table after each run, and ``docs/design/hardware.md`` from the results that were committed.

What a simulator says about itself is no knowledge of hardware. It cannot get into the documentation: a run is refused
by its backend, by what its process had loaded, and by the GPU's UUID, each of them alone.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.fakes.gpu.state import MACHINES, Machine
from tests.gpu.kit.registry import Experiment
from tests.gpu.kit.result import Result, Verdict
from tests.gpu.kit.setup import ROOT

COMMITTED: Final = ROOT / "tests" / "gpu" / "results"
DOCUMENT: Final = ROOT / "docs" / "design" / "hardware.md"
FRAGMENTS: Final = tuple(Path(__file__).parent / f"hardware.{part}.md" for part in ("head", "simulator"))
SHOWN: Final = 160
SIGNS: Final = {Verdict.HOLDS: "holds", Verdict.FAILS: "**fails**", Verdict.NOT_MEASURED: "not measured"}


class SimulatedError(ValueError):
    """These are results of a fake."""


def refuse_fakes(run: Mapping[str, Any]) -> None:
    """Let only real hardware pass.

    Raises:
        SimulatedError: anything hints at a simulator, or the run does not say on what it was made.
    """
    known = run.get("facts", {}).get("known", {})
    hints = [] if run.get("backend") == "real" else [f"its backend is {run.get('backend')!r}"]
    hints += known.get("simulated", ["it does not say whether a simulator was loaded"])
    hints += ["it has a world of its own"] if run.get("world") else []
    hints += [f"GPU {run['gpu']} is one of the simulator's"] if run.get("gpu") in _simulated_gpus() else []
    if not run.get("driver") or not run.get("gpu"):
        hints.append("it names no driver or no GPU")
    if hints:
        raise SimulatedError(f"results of a fake never get into the documentation: {'; '.join(hints)}")


def table(run: Mapping[str, Any]) -> str:
    """One run as Markdown: its machine, and a row for each experiment."""
    facts = run.get("facts", {})
    known = facts.get("known", {})
    parts = [
        facts.get("model") or "no GPU", f"{facts.get('memory_mib', 0)} MiB", f"driver {run.get('driver') or 'none'}",
        f"CUDA {facts.get('cuda') or 'none'}", f"kernel {facts.get('kernel')}", str(known.get("sandbox")),
    ]  # fmt: skip
    fake = "" if run.get("backend") == "real" else "**A simulated machine: this says nothing about hardware.**\n\n"
    head = f"{fake}{', '.join(parts)}; {run.get('date')}\n"
    rows = [_row(each) for each in verdicts(run)]
    return "\n".join([head, "| | Hypothesis | Verdict | What was found |", "|---|---|---|---|", *rows, ""])


def verdicts(run: Mapping[str, Any], known: Sequence[Experiment] = ()) -> list[Result]:
    """What a run found; of experiments that can say it from figures, what today's hypothesis makes of them."""
    judges = {each.name: each for each in known if each.judge is not None}
    return [_today(result, judges.get(result.experiment), run) for result in map(Result.from_dict, run["results"])]


def _today(result: Result, known: Experiment | None, run: Mapping[str, Any]) -> Result:
    if known is None or known.judge is None or result.verdict is Verdict.NOT_MEASURED:
        return result
    found = known.judge(result.figures, run["driver"])
    return replace(result, hypothesis=known.hypothesis, verdict=found.verdict, reason=found.reason)


def document(runs: Iterable[Mapping[str, Any]], known: Sequence[Experiment]) -> str:
    """``docs/design/hardware.md``: a section for each model and driver. Raises ``SimulatedError``."""
    sections: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        refuse_fakes(run)
        sections[run["facts"]["model"], run["driver"]].append(run)
    body = "\n".join(_section(*key, found, known) for key, found in sections.items()) if sections else _not_yet(known)
    return "\n".join((*(file.read_text() for file in FRAGMENTS), body))


def _section(model: str, driver: str, runs: Sequence[Mapping[str, Any]], known: Sequence[Experiment]) -> str:
    """All runs of a driver on one model: an experiment that several measured is shown as the newest did."""
    facts = runs[-1]["facts"]
    found = newest(runs, known)
    order = [each.name for each in known if each.name in found]
    rows = [_short_row(*found[name]) for name in order]
    cards = len({run["gpu"] for run in runs})
    head = (
        f"## {model}, driver {driver}\n\n{facts['memory_mib']:,} MiB usable, CUDA {facts.get('cuda')}, kernel "
        f"{facts.get('kernel')}; {len(runs)} runs on {cards} cards of this model. Figures and every raw answer are in "
        "`tests/gpu/results`.\n"
    )
    missing = [each.name for each in known if each.name not in found]
    rest = f"\nNot yet measured with this driver: {', '.join(missing)}.\n" if missing else ""
    return "\n".join([head, "| | Hypothesis | Verdict | What was found |", "|---|---|---|---|", *rows, rest])


def newest(runs: Iterable[Mapping[str, Any]], known: Sequence[Experiment]) -> dict[str, tuple[str, Result]]:
    """Of each experiment the date and result of the last run that measured it."""
    found: dict[str, tuple[str, Result]] = {}
    for run in sorted(runs, key=lambda each: str(each["date"])):
        for result in verdicts(run, known):
            if result.verdict is not Verdict.NOT_MEASURED or result.experiment not in found:
                found[result.experiment] = run["date"], result
    return found


def _short_row(date: str, result: Result) -> str:
    found = f"{result.reason} ({date})"
    return f"| {result.experiment} | {_cell(result.hypothesis)} | {SIGNS[result.verdict]} | {_cell(found)} |"


def committed(folder: Path = COMMITTED) -> list[dict[str, Any]]:
    """The runs that were committed, by model and driver, then by file name."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*/*.json"))]


def _row(result: Result) -> str:
    figures = ", ".join(f"{name} {_short(value)}" for name, value in result.figures.items())
    found = f"{result.reason}{f' ({figures})' if figures else ''}"
    return f"| {result.experiment} | {_cell(result.hypothesis)} | {SIGNS[result.verdict]} | {_cell(found)} |"


def _not_yet(known: Sequence[Experiment]) -> str:
    rows = [f"| {each.name} | {each.title} | {_cell(each.hypothesis)} | not yet measured |" for each in known]
    head = "No GPU was at hand so far. What the kit asks, and what we expect:\n"
    return "\n".join([head, "| | Experiment | Hypothesis | State |", "|---|---|---|---|", *rows, ""])


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _simulated_gpus() -> frozenset[str]:
    machines = (Machine.parse(file.read_text()) for file in MACHINES.glob("*.machine"))
    return frozenset(gpu.uuid for machine in machines for gpu in machine.gpus)
