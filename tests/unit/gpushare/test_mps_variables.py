"""What the variables of a limit say, and that the webhook knows each of them in a pod."""

from typing import Any

import pytest

from gpushare import mps_variables
from webhook.mutation.podview import RESERVED


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((4096, None), {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M"}),
        ((4096, None, 2), {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M,1=4096M"}),
        ((None, 25), {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}),
        ((None, None), {}),
    ],
)
def test_a_limit_is_written_as_mps_reads_it(given: tuple[Any, ...], wanted: dict[str, str]) -> None:
    assert mps_variables.limits(*given) == wanted


def test_each_variable_that_a_share_gets_is_reserved() -> None:
    assert {*mps_variables.DAEMON, *mps_variables.limits(1, 1)} == {*mps_variables.NAMES}
    assert {*mps_variables.NAMES} <= RESERVED
