"""How often a safety test tries, and where its figure goes.

``make test`` runs every safety test with few trials, ``make safety`` with as many as its figure in docs/safety.md says.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "GPU_SHARE_SAFETY"
"""``full`` asks for every trial."""
FIGURES: Final = "GPU_SHARE_SAFETY_FIGURES"
"""File that takes the figures: one JSON object a line. Unset: they are printed alone."""


def full(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether every trial is asked for."""
    return environ.get(VARIABLE) == "full"


def trials(bounded: int, every: int, environ: Mapping[str, str] = os.environ) -> int:
    """Number of trials: ``bounded`` in ``make test``, ``every`` in ``make safety``."""
    return every if full(environ) else bounded


def figure(test: str, what: str, found: str, environ: Mapping[str, str] = os.environ) -> None:
    """Tell the figure of a run, once its assertions hold.

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
