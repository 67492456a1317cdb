"""Objects as flat maps of path to leaf, so that two of them can be compared path by path.

Entries of lists that have an identity are addressed by it (``spec.containers[main].env[PATH].value``): what is put in
front of them does not move their paths. Their order is looked at by itself.
"""

import json
import re
from collections import Counter
from typing import Any, Final

IDENTITY: Final = {"volumeMounts": "mountPath", "tolerations": None, "claims": None}
"""List → field that identifies an entry; None is the whole entry. Others go by ``name``, else by position."""
TOKEN_VOLUME: Final = re.compile(r"^kube-api-access-[a-z0-9]{5}$")


def flatten(value: object, where: str = "") -> dict[str, Any]:
    """Path → leaf. Empty lists and objects are leaves, so that losing one shows."""
    if isinstance(value, dict) and value:
        return {k: v for key, child in value.items() for k, v in flatten(child, f"{where}.{key}".lstrip(".")).items()}
    if isinstance(value, list) and value:
        names = list_names(value, where.rpartition(".")[2])
        return {
            k: v for name, each in zip(names, value, strict=True) for k, v in flatten(each, f"{where}[{name}]").items()
        }
    return {where: _same_token(value)}


def list_names(items: list[Any], kind: str) -> list[str]:
    """What the entries of a list are addressed by, in order; a name that comes again carries its count."""
    seen: Counter[str] = Counter()
    names = []
    for position, item in enumerate(items):
        name = _name(item, kind, position)
        seen[name] += 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def orders(value: object, where: str = "") -> dict[str, list[str]]:
    """Path of each list → its entries' names in order."""
    found: dict[str, list[str]] = {}
    if isinstance(value, dict):
        for key, child in value.items():
            found |= orders(child, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        found[where] = names = list_names(value, where.rpartition(".")[2])
        for name, each in zip(names, value, strict=True):
            found |= orders(each, f"{where}[{name}]")
    return found


def _name(item: object, kind: str, position: int) -> str:
    if not isinstance(item, dict):
        return str(position)
    field = IDENTITY.get(kind, "name")
    if field is None:
        return json.dumps(item, sort_keys=True)
    return str(_same_token(item[field])) if field in item else str(position)


def _same_token(value: object) -> object:
    """The volume with a pod's token has a random name; here it is the same in every pod."""
    return "kube-api-access" if isinstance(value, str) and TOKEN_VOLUME.match(value) else value
