"""What to write instead of an annotation that YAML did not read as a string: something that is accepted. Pure.

What somebody meant is guessed from what they wrote, and tried by the product's own readers; where no guess can be read,
the advice is an example.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare import contract
from gpushare.errors import PolicyDenied, QuantityError
from gpushare.namespace_policy import NamespacePolicy
from gpushare.quantity import DEFAULT_MIN_MIB, parse_gpus, parse_memory, parse_percent, parse_profile
from webhook.mutation.annotations import PRIORITIES, SAME_GPU, read_models

Read = Callable[[str], object]
"""Raises ``QuantityError`` or ``PolicyDenied`` where a text is no value of an annotation."""


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of an annotation: an example for people, what reads them, and what a bare number of them lacks."""

    example: str
    read: Read
    unit: str = ""


def no_string(key: str, value: object) -> str:
    """Say what to write instead of an annotation, of a pod or a namespace, that YAML did not read as a string."""
    values = _VALUES.get(key) or next((_VALUES[wide] for of, wide in _OF.items() if key.startswith(of)), None)
    # An unknown key is refused next, by whoever says which there are.
    advice = "write one, in quotes" if values is None else _advice(values, value)
    return f"{json.dumps(value):.40} is not a string, and annotations are strings; {advice}"


def _advice(values: _Values, value: object) -> str:
    meant = _guess(values, value)
    if meant is None or not _accepts(values, meant):
        return f"write for example {values.example}"
    return f"write {meant}, in quotes where YAML would read it as something else" if values.unit else f'write "{meant}"'


def _guess(values: _Values, value: object) -> str | None:
    """Guess what somebody meant who wrote a number, or true or false, without quotes."""
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"{int(value) if value == int(value) else value}{values.unit}"
    return None


def _accepts(values: _Values, text: str) -> bool:
    try:
        values.read(text)
    except (PolicyDenied, QuantityError):
        return False
    return True


def _share(text: str) -> None:
    if parse_memory(text) < DEFAULT_MIN_MIB:
        raise QuantityError(f"{text} is less than a share has")


def _one_of(allowed: Mapping[str, str]) -> Read:
    def read(text: str) -> None:
        if text not in allowed:
            raise QuantityError(f"{text} is none of {', '.join(allowed)}")

    return read


def _policy(key: str) -> Read:
    return lambda text: NamespacePolicy.from_annotations({key: text})


_VALUES: Final[Mapping[str, _Values]] = {
    contract.MEMORY: _Values("4Gi", _share, "Mi"),
    contract.COMPUTE: _Values("25%", parse_percent, "%"),
    contract.PRIORITY: _Values("low or normal", _one_of(PRIORITIES)),
    contract.GPU_MODEL: _Values('"H100" or "H100,A100"', lambda text: read_models({contract.GPU_MODEL: text})),
    contract.SAME_GPU: _Values('"true" or "false", in quotes', _one_of(SAME_GPU)),
    contract.GPUS: _Values('"2", in quotes', parse_gpus),
    contract.MIG_PROFILE: _Values("1g.10gb", parse_profile),
    contract.DEFAULT_MEMORY: _Values("4Gi", _policy(contract.DEFAULT_MEMORY), "Mi"),
    contract.DEFAULT_COMPUTE: _Values("25%", _policy(contract.DEFAULT_COMPUTE), "%"),
    contract.MAX_MEMORY: _Values("4Gi", _policy(contract.MAX_MEMORY), "Mi"),
    contract.MAX_COMPUTE: _Values("25%", _policy(contract.MAX_COMPUTE), "%"),
    contract.ON_EXCEED: _Values("kill, kill-container or warn", _policy(contract.ON_EXCEED)),
    contract.GRACE_PERIOD: _Values("5s", _policy(contract.GRACE_PERIOD), "s"),
    contract.TOLERANCE: _Values("256Mi or 5%", _policy(contract.TOLERANCE), "Mi"),
    contract.OWN_CLAIMS: _Values("any", _policy(contract.OWN_CLAIMS)),
    contract.HOST_PATHS: _Values("/mnt/models,/scratch", _policy(contract.HOST_PATHS)),
    contract.ALLOWED_CAPABILITIES: _Values("compute,utility,video", _policy(contract.ALLOWED_CAPABILITIES)),
    contract.FRAMEWORKS: _Values("jax, torch or none", _policy(contract.FRAMEWORKS)),
}
_OF: Final = {
    contract.MEMORY_OF: contract.MEMORY,
    contract.COMPUTE_OF: contract.COMPUTE,
    contract.MIG_PROFILE_OF: contract.MIG_PROFILE,
    contract.GPUS_OF: contract.GPUS,
}
"""The pod-wide key whose values those of a container are."""
