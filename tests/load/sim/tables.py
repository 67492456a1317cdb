"""The tables of docs/design/placement.md, from what the experiments found."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from tests.load.sim import figures
from tests.load.sim.experiments import FLEETS, LOADS, LOOKS, PACKED, POLICIES, REAL, WRITTEN, worst_gap
from tests.load.sim.figures import quantile
from tests.load.sim.sizes import GIB
from tests.load.sim.traces import SEEDS

ROUND: Final = (4, 8, 16, 20, 40)
"""GiB that people like to ask for."""
Found = Mapping[tuple[Any, ...], Any]
Rows = Iterator[Sequence[str]]
BEGIN: Final = "<!-- {name}: python -m tests.load.sim --write -->\n"
END: Final = "<!-- end of {name} -->"


def tables(found: Found, most_nodes: int) -> dict[str, str]:
    """Write each table; by the name of its place in the page."""
    return {
        "packing": table(("nodes", "trace", *POLICIES, "best fit"), _packing(found, most_nodes)),
        "exact": table(
            ("trace", "rule, of the proven best", "the same, by seed", "best, of what there is"), _exact(found)
        ),
        "pieces": table(
            ("order, across", "GPUs in use (fewest)", "empty nodes", *map(_gib, (8, 20, 40, 80)), "borrowers can use"),
            _pieces(found),
        ),
        "churn": table(("asked for", "size", "pods", "waited: half", "99 %", "longest"), _churn(found)),
        "late": table(
            ("seconds between checks", *(f"writes, {order}" for order in WRITTEN), *map(_pace, figures.PACES)),
            _late(found),
        ),
        "held": table(("the mix, 10 nodes", *POLICIES), _held(found)),
        "cards": table(("left to shares", *(f"{size} GiB" for size in ROUND), "mix, of the bound"), _cards(found)),
    }


def into(page: str, made: Mapping[str, str]) -> str:
    """Put tables into their places.

    Raises:
        ValueError: the page has no such place.
    """
    for name, text in made.items():
        before, begin, rest = page.partition(BEGIN.format(name=name))
        _, end, after = rest.partition(END.format(name=name))
        if not begin or not end:
            raise ValueError(
                f"the page has no place for the table {name!r}: it needs {BEGIN.format(name=name).strip()}"
            )
        page = before + begin + text + end + after
    return page


def table(heads: Sequence[str], rows: Rows) -> str:
    """Write a table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def percent(share: float) -> str:
    """One digit after the point, rounded down: 97.99 is not 98."""
    return f"{int(1000 * share + 1e-9) / 10:.1f} %"


def seconds(value: float) -> str:
    """In a unit that is read at a glance."""
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def _gib(size: int) -> str:
    return f"{size} GiB fit into"


def _pace(pace: float) -> str:
    return f"gap at {pace:g} pods/s"


def _packing(found: Found, most_nodes: int) -> Rows:
    for nodes, (traces, policies, seeds) in FLEETS.items():
        for trace in traces if nodes <= most_nodes else ():
            each = {policy: [found["packing", nodes, trace, policy, seed] for seed in seeds] for policy in policies}
            worst = [percent(min(one.of_best for one in each[p])) if p in each else "" for p in POLICIES]
            fit = percent(min(one.best_fit / one.bound for one in each[PACKED]))
            yield (f"{nodes:,}", trace, *worst, fit)


def _exact(found: Found) -> Rows:
    for trace in ("uniform", "heavy tail", "mix"):
        cases = [found["exact", trace, seed] for seed in SEEDS]
        shares = [percent(case.placed / case.most) if case.most else "not proven" for case in cases]
        proven = [case for case in cases if case.most]
        total = sum(case.placed for case in proven) / sum(case.most for case in proven)
        best = sum(case.most for case in proven) / (len(proven) * 4 * figures.CARD.memory)
        yield trace, percent(total), ", ".join(shares), percent(best)


def _pieces(found: Found) -> Rows:
    for policy in POLICIES:
        one = found["pieces", policy]
        usable = dict(zip(figures.NEXT, one.usable, strict=True))
        parts = [percent(usable[size]) for size in (8, 20, 40, 80)]
        yield (policy, f"{one.used} ({one.fewest})", f"{one.empty_nodes} of 100", *parts, percent(one.lent))


def _churn(found: Found) -> Rows:
    for load, (number, (low, high)) in product(LOADS, enumerate(figures.CLASSES)):
        waits = sorted(wait for seed in SEEDS for wait in found["churn", load, PACKED, seed].waits[number])
        times = [seconds(each) for each in (quantile(waits, 0.5), quantile(waits, 0.99), waits[-1])]
        yield (f"{load:.0%}", f"{low} to {high} GiB", f"{len(waits):,}", *times)


def _late(found: Found) -> Rows:
    for every in LOOKS:
        writes = [f"{found['writes', order, every].writes:.2f}" for order in WRITTEN]
        yield (f"{every:g}", *writes, *(f"{worst_gap(found, pace, every):.1f}" for pace in figures.PACES))


def _held(found: Found) -> Rows:
    for load in LOADS[1:]:
        each = {policy: [found["churn", load, policy, seed] for seed in SEEDS] for policy in POLICIES}
        yield (f"{load:.0%} asked for", *(percent(min(one.packing for one in runs)) for runs in each.values()))
        most = [max(one.writes for one in runs) for runs in each.values()]
        yield ("writes of a slice for each pod", *(f"{writes:.2f}" for writes in most))


def _cards(found: Found) -> Rows:
    for card, key in ((figures.CARD, ("packing", 10, "mix", PACKED)), (REAL, ("real",))):
        fitting = [f"{card.memory // (size * GIB)}" for size in ROUND]
        yield (f"{card.memory / GIB:.1f} GiB", *fitting, percent(min(found[*key, seed].of_best for seed in SEEDS)))
