"""Strict parsers for memory, compute and durations as people write them. Pure.

Ordinary parsers accept Arabic digits, underscores, ``NaN`` and trailing newlines; a limit read that way is a limit
nobody meant. Everything here is ASCII, matched whole, and refused with the value and an example.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Final, TypeVar

from gpushare import defaults
from gpushare.errors import ConfigError, QuantityError
from gpushare.patterns import Pattern

T = TypeVar("T")
MIB: Final = 1024 * 1024
WHOLE_GPU_PERCENT: Final = 100
MAX_MIB: Final = 2**63 // MIB - 1
"""Largest amount that still fits a signed 64-bit count of bytes, as Kubernetes keeps quantities."""
MAX_LENGTH: Final = 32
"""Longer values are refused unread: no honest quantity needs them."""
MAX_OVERCOMMIT: Final = 10
MAX_GPUS: Final = 16
"""No node has more GPUs."""
DEFAULT_MIN_MIB: Final = defaults.MIN_MEMORY_MIB

GIB: Final = 1024
"""MiB of one."""
_PROFILE: Final = Pattern(r"([1-7]c\.)?[1-7]g\.[1-9][0-9]{0,2}gb(\+[a-z]{1,8}(\.[a-z]{1,8})?)?", MAX_LENGTH)
_UNITS: Final = {
    "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "M": 10**6, "G": 10**9, "T": 10**12,
}  # fmt: skip
_MEMORY: Final = Pattern(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?(Mi|Gi|Ti|M|G|T)", MAX_LENGTH)
_BARE: Final = Pattern(r"[0-9]{1,15}", MAX_LENGTH)
_BYTES: Final = Pattern(r"(?i)([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGT])i?B", MAX_LENGTH)
_PERCENT: Final = Pattern(r"([0-9]{1,3})%?", MAX_LENGTH)
_FACTOR: Final = Pattern(r"[0-9]{1,2}(\.[0-9]{1,17})?", MAX_LENGTH)
_COUNT: Final = Pattern(r"[1-9][0-9]?", MAX_LENGTH)
_AMOUNT: Final = Pattern(
    r"([+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?",
    MAX_LENGTH,
)
_POWERS: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = "KMGTPE"
_SECONDS: Final = Pattern(r"([0-9]{1,6})(ms|s|m|h)", MAX_LENGTH)
_SECONDS_OF: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_memory(value: object) -> int:
    """Read an amount of GPU memory, such as ``4Gi`` or ``1.5G``, and return MiB, rounded up.

    Raises:
        QuantityError: not a string, no suffix, another suffix, zero, or more than 64 bits of bytes.
    """
    text = _text(value, "a quantity of memory such as 4Gi")
    match = _MEMORY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{quoted(text)} is not a quantity of memory; {_memory_hint(text)}")
    whole, fraction, unit = match.group(1), match.group(2) or "", match.group(3)
    scaled = int(whole + fraction) * _UNITS[unit]
    unit_of_result: int = 10 ** len(fraction) * MIB
    mib = -(-scaled // unit_of_result)
    if mib == 0:
        raise QuantityError(f"{quoted(text)} is zero; write for example 4Gi")
    if mib > MAX_MIB:
        raise QuantityError(f"{quoted(text)} is more than any GPU has; write for example 4Gi")
    return mib


def parse_percent(value: object) -> int:
    """Read a share of one GPU's SMs, ``25%`` or ``25``, and return 1 to 100.

    Raises:
        QuantityError: not a string, not a whole number, or outside 1 to 100.
    """
    text = _text(value, "a percentage such as 25%")
    match = _PERCENT.fullmatch(text)
    if match is None or not 1 <= int(match.group(1)) <= WHOLE_GPU_PERCENT:
        raise QuantityError(f"{quoted(text)} is not a percentage of a GPU; write a whole number from 1% to 100%")
    return int(match.group(1))


def parse_gpus(value: object) -> int:
    """Read a number of GPUs, ``"2"``, and return 1 to 16.

    Raises:
        QuantityError: not a string, not a whole number, or outside 1 to 16.
    """
    text = _text(value, 'a number of GPUs such as "2"')
    if _COUNT.fullmatch(text) is None or int(text) > MAX_GPUS:
        raise QuantityError(f"{quoted(text)} is not a number of GPUs; write a whole number from 1 to {MAX_GPUS}")
    return int(text)


def parse_overcommit(value: object) -> int:
    """Read how many times over compute is given away, ``1.5``, and return percent of one GPU, 100 to 1000.

    Raises:
        QuantityError: not a number, or outside 1 to 10.
    """
    text = _text(value, "a factor such as 1.5")
    percent = int(Fraction(text) * WHOLE_GPU_PERCENT) if _FACTOR.fullmatch(text) else 0
    if not WHOLE_GPU_PERCENT <= percent <= MAX_OVERCOMMIT * WHOLE_GPU_PERCENT:
        raise QuantityError(f"{quoted(text)} is not a factor; write a number from 1 to {MAX_OVERCOMMIT}, such as 1.5")
    return percent


def parse_profile(value: object) -> str:
    """Read the profile of a MIG instance, such as ``1g.10gb`` or ``1c.3g.40gb``, as NVIDIA writes it.

    Raises:
        QuantityError: not a string, or no profile.
    """
    text = _text(value, "a MIG profile such as 1g.10gb")
    if _PROFILE.fullmatch(text) is None:
        meant = text.strip().lower()
        example = meant if _PROFILE.fullmatch(meant) else "1g.10gb"
        raise QuantityError(f"{quoted(text)} is not a MIG profile; write for example {example}")
    return text


def profile_mib(profile: str) -> int:
    """MiB that a profile has by its name; an instance has a little less."""
    return int(profile.partition("+")[0].rpartition(".")[2].removesuffix("gb")) * GIB


def parse_duration(value: object) -> float:
    """Read a duration such as ``5s``, ``500ms`` or ``2m`` and return seconds.

    Raises:
        QuantityError: not a string, no unit, or another unit.
    """
    text = _text(value, "a duration such as 5s")
    match = _SECONDS.fullmatch(text)
    if match is None:
        raise QuantityError(f"{quoted(text)} is not a duration; write for example 5s, 500ms or 2m")
    return int(match.group(1)) * _SECONDS_OF[match.group(2)]


def named(name: str, parse: Callable[[str], T], text: str) -> T:
    """Read a setting by one of these parsers.

    Raises:
        ConfigError: it cannot be read; the message names the setting.
    """
    try:
        return parse(text)
    except QuantityError as error:
        raise ConfigError(f"{name}: {error.message}") from error


def same_quantity(one: object, other: object) -> bool:
    """Tell whether two of Kubernetes' own quantities, such as ``1`` and ``1000m``, are as much."""
    if type(one) is type(other) and one == other:
        return True
    amounts = (exact_value(one), exact_value(other))
    return None not in amounts and amounts[0] == amounts[1]


def is_zero(text: str) -> bool:
    """Tell whether the API server takes a text as a quantity of nothing."""
    match = _AMOUNT.fullmatch(text)
    return match is not None and not match[1].strip("+-.0")


def exact_value(value: object) -> Fraction | None:
    """Read what the API server takes as a quantity; ``None`` for anything else."""
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    number, suffix, exponent = Fraction(match[1]), match[2] or "", match[3] or "0"
    if suffix.endswith("i"):
        return number * Fraction(1024) ** (_BINARY.index(suffix[0]) + 1)
    return number * Fraction(10) ** (_POWERS.get(suffix, 0) + int(exponent))


def format_mib(mib: int) -> str:
    """Write MiB the way people do: ``4Gi`` where it is whole, else ``4097Mi``."""
    return f"{mib // 1024}Gi" if mib % 1024 == 0 and mib else f"{mib}Mi"


def quoted(text: str) -> str:
    """Quote a value for a message: escaped, and cut where it is long."""
    return ascii(text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH] + "...")


def _text(value: object, wanted: str) -> str:
    if not isinstance(value, str):
        raise QuantityError(f"{value!r:.40} is not a string; write {wanted}, in quotes")
    if len(value) > MAX_LENGTH:
        raise QuantityError(f"{quoted(value)} is too long; write {wanted}")
    return value


def _memory_hint(text: str) -> str:
    """Say what to write, and nothing that would be refused as well."""
    if _BARE.fullmatch(text) and _is_memory(f"{text}Mi"):
        return f"did you mean {text}Mi?"
    if match := _BYTES.fullmatch(text):
        number, unit = match.group(1), match.group(2).upper()
        if unit == "K":
            return "write Mi, Gi, Ti, M, G or T"
        if _is_memory(f"{number}{unit}i"):
            return f"write {number}{unit}i or {number}{unit}"
    return "write for example 4Gi or 512Mi (suffixes Mi, Gi, Ti, M, G, T)"


def _is_memory(text: str) -> bool:
    try:
        return parse_memory(text) > 0
    except QuantityError:
        return False
