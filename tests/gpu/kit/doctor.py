"""Says in a table what this machine can measure and what is missing, in a minute and without changing anything."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.gpu.kit.backend import Facts
from tests.gpu.kit.registry import NEEDS, Experiment
from tests.gpu.kit.runner import ChildFailedError, ask
from tests.gpu.kit.setup import Setup

GOOD, BAD, INFO = "√", "×", " "  # noqa: RUF001 - the signs the command line uses everywhere
OPTIONAL: Final = frozenset({"mode-change", "torch"})
"""Missing by default or only for a benchmark: said, and no reason to fail."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    sign: str
    what: str
    said: str

    def __str__(self) -> str:
        return f"{self.sign} {self.what:28} {self.said}"


def examine(setup: Setup, facts: Facts, known: Sequence[Experiment]) -> tuple[str, bool]:
    """The table, and whether every core experiment can be measured here."""
    seen = _seen(setup, facts)
    lines = [*_machine(setup, facts), *_needs(facts), seen, Line(INFO, "", "")]
    lines += [_experiment(each, facts) for each in known]
    able = all(_lacking(each, facts) == [] for each in known if each.group == "core")
    last = "Everything of the core can be measured here." if able else "Not everything can be measured here; see the ×."  # noqa: RUF001
    return "\n".join([*map(str, lines), "", last]), able and seen.sign != BAD


def _machine(setup: Setup, facts: Facts) -> Iterator[Line]:
    known = facts.known
    yield Line(INFO, "backend", setup.backend)
    yield Line(
        INFO, "sandbox", f"{known.get('sandbox')}, kernel {facts.kernel}, uid {facts.uid}, {known.get('cpus')} CPUs"
    )
    yield Line(GOOD if facts.driver else BAD, "driver", f"{facts.driver or 'none is loaded'}{_cuda(facts)}")
    if facts.model:
        yield Line(
            GOOD, "GPU", f"{facts.model}, {facts.memory_mib} MiB, {setup.gpu}, compute {facts.compute_capability}"
        )
        yield Line(INFO, "compute mode", str(known.get("compute_mode") or known.get("compute_mode_unknown")))
    if known.get("shm_mib") is not None:
        yield Line(INFO, "/dev/shm", f"{known['shm_mib']} MiB")
    if setup.mps_control:
        yield Line(INFO, "MPS programs", " ".join(filter(None, (setup.mps_control, setup.mps_server))))


def _needs(facts: Facts) -> Iterator[Line]:
    for need, meaning in NEEDS.items():
        said = facts.missing.get(need)
        sign = GOOD if said is None else INFO if need in OPTIONAL else BAD
        yield Line(sign, need, meaning if said is None else said)


def _seen(setup: Setup, facts: Facts) -> Line:
    """Our own CUDA process in NVML's lists: without that nothing can be attributed to anybody."""
    what = "a CUDA process in NVML"
    if {"nvml", "cuda", "idle"} & facts.missing.keys():
        return Line(BAD, what, "cannot be tried")
    try:
        with tempfile.TemporaryDirectory(prefix="gk-", dir="/tmp") as folder:
            Path(folder).chmod(0o755)
            answer: dict[str, Any] = json.loads(ask(setup, "_visible", folder))
    except (ChildFailedError, ValueError) as error:
        last = (str(error).splitlines() or ["it said nothing"])[-1]
        return Line(BAD, what, f"cannot be tried: {last}")
    if not answer["usable"]:
        return Line(BAD, what, f"gets no context: {answer['said']}")
    return Line(GOOD if answer["lists"] else BAD, what, f"stands in {', '.join(answer['lists']) or 'no list'}")


def _experiment(each: Experiment, facts: Facts) -> Line:
    lacking = _lacking(each, facts)
    said = (
        f"cannot be measured: needs {', '.join(lacking)}" if lacking else f"can be measured, at most {each.limit_s:g} s"
    )
    return Line(BAD if lacking else GOOD, f"{each.name} ({each.group})", f"{each.title}: {said}")


def _lacking(each: Experiment, facts: Facts) -> list[str]:
    return [need for need in each.needs if need in facts.missing]


def _cuda(facts: Facts) -> str:
    return f", CUDA {facts.cuda}" if facts.cuda else ""
