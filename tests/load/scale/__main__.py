"""``python -m tests.load.scale main|raised|chaos|churn|crash``: placement at scale on a control plane of this machine.

Needs what ``make integration`` needs. ``--write`` puts the figures into docs/design/scale.md. Exit code 0 when each
figure is as wanted, 1 when one is not, 2 wrong use.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.integration.controlplane.bed import Bed
from tests.load.scale import chaos, churn, crash, placing
from tests.load.scale.figures import Figure, write
from tests.load.scale.fleet import Arm, fleet
from tests.load.scale.loads import mixed
from tests.testbed.cluster.controlplane import ControlPlane, sweep

BUILD: Final = Path(__file__).parents[3] / ".build" / "scale"
RAISED: Final = 300
BURST: Final = 90
"""Pods of one burst."""


def main(argv: Sequence[str]) -> int:
    """Make one run, print its figures, and return the exit code."""
    asked = _parser().parse_args(argv)
    sweep(BUILD)
    found = RUNS[asked.run](asked)
    print("\n".join(map(str, found)))
    if asked.write:
        write(found)
    return int(not all(each.held for each in found))


def main_job(asked: argparse.Namespace) -> list[Figure]:
    """Pairs and plain pods at the default client rate and at a raised one, and the overfilled fleet."""
    few = max(1, asked.pods // 25)
    with installed(None) as bed:
        usual = _pairs(bed, asked, "default rate")
    with installed(RAISED) as bed:
        raised = _pairs(bed, asked, f"{RAISED}/s")
        with fleet(bed, "narrow", few, placing.MACHINE):
            over = placing.overfill(bed, asked.seed, asked.pods, "narrow", few * placing.PER_NODE)
    return [*placing.figures("default", usual), *placing.figures(f"{RAISED}/s", raised), *placing.overfilled(over)]


def raised_job(asked: argparse.Namespace) -> list[Figure]:
    """The part of ``main`` at the raised client rate: pairs and plain pods."""
    with installed(RAISED) as bed:
        return placing.figures(f"{RAISED}/s", _pairs(bed, asked, f"{RAISED}/s"))


def _pairs(bed: Bed, asked: argparse.Namespace, rate: str) -> placing.AtRate:
    gpus = asked.nodes * placing.PER_NODE
    with fleet(bed, "wide", asked.nodes, placing.MACHINE):
        plain = placing.place(bed, Arm.PLAIN, "plain", mixed(asked.seed, asked.pods), "wide")
        _tell(rate, [plain])
        pairs = []
        for seed in range(asked.seed, asked.seed + asked.pairs):
            pairs.append(placing.pair(bed, seed, asked.pods, "wide", gpus))
            _tell(f"{rate}, seed {seed}", pairs[-1])
    return placing.AtRate(plain=plain, pairs=pairs)


def chaos_job(asked: argparse.Namespace) -> list[Figure]:
    """Pods come and go while everything fails."""
    gpus = asked.nodes * placing.PER_NODE
    with installed(RAISED) as bed, fleet(bed, "harmed", asked.nodes, placing.MACHINE):
        found = chaos.survive(bed, asked.seed, asked.pods, "harmed", gpus, asked.seconds, asked.blocked)
    if idle := chaos.trivial(found):
        raise SystemExit(f"this run says nothing: {', '.join(idle)}")
    return chaos.figures(found)


def churn_job(asked: argparse.Namespace) -> list[Figure]:
    """Pods come and go at a fixed rate, on as many nodes as they fill to 80 %."""
    course = churn.Course(rate=asked.rate, warm=asked.warm, seconds=asked.seconds, seed=asked.seed)
    with installed(RAISED) as bed, fleet(bed, "busy", course.nodes(), placing.MACHINE):
        return churn.figures(churn.churn(bed, course, "busy"))


def crash_job(asked: argparse.Namespace) -> list[Figure]:
    """The API server is killed while pods come as fast as they can."""
    nodes = 10
    with installed(RAISED) as bed, fleet(bed, "harmed", nodes, placing.MACHINE):
        found = [*crash.bursts(bed, asked.seed, asked.bursts, BURST, "harmed", nodes * placing.PER_NODE)]
    if idle := crash.trivial(found):
        raise SystemExit(f"this run says nothing: {', '.join(idle)}")
    return crash.figures(found)


def _tell(what: str, placed: Sequence[placing.Placed]) -> None:
    for each in placed:
        print(placing.told(each, what), flush=True)


@contextmanager
def installed(client_rate: int | None) -> Iterator[Bed]:
    """A control plane of our own with three replicas of the webhook."""
    plane = ControlPlane.start(BUILD / str(os.getpid()), client_rate=client_rate)
    try:
        yield Bed.install(plane)
    finally:
        plane.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.load.scale", description=__doc__)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--seed", type=int, default=1, help="the first seed (1)")
    parser.add_argument("--pods", type=int, default=1000, help="pods of each arm (1000)")
    parser.add_argument("--nodes", type=int, default=100, help="nodes of four GPUs (100)")
    parser.add_argument("--pairs", type=int, default=5, help="main, raised: pairs, each of a seed of its own (5)")
    parser.add_argument("--seconds", type=float, default=300, help="chaos, churn: how long it lasts (300)")
    parser.add_argument("--rate", type=float, default=10, help="churn: pods a second (10)")
    parser.add_argument("--warm", type=float, default=120, help="churn: seconds before those that count (120)")
    parser.add_argument("--blocked", type=float, default=30, help="chaos: seconds without a way to the API server (30)")
    parser.add_argument("--bursts", type=int, default=20, help="crash: how often the API server is killed (20)")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/design/scale.md")
    return parser


RUNS: Final[dict[str, Callable[[argparse.Namespace], list[Figure]]]] = {
    "main": main_job,
    "raised": raised_job,
    "chaos": chaos_job,
    "churn": churn_job,
    "crash": crash_job,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
