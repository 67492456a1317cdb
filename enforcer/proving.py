"""Puts together what keeps limits beside the loop."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from enforcer.limits.limiter import Limiter
from enforcer.model import Quota
from enforcer.repeat import every
from enforcer.watch import Watch

LIMIT_EVERY: Final = 1.0
"""Seconds from a container's start, at most, to its limit, where it is ours to set."""


def keep_limits(
    limiter: Limiter, watch: Watch, quotas: Callable[[], Sequence[Quota]], stopped: threading.Event
) -> None:
    """Set limits from a thread of their own: the driver may be slow, and the loop must not wait for it."""
    every(LIMIT_EVERY, "limits", lambda: limiter.turn([view.gpu for view in watch.latest], quotas()), stopped)
