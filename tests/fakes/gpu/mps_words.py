"""How the MPS daemon reads numbers: as C does, up to where they end, and without a word about the rest.

Seen on 535.309.01: memory is ``%d %s`` and a 64-bit product that wraps, a percentage ``%lf``, everything else ``%d``.
``tests/integration/processes/mps/test_contract_values.py`` holds this to the real program.
"""

import re
from typing import Final

MIB_SHIFT, GIB_SHIFT = 20, 30
WRAP: Final = 2**64
DEVICES: Final = 32
_INTEGER: Final = re.compile(r"\s*([+-]?[0-9]+)", re.ASCII)
_REAL: Final = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)", re.ASCII)


def integer(text: str) -> int | None:
    """``%d``: 32 bits of it; ``None`` where there is none."""
    match = _INTEGER.match(text)
    return (int(match[1]) + 2**31) % 2**32 - 2**31 if match else None


def device_and_limit(text: str) -> tuple[int, int]:
    """A device and MiB from ``%d %s``. What is not a number means device 0, and no limit."""
    match = _INTEGER.match(text)
    device = integer(text)
    rest = text[match.end() :].split() if match else []
    return device or 0, memory(rest[0] if rest else "")


def memory(word: str) -> int:
    """MiB: digits, and GiB where a G follows at once; anything else counts as MiB."""
    match = _INTEGER.match(word)
    if match is None:
        return 0
    amount = min(int(match[1]), WRAP - 1)
    shift = GIB_SHIFT if word[match.end() : match.end() + 1] in {"G", "g"} else MIB_SHIFT
    return ((amount << shift) % WRAP) >> MIB_SHIFT


def shown(mib: int) -> str:
    """A limit as the daemon shows it: from 1 GiB on floored to GiB."""
    return "" if not mib else f"{mib // 1024}G\n" if mib >= 1024 else f"{mib}M\n"


def percentage(text: str, before: str) -> str:
    """A percentage as it is shown, the one before where the new one is refused."""
    match = _REAL.match(text.lstrip())
    number = match[0] if match else "0"
    value = float(int(number, 16)) if "x" in number.lower() else float(number)
    return f"{value:.1f}" if 0 < value <= 100 else before
