"""How much a test tries: bounded in ``make test`` and CI, in full in ``make safety`` and ``make release-check``.

The figures of safety tests go to a file from here, too.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "GPU_SHARE_TESTS"
"""``full`` asks for every trial."""
FIGURES: Final = "GPU_SHARE_SAFETY_FIGURES"
"""File that takes the figures: one JSON object a line. Unset: they are only printed."""


def full(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether every trial is asked for."""
    return environ.get(VARIABLE) == "full"


def trials(bounded: int, every: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return the number of trials: ``bounded``, or ``every`` in full."""
    return every if full(environ) else bounded


def figure(test: str, what: str, found: str, environ: Mapping[str, str] = os.environ) -> None:
    """Print the figure of a safety test, once its assertions hold.

    Args:
        test: number in the acceptance table, such as ``15`` or ``21, 22``.
        what: was measured, such as ``innocents signalled``.
        found: such as ``0 in 100,000``; derived from what ran, never written as a constant.
        environ: of the process; others for tests.
    """
    print(f"safety {test}: {what}: {found}")
    if where := environ.get(FIGURES):
        with Path(where).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"test": test, "what": what, "found": found}) + "\n")
