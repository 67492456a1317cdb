"""Follow paths to pod templates in objects of any API, such as ``spec.workerGroupSpecs[*].template``. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gpushare.errors import ConfigError
from gpushare.patterns import Pattern
from gpushare.quantity import quoted

Steps = tuple[str | int, ...]
EACH: Final = "*"
"""A step to every entry of a list or a mapping."""
_MOST: Final = 256
_PATH: Final = Pattern(r"[A-Za-z][A-Za-z0-9_-]*(\.([A-Za-z][A-Za-z0-9_-]*|\*)|\[([0-9]{1,4}|\*)\])*", _MOST)


def parse(text: str) -> Steps:
    """Read a path.

    Raises:
        ConfigError: it is another text.
    """
    if _PATH.fullmatch(text) is None:
        raise ConfigError(
            f"--pod-at {quoted(text)} is not a path; write for example spec.workerGroupSpecs[*].template or "
            "spec.pytorchReplicaSpecs.*.template"
        )
    parts = text.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdecimal() else part for part in parts)


def follow(value: Any, steps: Sequence[str | int]) -> Iterator[tuple[Steps, Any]]:
    """Yield each place that a path leads to, as a path without ``*``, and what is there."""
    if not steps:
        yield (), value
        return
    for key, part in _entries(value, steps[0]):
        for path, found in follow(part, steps[1:]):
            yield (key, *path), found


def matches(steps: Steps, path: Steps) -> bool:
    """Tell whether a path leads to a place, among others."""
    return len(steps) == len(path) and all(step in (EACH, part) for step, part in zip(steps, path, strict=True))


def _entries(value: Any, step: str | int) -> Iterator[tuple[str | int, Any]]:
    entries = dict(enumerate(value)) if isinstance(value, list) else value if isinstance(value, dict) else {}
    if step == EACH:
        yield from entries.items()
    elif step in entries:
        yield step, entries[step]
