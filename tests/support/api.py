"""An API server for tests: objects by their path, and failures when they are wanted."""

import copy
from collections.abc import Iterator
from typing import Any

from gpushare.errors import ClusterError

Object = dict[str, Any]


class Api:
    """Answers what ``gpushare.kube_client.KubeClient`` is asked for single objects."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.down = False
        self.patched: list[tuple[str, Object, str]] = []
        self.created: list[tuple[str, Object]] = []
        self.refuse_patches = False
        self.asked = 0

    def get(self, where: str, **_: Any) -> Object:
        self.asked += 1
        if self.down:
            raise ClusterError(f"GET {where}: the API server does not answer: refused")
        if where not in self.objects:
            raise ClusterError(f"GET {where}: not found", 404)
        return copy.deepcopy(self.objects[where])

    def listing(self, where: str, **_: str) -> Iterator[Object]:
        if self.down:
            raise ClusterError(f"GET {where}: the API server does not answer: refused")
        kind = where.rpartition("/")[2]
        yield from [copy.deepcopy(item) for name, item in self.objects.items() if f"/{kind}/" in name]

    def list(self, where: str, **_: str) -> tuple[list[Object], str]:
        return list(self.listing(where)), "1"

    def create(self, where: str, body: Object, **_: str) -> Object:
        self.created.append((where, body))
        return body

    def patch(self, where: str, body: Object, content_type: str, **_: str) -> Object:
        if self.refuse_patches:
            raise ClusterError(f"PATCH {where}: forbidden", 403)
        self.patched.append((where, body, content_type))
        return body
