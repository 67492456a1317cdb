"""What can go wrong while a control plane is found, built or started."""

from gpushare.errors import GpuShareError


class BedError(GpuShareError):
    """The test cluster cannot be had. The message says what is missing and how to get it."""


class MissingBinariesError(BedError):
    """Some Kubernetes binaries are neither given nor built yet."""
