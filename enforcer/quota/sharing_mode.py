"""How GPUs are shared: through MPS, by turns, or by what the hardware cut out; and when that may change. Pure.

The operator says it for all nodes, and louder for one by a label. A GPU changes only when nobody holds a share of it:
until its last claim is undone it stays what it was when that was prepared, and offers nothing new.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from enforcer.quota.types import Mode
from gpushare.contract import NODE_MODE
from gpushare.errors import ConfigError
from gpushare.reasons import Reason

INSTANCE: Final = "MIG-"
"""What the UUID of a MIG instance begins with."""
KNOWN: Final = ", ".join(Mode)
SHOWN: Final = 80
CHANGES: Final = "changes from"
"""With what the reason begins why a GPU waits for its tenants."""


def parse_mode(node: Mapping[str, Any], default: Mode) -> Mode:
    """Read the mode a node is to have: its label's, else the operator's default.

    Raises:
        ConfigError: the label's value is not a mode.
    """
    value = (node["metadata"].get("labels") or {}).get(NODE_MODE)
    if value is None:
        return default
    if value not in set(Mode):
        problem = f"node label {NODE_MODE}: {value!r:.{SHOWN}} is not a mode; write one of {KNOWN}, or remove it"
        raise ConfigError(
            f"{problem}; until then the enforcer shares no further GPU of this node", Reason.INVALID_VALUE
        )
    return Mode(value)


def mode_for(gpu: str, wanted: Mode | None) -> Mode | None:
    """Say how one GPU is shared on a node of that mode; ``None``: not at all.

    A node of mode ``mig`` shares what its instances do not take: its other GPUs go through MPS.
    """
    if wanted is None or gpu.startswith(INSTANCE):
        return wanted if wanted is Mode.MIG else None
    return Mode.TIME_SLICING if wanted is Mode.TIME_SLICING else Mode.MPS


@dataclass(frozen=True, slots=True)
class SharingModes:
    """How a node's GPUs are to be shared (``None``: that cannot be known), and how those in use are, by UUID."""

    wanted: Mode | None = Mode.MPS
    by_claims: Mapping[str, Mode] = field(default_factory=dict)
    problem: str | None = None

    def of(self, gpu: str) -> Mode | None:
        """Say how a GPU is shared now; ``None``: not at all."""
        return self.by_claims.get(gpu) or mode_for(gpu, self.wanted)

    def objection(self, gpu: str) -> str | None:
        """Say why nothing new is to be shared of a GPU now; ``None`` where nothing speaks against it."""
        if self.wanted is None:
            return self.problem or "the enforcer does not know the sharing mode of the node yet"
        wanted, now = mode_for(gpu, self.wanted), self.by_claims.get(gpu)
        if now is None or now is wanted:
            return None
        when = "when the last prepared claim on the GPU is unprepared"
        return f"the sharing mode {CHANGES} {now} to {wanted or 'not shared'} {when}"
