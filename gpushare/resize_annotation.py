"""What an annotation ``resize.gpu-share.io/<container>`` says: another quota for a container that runs. Pure.

``3Gi`` is enough. ``3Gi;force`` also ends a process that holds more than that. ``3Gi;id=5f3a`` is a new request each
time its mark is another one, and the answer names the mark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare import contract
from gpushare.errors import QuantityError
from gpushare.patterns import Pattern
from gpushare.quantity import parse_memory, quoted

FORCE: Final = "force"
MAX_LENGTH: Final = 80
"""Characters; what is longer is read by nobody."""
_MARK: Final = Pattern(r"id=[0-9a-z]{1,16}", 19)


@dataclass(frozen=True, slots=True)
class ResizeRequest:
    """Another quota for one container: MiB, and whether a process above it may be ended for it."""

    memory_mib: int
    force: bool = False


def parse_request(value: object) -> ResizeRequest:
    """Read what an annotation says.

    Raises:
        QuantityError: it is not a quantity of memory, or another word than ``force`` and ``id=...`` follows.
    """
    if not isinstance(value, str) or len(value) > MAX_LENGTH:
        raise QuantityError(f"the value is not a string of at most {MAX_LENGTH} characters; write for example 3Gi")
    amount, *words = value.split(";")
    wrong = [word for word in words if word != FORCE and not _MARK.fullmatch(word)]
    if wrong:
        raise QuantityError(f"{quoted(wrong[0])} is an unknown option; write for example 3Gi or 3Gi;{FORCE}")
    return ResizeRequest(parse_memory(amount), FORCE in words)


def format_request(request: ResizeRequest, mark: str) -> str:
    """Write a request as an annotation; ``mark`` is up to 16 small letters and digits."""
    return f"{request.memory_mib}Mi" + (f";{FORCE}" if request.force else "") + f";id={mark}"


def requests_in(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Collect, by container, the requests; values as they are."""
    return {
        key.removeprefix(contract.RESIZE_OF): value
        for key, value in annotations.items()
        if key.startswith(contract.RESIZE_OF)
    }
