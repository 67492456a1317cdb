"""An API server of a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpushare import contract
from gpushare.errors import ClusterError


class Api:
    """Answers like ``Cluster``, from a table of paths; a number is an HTTP error.

    ResourceSlices without a driver are gpu-share's. Nodes and namespaces without the label that opts in have it.
    """

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        for each in answers["resourceslices"] if isinstance(answers.get("resourceslices"), list) else ():
            each["spec"].setdefault("driver", contract.DRIVER)
        for kind, label in (("nodes", contract.NODE_LABEL), ("namespaces", contract.NAMESPACE_LABEL)):
            for each in answers[kind] if isinstance(answers.get(kind), list | tuple) else ():
                each.setdefault("metadata", {}).setdefault("labels", {}).setdefault(label, "true")

    def get(self, where: str) -> Any:
        found = self.answers.get(where.rsplit("/", 1)[-1], 404)
        if isinstance(found, int):
            raise ClusterError(f"GET {where}: {found}", found)
        return found

    def list(self, where: str, **_query: str) -> tuple[Any, str]:
        return self.get(where), "1"

    def listing(self, where: str, **query: str) -> Iterator[Any]:
        return iter(self.list(where, **query)[0])

    def create(self, where: str, body: Any, **query: str) -> Any:
        assert query == {"dryRun": "All"}
        return self.get(where) or body
