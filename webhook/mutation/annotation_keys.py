"""Check the keys of a pod's annotations of our domain, and find which key a mistyped one means. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import contract
from gpushare.annotation_table import CONTAINER_PREFIXES, OF_PODS, TABLE
from gpushare.errors import Problem
from gpushare.findings import Findings
from gpushare.quantity import quoted
from gpushare.reasons import Reason
from gpushare.suggestion import nearest
from webhook.mutation.podview import Kind, PodView

KEY_SHOWN: Final = 120
MAX_NAME: Final = 63
"""Characters of a container's name, to the API server. Longer ones are not compared for a hint."""
MAX_HINTS: Final = 8
"""Containers with whose annotations a mistyped key is compared, and that a message names."""
_NOT_OFFERED: Final = {
    "compute-limit": f"is not offered: MPS cannot lower the percentage of a running client, so nobody could be given "
    f"back the compute that it reserved; remove it, and write {contract.COMPUTE}",
    "frameworks-use": f"is not offered: frameworks get what a container reserves, because one that takes all at its "
    f"start would be killed for it; remove it, and write {contract.MEMORY} as large as they need",
}
"""Words of keys that one may expect beside ``memory-limit``, and why there is no such annotation."""
MAX_SEARCHES: Final = 3
"""Mistyped keys of one pod for which a similar one is searched."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The annotations that a pod means: mistyped keys have the name that their problem suggests, others are left out.

    ``fields`` gives the fields of such keys as they are written. ``known`` tells whether no key had a problem.
    """

    meant: Mapping[str, Any]
    fields: Mapping[str, str]
    known: bool


def field_of(key: str) -> str:
    """Name a pod annotation in a message."""
    safe = ascii(key[:KEY_SHOWN])[1:-1]
    return f"metadata.annotations[{safe:.{KEY_SHOWN}}]"


def read_keys(findings: Findings, pod: PodView) -> Keys:
    """Find unknown keys and containers, each with a hint."""
    names = _names(pod)
    unknown = _unknown_of(pod.annotations, frozenset(names))
    meant = {key: value for key, value in pod.annotations.items() if key not in unknown}
    fields: dict[str, str] = {}
    for key in contract.RETIRED:
        if key in pod.annotations:
            findings.warn(f"remove the annotation {key}: it has no effect any more")
    for number, key in enumerate(unknown):
        near = _near(names, key) if number < MAX_SEARCHES else ""
        findings.add(_unknown(names, key, near, taken=near in meant))
        if near and near not in meant:
            meant[near] = pod.annotations[key]
            fields[field_of(near)] = field_of(key)
    return Keys(meant, fields, known=not unknown)


def _unknown_of(annotations: Iterable[str], names: frozenset[str]) -> Mapping[str, None]:
    perhaps = [key for key in annotations if key not in OF_PODS and contract.GROUP in key.lower()]
    return dict.fromkeys(sorted(key for key in perhaps if _is_unknown(names, key)) if perhaps else ())


def _is_unknown(names: frozenset[str], key: str) -> bool:
    if key in contract.RETIRED or not contract.is_ours(key):
        return False
    prefix, name = _split(key)
    return prefix not in CONTAINER_PREFIXES or name not in names


def _split(key: str) -> tuple[str, str]:
    end = key.find("/") + 1
    return key[:end], key[end:]


def _names(pod: PodView) -> list[str]:
    """Name the containers that may have a share: ephemeral ones and our sidecar may not."""
    return [each.name for each in pod.containers if each.kind is not Kind.EPHEMERAL and each.name != contract.SIDECAR]


def _near(names: Sequence[str], key: str) -> str:
    """Find the annotation that a mistyped key means; empty if none is near, or if the key is known elsewhere."""
    if _known_elsewhere(key):
        return ""
    prefix, name = _split(key)
    if prefix in CONTAINER_PREFIXES:
        near = nearest(name, _comparable(names))
        return prefix + near if near else ""
    comparable = _comparable(names)[:MAX_HINTS]
    known = [*OF_PODS, *(prefix + name for prefix in CONTAINER_PREFIXES for name in comparable)]
    return nearest(key.lower(), known)


def _unknown(names: Sequence[str], key: str, near: str, *, taken: bool) -> Problem:
    prefix, name = _split(key)
    hint = f"remove this annotation, because the pod also has {near}" if taken else f"did you mean {near}?"
    if prefix in CONTAINER_PREFIXES:
        hint = hint if near else f"it has {', '.join(_comparable(names)[:MAX_HINTS])}"
        message = f"the pod has no container named {quoted(name)}; {hint}"
        return Problem(field_of(key), message, Reason.UNKNOWN_CONTAINER)
    hint = hint if near else f"known are {_known()}"
    return Problem(field_of(key), _known_elsewhere(key) or f"no such annotation; {hint}", Reason.UNKNOWN_ANNOTATION)


def _known_elsewhere(key: str) -> str:
    """Say what a key of ours is that pods do not have as an annotation, or why it is none; empty for an unknown one."""
    share = f"request a share with {contract.MEMORY}: 4Gi"
    if key.startswith(contract.RESIZE_OF):
        return f"resizes a running container only; remove it, and {share}"
    word = key.removeprefix(f"{contract.GROUP}/").partition(f".{contract.GROUP}/")[0]
    if word in _NOT_OFFERED:
        return _NOT_OFFERED[word]
    rows = [row for row in TABLE if row.key == key]
    objects = " and ".join(f"{row.on}s" for row in rows)
    if any(row.label for row in rows):
        return f"is a label of {objects}; remove it, and {share}"
    return f"is an annotation of {objects}; remove it from the pod" if rows else ""


def _known() -> str:
    return ", ".join((*OF_PODS, *(f"{prefix}<container>" for prefix in CONTAINER_PREFIXES)))


def _comparable(names: Iterable[str]) -> list[str]:
    return [name for name in names if len(name) <= MAX_NAME]
