"""Read the values of annotations that are no plain quantity. Pure.

Each parser takes the value as it is, and raises ``QuantityError`` with the value and what to write instead.
``gpushare.annotation_table`` says which annotation has which parser.
"""

from collections.abc import Callable, Mapping
from typing import Final

from gpushare import fractions, framework_variables
from gpushare.errors import QuantityError
from gpushare.host_access import CAPABILITIES as HOST_CAPABILITIES
from gpushare.host_access import OF_EVERY_NODE, STEERING, capability, normal, overlaps
from gpushare.patterns import Pattern
from gpushare.quantity import parse_memory, parse_percent, quoted
from gpushare.reasons import Reason

CAPABILITIES: Final = ("compute", "utility", "compat32", "display", "graphics", "ngx", "video")
"""Those that NVIDIA's container toolkit knows, without ``all``."""
NONE: Final = "none"
"""Of ``gpu-share.io/frameworks`` and ``gpu-share.io/default-compute``."""
BY_MEMORY: Final = "memory"
"""Of ``gpu-share.io/default-compute``: as much of the SMs as the share is of the memory."""
ON_REQUEST: Final = tuple(sorted({*framework_variables.ON_REQUEST, *fractions.ON_REQUEST}))
"""What ``gpu-share.io/frameworks`` may name: frameworks that get variables, or the fraction in their command line."""
MAX_LIST: Final = 4096
"""Characters of a list in an annotation."""
MAX_PATHS: Final = 64
MAX_MODELS: Final = 16
"""The API server refuses a selector of more than 10 KiB."""
_MODEL: Final = Pattern(r"[A-Za-z0-9 ._-]{1,63}", 63)
_BOOLEANS: Final = {
    **dict.fromkeys(("yes", "y", "on", "1", "t"), "true"),
    **dict.fromkeys(("no", "n", "off", "0", "f"), "false"),
}
"""What people write for true and false."""


def choice(options: Mapping[str, str]) -> Callable[[object], str]:
    """Make the parser of one word out of several; ``options`` says what each does."""

    def parse(value: object) -> str:
        if isinstance(value, str) and value in options:
            return value
        word = str(value).strip().lower()
        meant = word if word in options else _BOOLEANS.get(word)
        described = " or ".join(f'"{each}" ({does})' for each, does in options.items())
        advice = f'"{meant}"' if meant in options else described
        known = " or ".join(f'"{each}"' for each in options)
        raise QuantityError(f"{quoted(str(value))} is not {known}; write {advice}", Reason.INVALID_VALUE)

    return parse


def parse_default_compute(value: object) -> int | str:
    """Read what a container has of a GPU's compute that asks for none: ``none``, ``memory``, or 1 to 100 percent."""
    if value in {NONE, BY_MEMORY}:
        return str(value)
    try:
        return parse_percent(value)
    except QuantityError as error:
        message = f'{quoted(str(value))} is not "{NONE}", "{BY_MEMORY}" or a percentage; write for example 25%'
        raise QuantityError(message, error.reason) from error


def parse_models(value: object) -> tuple[str, ...]:
    """Read models of GPUs with commas between them: lower-case names, sorted, each once."""
    names = [name.strip(" ") for name in value.split(",", MAX_MODELS)] if isinstance(value, str) else [""]
    bad = next((name for name in names[:MAX_MODELS] if not _MODEL.fullmatch(name)), None)
    if bad is not None or len(names) > MAX_MODELS:
        problem = f"is more than {MAX_MODELS} models" if bad is None else "is not a GPU model"
        message = f'{quoted(bad or str(value))} {problem}; write for example "H100" or "H100,A100"'
        raise QuantityError(message, Reason.INVALID_VALUE)
    return tuple(sorted({name.lower() for name in names}))


def only(word: str) -> Callable[[object], bool]:
    """Return a parser of one word."""

    def parse(value: object) -> bool:
        if value != word:
            raise QuantityError(
                f"{quoted(str(value))} is not {word!r:.80}; write {word!r:.80}, or remove the annotation"
            )
        return True

    return parse


def parse_tolerance(value: object) -> int:
    """Read MiB, or percent where the value ends in ``%``."""
    return parse_percent(value) if isinstance(value, str) and value.endswith("%") else parse_memory(value)


def parse_paths(value: object) -> tuple[str, ...]:
    """Read absolute host paths that tenants may mount."""
    paths = _words(value)
    if len(paths) > MAX_PATHS:
        raise QuantityError(f"the list has {len(paths)} paths, more than the maximum of {MAX_PATHS}; remove some")
    for path in paths:
        if not path.startswith("/"):
            raise QuantityError(f"{quoted(path)} is not an absolute path; write paths such as /data,/scratch")
        if overlaps(normal(path), OF_EVERY_NODE):
            raise QuantityError(f"{quoted(path)} contains files of node services; remove it from the list")
    return tuple(normal(path) for path in paths)


def parse_added(value: object) -> tuple[str, ...]:
    """Read Linux capabilities that containers may add."""
    found = [capability(each) for each in _words(value)]
    for each in found:
        if not each.replace("_", "").isalpha():
            raise QuantityError(f"{quoted(each)} is not a Linux capability; write names such as IPC_LOCK,SYS_NICE")
        if each in HOST_CAPABILITIES:
            raise QuantityError(f"{quoted(each)} lets a container bypass its GPU limit; remove it from the list")
    return tuple(dict.fromkeys(found))


def parse_variables(value: object) -> tuple[str, ...]:
    """Read names of variables that NVIDIA's container toolkit may read."""
    found = _words(value)
    for each in found:
        if not each.startswith(STEERING):
            raise QuantityError(f"{quoted(each)} does not begin with {STEERING}, so it needs no permission; remove it")
    return tuple(dict.fromkeys(found))


def parse_capabilities(value: object) -> tuple[str, ...]:
    """Read driver capabilities of NVIDIA's container toolkit."""
    found = _words(value)
    for each in found:
        if each not in CAPABILITIES:
            raise QuantityError(f"{quoted(each)} is not a driver capability; write any of {', '.join(CAPABILITIES)}")
    return tuple(dict.fromkeys(found))


def parse_frameworks(value: object) -> tuple[str, ...] | None:
    """Read the frameworks that get variables on request; ``None``: no framework gets any."""
    found = _words(value)
    for each in found:
        if each not in ON_REQUEST and found != [NONE]:
            raise QuantityError(f"{quoted(each)} is unknown; write any of {', '.join(ON_REQUEST)}, or only {NONE!r}")
    return None if found == [NONE] else tuple(dict.fromkeys(found))


def _words(value: object) -> list[str]:
    """Read a comma-separated list of at least one word."""
    text = value if isinstance(value, str) else ""
    words = [word.strip(" ") for word in text.split(",")] if len(text) <= MAX_LIST else []
    if not words or not all(words):
        raise QuantityError(f"{quoted(str(value)[:MAX_LIST])} is not a comma-separated list; write for example a,b")
    return words
