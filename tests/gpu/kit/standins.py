"""A bare machine has Python and a driver and nothing of ours: what the product imports beyond that, in small.

Only logging is replaced, and only where it is not installed; nvidia-ml-py is needed in any case.
"""

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any


class Log:
    """Answers like a structlog logger: one line of JSON each, to standard error."""

    def __getattr__(self, level: str) -> Any:
        def say(event: str = "", **values: Any) -> None:
            print(json.dumps({"level": level, "event": event, **values}, default=str), file=sys.stderr)

        return say

    def bind(self, **_: Any) -> "Log":
        """The same logger."""
        return self


def ensure() -> list[str]:
    """Put stand-ins where something is not installed; returns what had to be replaced."""
    if importlib.util.find_spec("structlog") is not None:
        return []
    module = ModuleType("structlog")
    module.get_logger = lambda *_, **__: Log()  # type: ignore[attr-defined]
    sys.modules["structlog"] = module
    return ["structlog"]
