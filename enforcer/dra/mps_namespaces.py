"""A namespace of MPS for each share, where the GPU's daemon has any (protocol 3). From documentation only.

What is limited is the request of a claim: containers that use one request get one CDI device, hence one directory. So a
namespace has the largest limits of its containers, and the variables of each lower them.
"""

from collections.abc import Mapping
from typing import Final

import structlog

from enforcer.dra.prepared_claim import Granted, Prepared
from enforcer.mps.manager import MpsManager
from enforcer.mps.protocol_v3 import Space
from enforcer.quota.types import Mode
from gpushare.errors import GpuShareError, PrepareError
from gpushare.reasons import Reason

WHOLE: Final = 100
"""Percent."""
BELOW: Final = 1
"""Priority."""

log = structlog.get_logger()


class MpsNamespaces:
    """Those of a node's daemons."""

    def __init__(self, manager: MpsManager) -> None:
        self._manager = manager

    def give(self, claim: Prepared) -> Mapping[str, str]:
        """By request, the directory on the host that its containers get as MPS's.

        Raises:
            PrepareError: one cannot be made, or not be limited.
        """
        mine = [each for each in claim.granted if each.gpu is not None and each.mode is Mode.MPS]
        try:
            found = {
                each.request: self._manager.give(each.gpu or "", claim.uid, each.request, space_of(claim, each))
                for each in mine
            }
        except GpuShareError as error:
            # What the daemon said may name other tenants' processes: that is for the agent's log.
            log.warning("no MPS namespace", reason=str(error.reason), claim=claim.name, error=error.message)
            message = f"MPS makes no namespace with the limits of claim {claim.name}; it is tried again"
            raise PrepareError(message, Reason.MPS_UNREACHABLE) from error
        return {request: str(where) for request, where in found.items() if where is not None}

    def take(self, uid: str) -> None:
        """Delete those of a claim, now or later."""
        self._manager.drop(uid)


def space_of(claim: Prepared, granted: Granted) -> Space:
    """Return the limits of a request: of its containers the largest, without containers what it consumed."""
    limits = [limit for limit in claim.limits if limit.request == granted.request]
    compute = [limit.compute or WHOLE for limit in limits] or [granted.compute or WHOLE]
    return Space(
        memory_mib=max([limit.memory_mib for limit in limits] or [granted.memory_mib]),
        percentage=max(compute),
        priority=BELOW if claim.low_priority else 0,
    )
