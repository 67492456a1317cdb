"""Pods with claims of NVIDIA's DRA driver, drawn by kind, and what quotas follow from their allocations.

It shares no code with the product: the amounts are those that were drawn, the GPUs those that the scheduler named.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import CLAIMS, TEMPLATES
from tests.integration.controlplane.nvidia_driver import GPU_CLASS, MIG_CLASS, WHOLE_GPU
from tests.integration.controlplane.objects import Object

Rows = dict[tuple[str, str, str], int]
"""MiB by pod UID, container and GPU."""
LASTING: Final = {"main", "second", "proxy"}
SHAPES: Final[Mapping[str, Sequence[Sequence[tuple[str, ...]]]]] = {
    "one container": [[("main",)]],
    "an init container, too": [[("main", "warm")]],
    "a sidecar": [[("proxy",)]],
    "each its own": [[("main",), ("second",)]],
    "several claims": [[("main",)], [("main",), ("main",)]],
    "two containers": [[("main", "second")]],
    "a sidecar beside": [[("main", "proxy", "warm")]],
    "nobody that lasts": [[("warm",)]],
    "one of two cannot be read": [[("main",)], [("main", "second")]],
}
"""By kind: of each claim, of each request, who uses it."""
WHOLE: Final = ("a whole GPU", "a whole extended resource")
"""Kinds that need an empty card."""
MANY: Final = (*SHAPES, "two pods", "admin access")
KINDS: Final = (*WHOLE, "an instance", *MANY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pod, or two with the same claim. ``named``: its claims exist before it, without a template."""

    kind: str
    name: str
    shape: Sequence[Sequence[tuple[str, ...]]]
    amounts: Mapping[str, tuple[str, int]]
    """By request, what is asked for, and how many whole MiB that takes."""
    named: bool

    def pod_names(self) -> list[str]:
        return [f"p{self.name}{twin}" for twin in ("a", "b")[: 2 if self.kind == "two pods" else 1]]

    def objects(self) -> Iterator[tuple[str, Object]]:
        """Yield the claims, or their templates."""
        for number, requests in enumerate(self.shape):
            asked = [self._request(f"r{number}{index}") for index in range(len(requests))]
            meta, spec = {"name": f"c{self.name}-{number}"}, {"devices": {"requests": asked}}
            yield (CLAIMS, {"metadata": meta, "spec": spec}) if self.named else (
                TEMPLATES, {"metadata": meta, "spec": {"spec": spec}},
            )  # fmt: skip

    def pods(self, node: str) -> Iterator[Object]:
        for name in self.pod_names():
            pod = objects.pod(name, node=node)
            key = "resourceClaimName" if self.named else "resourceClaimTemplateName"
            pod["spec"] |= {
                "containers": [self._container("main"), self._container("second")],
                "initContainers": [self._container("proxy") | {"restartPolicy": "Always"}, self._container("warm")],
                "resourceClaims": [
                    {"name": f"e{number}", key: f"c{self.name}-{number}"} for number in range(len(self.shape))
                ],
            }
            yield pod

    def add(
        self, pod: Object, claims: Mapping[str, Object], uuids: Mapping[str, str], rows: Rows, causes: dict[str, str]
    ) -> None:
        """Add the quotas of a pod, and the cause of each claim that gives none to somebody who uses it."""
        made = {each["name"]: each["resourceClaimName"] for each in pod["status"].get("resourceClaimStatuses") or ()}
        if extended := pod["status"].get("extendedResourceClaimStatus"):
            causes[extended["resourceClaimName"]] = "whole"
        read: list[tuple[str, str, tuple[str, ...], str]] = []
        for number, requests in enumerate(self.shape):
            name = f"c{self.name}-{number}" if self.named else made[f"e{number}"]
            for result in claims[name]["status"]["allocation"]["devices"]["results"]:
                index = int(result["request"][-1])
                read.append((name, result["request"], requests[index], uuids[result["device"]]))
        cannot = {(user, gpu) for _, _, users, gpu in read if self._cause(users) for user in users}
        for claim, request, users, gpu in read:
            if cause := self._cause(users):
                causes[claim] = cause
            elif any((user, gpu) in cannot for user in users):
                causes.setdefault(claim, "beside")
            for user in users if not cause else ():
                if (user, gpu) not in cannot:
                    key = (pod["metadata"]["uid"], user, gpu)
                    rows[key] = rows.get(key, 0) + self.amounts[request][1]

    def _cause(self, users: Sequence[str]) -> str:
        """Name why a request gives no quota; empty: it gives one."""
        by_kind = {"two pods": "shared", "admin access": "adminAccess", "a whole GPU": "whole"}
        return by_kind.get(self.kind) or ("" if len(LASTING & {*users}) == 1 else "users")

    def _request(self, name: str) -> Object:
        exactly: Object = {"deviceClassName": MIG_CLASS if self.kind == "an instance" else GPU_CLASS}
        if self.kind == "admin access":
            exactly["adminAccess"] = True
        elif self.kind != "a whole GPU":
            exactly["capacity"] = {"requests": {"memory": self.amounts[name][0]}}
        return {"name": name, "exactly": exactly}

    def _container(self, name: str) -> Object:
        made: Object = {"name": name, "image": "example.invalid/app:1"}
        if self.kind == "a whole extended resource":
            return made | ({"resources": {"limits": {WHOLE_GPU: "1"}}} if name == "main" else {})
        used = []
        for number, requests in enumerate(self.shape):
            mine = [f"r{number}{index}" for index, users in enumerate(requests) if name in users]
            every = len(mine) == len(requests)
            used += [{"name": f"e{number}"}] if every else [{"name": f"e{number}", "request": each} for each in mine]
        return made | {"resources": {"claims": used}}


def draw(dice: random.Random, name: str, kind: str, mib: int | None = None) -> Case:
    """Draw a case of this kind; each of its requests is for ``mib`` where that is given."""
    shape = [] if kind == "a whole extended resource" else SHAPES.get(kind, SHAPES["one container"])
    names = [f"r{number}{index}" for number, requests in enumerate(shape) for index in range(len(requests))]
    amounts = {each: _amount(dice) if mib is None else (f"{mib}Mi", mib) for each in names}
    named = kind == "two pods" or (kind in SHAPES and dice.random() < 0.3)
    return Case(kind=kind, name=name, shape=shape, amounts=amounts, named=named)


def _amount(dice: random.Random) -> tuple[str, int]:
    """An amount in some spelling, and the whole MiB that it takes: the driver's step is 1Mi, counted upwards."""
    mib = dice.randint(64, 4096)
    return dice.choice(
        [
            (f"{mib}Mi", mib), (f"{mib * 1024}Ki", mib), (f"{mib * 2**20}", mib), (f"{mib * 2**20 - 1}", mib),
            ("1.5Gi", 1536), ("2Gi", 2048), ("1G", 954), ("2500M", 2385),
        ]
    )  # fmt: skip
