"""NVML as it is, unchecked: for recordings. The product reads through ``enforcer.nvml.reader.NvmlReader`` instead."""

from typing import Any, Final

import pynvml  # noqa: TID251 - raw answers are the point here

MINE: Final = "@"
"""Stands for the measured GPU's handle among the arguments."""


def call(name: str, *arguments: Any, gpu: str) -> Any:
    """One call, as JSON can carry it; failures are answers."""
    try:
        _start()
        given = [_handle(gpu) if each == MINE else each for each in arguments]
        return plain(getattr(pynvml, name)(*given))
    except pynvml.NVMLError as error:
        return {"error": error.value, "name": type(error).__name__}
    except (pynvml.NVMLLibraryMismatchError, AttributeError, OSError) as error:
        return {"error": -1, "name": f"{type(error).__name__}: {error}"}


def plain(value: Any) -> Any:
    """Structures as dictionaries, bytes as text, lists of them likewise."""
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return {name: plain(each) for name, each in vars(value).items()}
    fields = getattr(value, "_fields_", None)
    if fields is not None:
        return {name: plain(getattr(value, name)) for name, *_ in fields}
    if hasattr(value, "value"):
        return plain(value.value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _start() -> None:
    # The library counts its users: each initialisation but the first is a no-op that costs microseconds.
    pynvml.nvmlInitWithFlags(0)


def _handle(gpu: str) -> Any:
    return pynvml.nvmlDeviceGetHandleByUUID(gpu)
