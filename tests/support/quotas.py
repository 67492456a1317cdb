"""Quotas for tests of a kill alone."""

from enforcer.quota.types import Quota


class UnchangedQuotas:
    """A ``QuotaSource``: each quota is in force as it was when the kill was decided."""

    def in_force(self, quota: Quota) -> Quota | None:
        return quota
