"""Puts together what keeps limits, and what proves them, beside the loop."""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from enforcer.attribution.usage import Watch
from enforcer.limits.applier import Applied, Limiter
from enforcer.limits.backend import Backend
from enforcer.limits.environ_limits import Said
from enforcer.limits.process_environ import Environments
from enforcer.limits.verifier import Pace, Prover
from enforcer.mps.control import Deadline
from enforcer.mps.daemon import MpsDaemon
from enforcer.quota.types import Quota
from enforcer.runtime._merge_repeat import every
from gpushare.errors import MpsError

LIMIT_EVERY: Final = 1.0
"""Seconds from a container's start, at most, to its limit, where it is ours to set."""
LOOK_AT_MOST_EVERY: Final = 1.0


class NodeEyes:
    """Where evidence on this node comes from.

    Args:
        limiter: who keeps limits, and what they are.
        daemons: asked for the MPS daemons by GPU.
        environments: what processes said of their limits.
    """

    def __init__(
        self,
        limiter: Limiter,
        daemons: Callable[[], Mapping[str, MpsDaemon]],
        environments: Environments | None = None,
    ) -> None:
        self._limiter, self._daemons = limiter, daemons
        self._environments = environments or Environments()

    def backends(self) -> Mapping[str, Backend]:
        """See ``enforcer.limits.verifier.Eyes``."""
        return self._limiter.backends()

    def read(self, quota: Quota) -> Applied:
        """See ``enforcer.limits.verifier.Eyes``."""
        return self._limiter.read(quota)

    def said(self, pid: int, start: int) -> Said | None:
        """See ``enforcer.limits.verifier.Eyes``."""
        return self._environments.said(pid, start)

    def clients(self, gpus: Collection[str]) -> Mapping[str, Collection[int]]:
        """See ``enforcer.limits.verifier.Eyes``. One question for each server, however many containers it has."""
        found: dict[str, Collection[int]] = {}
        for gpu, daemon in self._daemons().items():
            if gpu in gpus:
                with suppress(MpsError):
                    deadline = Deadline()
                    servers = daemon.servers(deadline)
                    found[gpu] = {pid for server in servers for pid in daemon.clients(server, deadline)}
        return found


def keep_limits(
    limiter: Limiter, watch: Watch, quotas: Callable[[], Sequence[Quota]], stopped: threading.Event
) -> None:
    """Set limits from a thread of their own: the driver may be slow, and the loop must not wait for it."""
    every(LIMIT_EVERY, "limits", lambda: limiter.turn([view.gpu for view in watch.latest], quotas()), stopped)


def keep_proving(prover: Prover, seconds: float, stopped: threading.Event) -> None:
    """Prove limits from a thread of its own: daemons, disks and the API server may be slow."""
    pace = Pace(seconds)
    interval = min(LOOK_AT_MOST_EVERY, seconds / 4)
    every(interval, "proof", lambda: prover.turn() if pace.due(suspects=prover.suspects) else None, stopped)
