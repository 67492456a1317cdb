"""Check again, on a stored pod, what admission has checked: whether its namespace allows what it asks for. Pure.

The controller asks before it creates a claim template, so that a pod which came past admission reserves nothing.
"""

from dataclasses import dataclass
from typing import Self

from gpushare.namespace_policy import NamespacePolicy
from gpushare.quantity import profile_mib
from gpushare.reasons import Reason
from webhook.mutation.resourceclaims import Stored
from webhook.mutation.settings import Settings
from webhook.mutation.share_request import Share
from webhook.mutation.validation import as_root


@dataclass(frozen=True, slots=True)
class Demand:
    """The most that one container of a pod asks for: MiB, and percent of a GPU, ``None`` being all of it.

    ``root`` says which field makes a sharing container run as root; empty where none does.
    """

    memory_mib: int
    compute: int | None
    root: str = ""

    @classmethod
    def of(cls, pod: Stored) -> Self:
        """Return what a stored pod asks for."""
        shares = pod.plan.shares
        percents = [100 if each.compute is None else each.compute for each in shares if not each.profile]
        root = next(map(str, as_root(pod.view, {each.container for each in shares})), "")
        whole = any(each.compute is None for each in shares if not each.profile)
        compute = None if whole else max(percents, default=0)
        return cls(max(map(_mib, shares)), compute, root)

    def refusal(self, policy: NamespacePolicy, settings: Settings) -> tuple[Reason, str] | None:
        """Say why the namespace does not allow it; ``None`` where it does."""
        if message := policy.above_memory(self.memory_mib) or policy.above_compute(self.compute):
            return Reason.ABOVE_MAXIMUM, message
        return (Reason.CONFLICTS_WITH_SHARE, self.root) if self.root and settings.root_tenants == "refuse" else None


def _mib(share: Share) -> int:
    return profile_mib(share.profile) if share.profile else share.memory_mib
