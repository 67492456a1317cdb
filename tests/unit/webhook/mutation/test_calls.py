"""How many functions a decision calls, built-in ones included: what it costs, counted the same on every machine."""

import pytest

from tests.load.bench.decision import calls, deciding
from tests.load.bench.pods import pods

MOST = 600
"""For a typical pod."""
MOST_OF_A_VARIABLE = 0.1
"""A loop over hundreds of variables runs in C, or in one comprehension."""


def test_a_typical_pod_is_decided_within_so_many_calls() -> None:
    assert calls(deciding(pods()["typical"])) <= MOST


@pytest.mark.parametrize("name", ["typical", "400 env"])
def test_a_further_variable_costs_next_to_nothing(name: str) -> None:
    pod, more = pods()[name], pods()[name]
    env = more["spec"]["containers"][0]["env"]
    env += [{"name": f"MORE_{number}", "value": "x"} for number in range(400)]
    assert calls(deciding(more)) - calls(deciding(pod)) <= MOST_OF_A_VARIABLE * 400
