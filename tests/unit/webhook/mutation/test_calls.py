"""How many functions a decision calls, built-in ones included: what it costs, counted the same on every machine."""

import cProfile
import pstats
from typing import Any

import pytest

from gpushare.namespace_policy import NamespacePolicy
from tests.load.bench.pods import pods
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

MOST = 600
"""For a typical pod whose claim an earlier pod asked for."""
MOST_OF_A_VARIABLE = 0.1
"""A loop over hundreds of variables runs in C, or in one comprehension."""


def calls(pod: dict[str, Any]) -> int:
    policy, settings = NamespacePolicy(), Settings()
    mutate_pod(pod, policy=policy, settings=settings)
    profile = cProfile.Profile()
    profile.runcall(mutate_pod, pod, policy=policy, settings=settings)
    total: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return total


def test_a_typical_pod_is_decided_within_so_many_calls() -> None:
    assert calls(pods()["typical"]) <= MOST


@pytest.mark.parametrize("name", ["typical", "400 env"])
def test_a_further_variable_costs_next_to_nothing(name: str) -> None:
    pod, more = pods()[name], pods()[name]
    env = more["spec"]["containers"][0]["env"]
    env += [{"name": f"MORE_{number}", "value": "x"} for number in range(400)]
    assert calls(more) - calls(pod) <= MOST_OF_A_VARIABLE * 400
