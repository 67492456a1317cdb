"""The virtual node with the product on it, made once for each content of the checkout and kept."""

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.e2e.site import ROOT
from tests.testbed.cluster import versions
from tests.testbed.cluster.binaries import cache_root
from tests.testbed.vm import disk

PARTS: Final = (
    "README.md",
    "deploy",
    "tests/testbed",
    "tests/e2e/fixtures.py",
    "tests/e2e/site.py",
    "tests/e2e/version.py",
)
"""What it is made of besides the images, which the disk's name stands for."""
NAME: Final = "vm-ready"
KEPT: Final = 2
FORTNIGHT: Final = 14 * 24 * 3600
"""Seconds after which another one is made: its certificates hold for a month."""


def folder() -> Path:
    """Where it is kept."""
    digest = hashlib.sha256(f"{disk.base().name} {versions.NEWEST} {time.time() // FORTNIGHT}".encode())
    for file in _files():
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return cache_root() / f"{NAME}-{digest.hexdigest()[:12]}"


def _files() -> Iterator[Path]:
    for part in PARTS:
        top = ROOT / part
        found = [top] if top.is_file() else sorted(each for each in top.rglob("*") if each.is_file())
        yield from (each for each in found if "__pycache__" not in each.parts)


def forget_old() -> None:
    """Remove all but the newest: each holds the memory of a machine."""
    for old in sorted(cache_root().glob(f"{NAME}-*"), key=lambda each: each.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
