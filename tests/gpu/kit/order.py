"""What is worth measuring on a driver of which runs were committed: what is missing, then what changed. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.gpu.kit.registry import Experiment
from tests.gpu.kit.result import Verdict


def worth(known: Sequence[Experiment], runs: Iterable[Mapping[str, Any]], driver: str) -> list[Experiment]:
    """Keep the experiments that this driver did not answer, then those whose hypothesis has changed since.

    Each part keeps its order: what disturbs the rest comes last.
    """
    said = {
        each["experiment"]: each["hypothesis"]
        for run in runs if run.get("driver") == driver
        for each in run.get("results", []) if each["verdict"] != Verdict.NOT_MEASURED
    }  # fmt: skip
    missing = [each for each in known if each.name not in said]
    return [*missing, *(each for each in known if each.name in said and said[each.name] != each.hypothesis)]
