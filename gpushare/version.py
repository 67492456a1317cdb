"""Which version of gpu-share runs."""

from importlib import metadata


def installed() -> str:
    """Return the installed version, or ``0`` for a bare checkout that was never installed."""
    try:
        return metadata.version("gpu-share")
    except metadata.PackageNotFoundError:
        return "0"
