"""A bare machine has Python and a driver and nothing of ours: what the product imports beyond that, in small.

Only logging and metrics are replaced, and only where they are not installed; nvidia-ml-py is needed in any case.
"""

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any, Self


class Log:
    """Answers like a structlog logger: one line of JSON each, to standard error."""

    def __getattr__(self, level: str) -> Any:
        def say(event: str = "", **values: Any) -> None:
            print(json.dumps({"level": level, "event": event, **values}, default=str), file=sys.stderr)

        return say

    def bind(self, **_: Any) -> "Log":
        """The same logger."""
        return self


class Mute:
    """Answers like any metric, its registry, or the time of a turn: takes everything, and nobody will ask for it."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, _: str) -> Any:
        return Mute

    def __call__(self, *_: Any, **__: Any) -> "Mute":
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def ensure() -> list[str]:
    """Put stand-ins where something is not installed; returns what had to be replaced."""
    replaced = []
    if importlib.util.find_spec("structlog") is None:
        _module("structlog", get_logger=lambda *_, **__: Log())
        replaced.append("structlog")
    if importlib.util.find_spec("prometheus_client") is None:
        names = ("CollectorRegistry", "Counter", "Histogram", "ProcessCollector")
        _module("prometheus_client", **dict.fromkeys(names, Mute))
        _module("prometheus_client.core", GaugeMetricFamily=Mute)
        _module("prometheus_client.registry", Collector=Mute)
        replaced.append("prometheus_client")
    return replaced


def _module(name: str, **content: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(content)
    sys.modules[name] = module
