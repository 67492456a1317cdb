"""What a process's own environment says about its limit. Pure.

The environment is the tenant's memory: its owner may write anything there at any time. So it can prove that a limit is
not in force, and never that one is.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare.contract import CUDA_VISIBLE_DEVICES, MPS_MEMORY_LIMIT
from gpushare.patterns import Pattern

MIB_PER_GIB: Final = 1024
_AMOUNT: Final = Pattern(r"([0-9]{1,9})([MG])B?", 11)
_ORDINAL: Final = Pattern(r"[0-9]{1,4}", 4)


@dataclass(frozen=True, slots=True)
class EnvironLimit:
    """The limit in a process's environment when it started.

    ``limit_mib`` is the largest it names for its GPU, ``None`` where it names none that MPS could read. ``unseen`` is
    an entry for a GPU it does not see: one such entry makes MPS drop every limit of the process.
    """

    limit_mib: int | None = None
    unseen: str | None = None


def parse_environ(environ: bytes) -> EnvironLimit:
    """Read the text of ``/proc/<pid>/environ``."""
    variables = _variables(environ)
    visible = [each for each in variables.get(CUDA_VISIBLE_DEVICES, "").split(",") if each] or ["0"]
    entries = list(_entries(variables.get(MPS_MEMORY_LIMIT, "")))
    unseen = next((name for name, _ in entries if not _is_seen(name, visible)), None)
    limits = [mib for name, mib in entries if mib is not None and _is_seen(name, visible)]
    return EnvironLimit(max(limits, default=None), unseen)


def _variables(environ: bytes) -> Mapping[str, str]:
    """The first of each name counts, as ``getenv`` has it."""
    found: dict[str, str] = {}
    for entry in environ.decode("utf-8", "replace").split("\0"):
        name, equals, value = entry.partition("=")
        if equals:
            found.setdefault(name, value)
    return found


def _entries(text: str) -> Iterator[tuple[str, int | None]]:
    for entry in text.split(","):
        name, equals, amount = entry.partition("=")
        if equals:
            match = _AMOUNT.fullmatch(amount.strip())
            yield name.strip(), None if match is None else int(match[1]) * (MIB_PER_GIB if match[2] == "G" else 1)


def _is_seen(name: str, visible: list[str]) -> bool:
    """Entries name a GPU as ``CUDA_VISIBLE_DEVICES`` does: by its place there, or by (the front of) its UUID."""
    if _ORDINAL.fullmatch(name):
        return int(name) < len(visible)
    return name.startswith("GPU-") and any(each.startswith(name) or name.startswith(each) for each in visible)
