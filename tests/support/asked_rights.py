"""Record which rights an API server would ask of those who call it, and find out whether RBAC rules give them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.errors import ClusterError


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """One right, as RBAC names it; ``name`` is empty for a whole collection."""

    verb: str
    group: str
    resource: str
    name: str = ""


def right(verb: str, where: str) -> Right:
    """Return the right that a call of a path needs."""
    parts = where.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    return Right(verb, group, rest[0], rest[1] if len(rest) > 1 else "")


def given(rules: list[Mapping[str, Any]], wanted: Right) -> bool:
    """Tell whether one of the rules gives a right."""
    return any(
        wanted.verb in rule["verbs"]
        and wanted.group in rule["apiGroups"]
        and wanted.resource in rule["resources"]
        and wanted.name in rule.get("resourceNames", [wanted.name])
        for rule in rules
    )


class Recorder:
    """An API server that holds these lists, by resource, and notes each right that it is asked for.

    A list is streamed as a watch where its reader may watch, so it needs both rights.

    Attributes:
        gets, listed: how often each path was read, as an object or as a list.
    """

    def __init__(self, **lists: list[Any]) -> None:
        self.lists = lists
        self.gets, self.listed = Counter[str](), Counter[str]()
        self.asked: set[Right] = set()

    def get(self, where: str, **_query: str) -> Any:
        if where == "/version":
            return {"gitVersion": "v1.37.1"}
        wanted = right("get", where)
        self.asked.add(wanted)
        self.gets[where] += 1
        found = [each for each in self.lists.get(wanted.resource, ()) if each["metadata"]["name"] == wanted.name]
        if not found:
            raise ClusterError(f"GET {where}: 404", 404)
        return found[0]

    def list(self, where: str, **query: str) -> tuple[list[Any], str]:
        return list(self.listing(where, **query)), "1"

    def listing(self, where: str, **_query: str) -> Iterator[Any]:
        wanted = right("list", where)
        self.asked |= {wanted, right("watch", where)}
        self.listed[where] += 1
        return iter(self.lists.get(wanted.resource, []))

    def acting_as(self, _user: str) -> "Recorder":
        raise ClusterError('serviceaccounts is forbidden: User "jo" cannot impersonate resource "serviceaccounts"', 403)

    def create(self, where: str, body: Any, **query: str) -> Any:
        assert query == {"dryRun": "All"}, "a check makes nothing"
        self.asked.add(right("create", where))
        return body
