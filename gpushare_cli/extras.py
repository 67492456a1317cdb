"""The extras of the wheel: which programs need one, and how to install it where it is missing."""

from importlib.machinery import PathFinder
from typing import Final

ENFORCER: Final = "enforcer"
WEBHOOK: Final = "webhook"
UI: Final = "ui"
OF_PARTS: Final = {"enforcer": ENFORCER, "mps": ENFORCER, "webhook": WEBHOOK}
"""The extra that a process needs, by its name on the command line; ``UI`` is the verb's of that name."""
MODULES: Final = {
    ENFORCER: ("grpc", "prometheus_client", "pynvml"),
    UI: ("flask",),
    WEBHOOK: ("flask", "gunicorn", "httptools", "orjson", "prometheus_client"),
}
"""Modules that only an extra brings."""


def missing(extra: str) -> str:
    """Return which modules of an extra are not installed, with the remedy; empty where all are installed."""
    absent = [name for name in MODULES[extra] if PathFinder.find_spec(name) is None]
    return f"{', '.join(absent)}: not installed; run: pip install 'gpu-share[{extra}]'" if absent else ""
