"""Search for the body that costs most for its size: random changes of pods, of which the worst are changed further.

A change repeats, stretches, renames, replaces, moves or removes a random part of a pod, or mixes two pods. Names and
values come from the product's own vocabulary, so that a change can hit what the webhook looks for.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare import contract
from gpushare.annotation_table import CONTAINER_PREFIXES, OF_PODS
from tests.support.bodies import families
from tests.support.bodies.families import FAMILIES, Json, encoded
from webhook.mutation.other_gpu_systems import ANNOTATIONS, RESOURCES
from webhook.mutation.podview import RESERVED

KEPT: Final = 12
"""Pods that are changed further."""
MOST_CHANGES: Final = 3
MOST_TIMES: Final = 512
SEED_SIZE: Final = 64
"""Entries of a family's pod before the search changes it."""
FIELDS: Final = (
    "name", "env", "value", "valueFrom", "resources", "limits", "requests", "claims", "request", "volumes", "hostPath",
    "path", "volumeMounts", "mountPath", "mountPropagation", "securityContext", "capabilities", "add", "privileged",
    "runAsUser", "runAsNonRoot", "initContainers", "containers", "ephemeralContainers", "restartPolicy", "image",
    "command", "args", "annotations", "labels", "resourceClaims", "resourceClaimName", "resourceClaimTemplateName",
    "tolerations", "affinity", "nodeName", "schedulerName", "hostPID", "emptyDir", "volumeDevices", "ports",
)  # fmt: skip
WORDS: Final = (
    *FIELDS, *OF_PODS, *(prefix + "main" for prefix in CONTAINER_PREFIXES), *RESERVED, *RESOURCES, *ANNOTATIONS,
    *contract.RETIRED, contract.CLAIM, contract.SIDECAR, contract.WHOLE_GPU, contract.NO_TOKEN_VOLUME, "cpu", "memory",
    "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "cdi.k8s.io/a", "Bidirectional", "Always", "CAP_SYS_ADMIN",
    "/dev", "/data/63", "/var/run/../run", "/run/nvidia-container-devices/a", "NVIDIA_X", "0", "0e-99", "1Gi", "4Gi",
    "9" * 18, ".000000000", "vllm serve", "torchrun --nproc-per-node=2", "mpirun -np 2", "ab" * 30, "aabb" * 15,
    "\u00e9", "\u2028", "\\", '"', " ", "=", ",", "own", "other",
)  # fmt: skip
VALUES: Final[tuple[Any, ...]] = (None, True, 0, -1, 10**19, 1.5, "", [], {})
Place = tuple[Any, Any]
"""A list or object, and an index or key in it."""


@dataclass
class Search:
    """Looks for the pod whose review has the greatest ``score``, within ``room`` bytes."""

    score: Callable[[bytes], float]
    room: int
    chance: random.Random
    best: list[tuple[float, bytes, str]] = field(default_factory=list)
    """Score, body and the family that it comes from; the worst come first, one of each family."""
    tried: int = 0

    def begin(self) -> None:
        """Try each family as it is, filling the room."""
        for name, family in FAMILIES.items():
            self._try(families.largest(family, self.room), name)

    def step(self) -> None:
        """Try a change of one of the worst."""
        pod, name = self._parent()
        for _ in range(self.chance.randint(1, MOST_CHANGES)):
            self._change(pod)
        body = encoded(pod)
        if len(body) <= self.room:
            self._try(body, name)

    def _parent(self) -> tuple[Json, str]:
        if not self.best or self.chance.random() < 1 / 4:
            name = self.chance.choice([*FAMILIES])
            return FAMILIES[name](self.chance.randint(1, SEED_SIZE)), name
        _, body, name = self.chance.choice(self.best)
        return json.loads(body)["request"]["object"], name

    def _try(self, body: bytes, name: str) -> None:
        self.tried += 1
        found = {each: (score, one) for score, one, each in self.best}
        score = self.score(body)
        if score > found.get(name, (0.0,))[0]:
            found[name] = score, body
            ranked = sorted(((*each, family) for family, each in found.items()), reverse=True)
            self.best = [(score, one, family) for score, one, family in ranked][:KEPT]

    def _change(self, pod: Json) -> None:
        changes = (_repeat, _repeat, _stretch, _rename, _replace, _add, _mix, _drop)
        places = list(_places(pod))
        self.chance.choice(changes)(self.chance, *self.chance.choice(places))


def _places(node: Any, most: int = 2000) -> Iterator[Place]:
    """Name the places of a tree, breadth first."""
    queue, seen = [node], 0
    for each in queue:
        for key in range(len(each)) if isinstance(each, list) else list(each):
            seen += 1
            if seen > most:
                return
            yield each, key
            if isinstance(each[key], dict | list):
                queue.append(each[key])


def _repeat(chance: random.Random, parent: Any, key: Any) -> None:
    """Put copies of a value beside it, each with a name of its own where it has one."""
    for number in range(chance.randint(1, MOST_TIMES)):
        one = copy.deepcopy(parent[key])
        if isinstance(one, dict) and isinstance(one.get("name"), str) and number % 8:
            one["name"] += str(number)
        if isinstance(parent, list):
            parent.append(one)
        else:
            parent[f"{key}{number}"] = one


def _stretch(chance: random.Random, parent: Any, key: Any) -> None:
    times = chance.choice([2, 16, 256])
    if isinstance(parent[key], str):
        parent[key] *= times
    elif isinstance(parent[key], list) and parent[key]:
        parent[key] += copy.deepcopy(parent[key][: MOST_TIMES // 4]) * min(times, 16)


def _rename(chance: random.Random, parent: Any, key: Any) -> None:
    if isinstance(parent, dict):
        word = chance.choice(WORDS)
        parent[chance.choice([word, key + word[:8], word + key, key[:-1], key.upper()])] = parent.pop(key)


def _replace(chance: random.Random, parent: Any, key: Any) -> None:
    parent[key] = chance.choice([chance.choice(WORDS), copy.deepcopy(chance.choice(VALUES))])


def _add(chance: random.Random, parent: Any, key: Any) -> None:
    if isinstance(parent[key], dict):
        parent[key][chance.choice(WORDS)] = chance.choice(WORDS)


def _mix(chance: random.Random, parent: Any, key: Any) -> None:
    """Take what another family has at a place of this name."""
    other = FAMILIES[chance.choice([*FAMILIES])](chance.randint(1, SEED_SIZE))
    found = [one[name] for one, name in _places(other) if name == key]
    if found and not isinstance(key, int):
        parent[key] = chance.choice(found)


def _drop(_chance: random.Random, parent: Any, key: Any) -> None:
    del parent[key]
