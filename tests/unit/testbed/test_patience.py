"""Commands' own time-outs are stretched where tests are patient."""

import pytest

from tests.support.patience import stretched


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("kubectl wait pod/a --timeout=90s", "kubectl wait pod/a --timeout=270s"),
        ("helm install a b --wait --timeout=5m && true", "helm install a b --wait --timeout=15m && true"),
        ("gpu-share check --timeout=x", "gpu-share check --timeout=x"),
    ],
)
def test_time_outs_of_a_command_are_multiplied(command: str, expected: str) -> None:
    assert stretched(command, 3) == expected
    assert stretched(command, 1) == command
