"""Kubernetes quantities of memory, read without the product's code. Pure."""

from typing import Final

UNITS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def mib(quantity: str) -> int:
    """Return whole MiB of a quantity such as ``4Gi`` or ``4294967296``."""
    for suffix, factor in UNITS.items():
        if quantity.endswith(suffix):
            return int(quantity.removesuffix(suffix)) * factor // 2**20
    return int(quantity) // 2**20
