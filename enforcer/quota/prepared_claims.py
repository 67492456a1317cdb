"""What other packages need to know of prepared claims. ``enforcer.dra.checkpoint.ClaimStore`` keeps them."""

from collections.abc import Mapping
from typing import Protocol

from enforcer.quota.types import Mode


class PreparedClaims(Protocol):
    """The claims that are prepared on this node, and the terminating ones, whose processes live on."""

    def modes(self) -> Mapping[str, Mode] | None:
        """Return the sharing mode of each GPU that a claim holds, by UUID; ``None`` until the claims were read."""

    def gpus(self) -> frozenset[str] | None:
        """Return the UUIDs of the GPUs that claims hold; ``None`` until the claims were read."""


class NoClaims:
    """Stands in where the enforcer prepares no claims: no GPU is known to be in use, nor to be free."""

    def modes(self) -> Mapping[str, Mode]:
        """See ``PreparedClaims``."""
        return {}

    def gpus(self) -> None:
        """See ``PreparedClaims``."""
