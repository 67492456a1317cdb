"""What a CUDA context takes of a share, by the card's multiprocessors (SMs) and the compute limit, in MiB. Pure.

Measured on an H100 (132 SMs, driver 580.159.04) under MPS, by active thread percentage: the context of a PyTorch
process after a matrix product takes 712, 586, 470, 340, 268 and 254 MiB at 100, 75, 50, 25, 10 and 5 %, of which 96 are
its matrices and the cuBLAS workspace; the bare driver API takes 516. Other cards are computed from that.
"""

from typing import Final

FIXED_MIB: Final = 130
"""What a context takes whatever it may use."""
TENTHS_BY_SM: Final = 37
"""Tenths of a MiB for each SM that a process may use."""
WORKSPACE_MIB: Final = 150
"""For workspaces of libraries beside the context: with it the largest context that was measured, of PyTorch with
``cudaMallocAsync`` (712 MiB), fits as well."""
STEP_MIB: Final = 64
"""To a multiple of which the smallest useful share is rounded up."""
HUNDRED: Final = 100


def context_mib(sms: int, percent: int = HUNDRED) -> int:
    """Return what the context of a framework takes.

    Args:
        sms: multiprocessors of the card.
        percent: of the SMs that the process may use.
    """
    usable = -(-sms * percent // HUNDRED)
    return FIXED_MIB + -(-usable * TENTHS_BY_SM // 10)


def smallest_share_mib(sms: int, percent: int = HUNDRED) -> int:
    """Return the smallest share in which a framework starts and has something left to use."""
    needed = context_mib(sms, percent) + WORKSPACE_MIB
    return (needed // STEP_MIB + 1) * STEP_MIB
