"""``python -m tests.load.bench.decision``: what a decision about a pod costs, and its patch: calls, and CPU time."""

import cProfile
import pstats
import sys
import time
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

from gpushare.namespace_policy import NamespacePolicy
from tests.load.bench.pods import pods
from webhook.mutation.json_patch import diff
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

NUMBER = 500
ROUNDS = 40


def deciding(pod: dict[str, Any]) -> Callable[[], Any]:
    """Return the decision about a pod, whose claim an earlier pod asked for."""
    decide = partial(mutate_pod, pod, policy=NamespacePolicy(), settings=Settings())
    decide()
    return decide


def calls(run: Callable[[], Any]) -> int:
    """Count the functions that are called, built-in ones included."""
    profile = cProfile.Profile()
    profile.runcall(run)
    total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined] # typeshed lacks it
    return total


def fastest(run: Callable[[], Any]) -> float:
    """Return the CPU time of the fastest round, in microseconds: others met more of the machine's other work."""
    return min(timeit.repeat(run, number=NUMBER, repeat=ROUNDS, timer=time.process_time)) / NUMBER * 1e6


def main() -> int:
    """Print a line for each pod."""
    for name, pod in pods().items():
        decide = deciding(pod)
        patch = partial(diff, pod, decide().pod)
        print(f"{name}: {calls(decide)} calls, {fastest(decide):.0f} us; of it the patch: {fastest(patch):.0f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
