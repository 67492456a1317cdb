"""A stand-in for NVIDIA's DRA driver and the scheduler: random nodes, pods and claims, and what follows from them.

Devices are published as the driver does with its gate ConsumableShares (``cmd/gpu-kubelet-plugin``, ``deviceinfo.go``
and ``consumable_shares.go``): names ``gpu-<minor>`` and ``gpu-<minor>-mig-<profile>-<start>-<size>``, unqualified
attributes ``type``, ``uuid`` and ``parentUUID``, capacity ``memory`` in whole MiB. What should follow is worked out
from what was drawn, and shares no code with the product.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from enforcer.nvml.types import Gpu

NODE: Final = "gpu-7"
DRIVER: Final = "gpu.nvidia.com"
TEAM: Final = "asr"
CAPACITY: Final = 40960
"""MiB of each card; a MIG instance has a quarter."""
Object = dict[str, Any]
Row = tuple[str, str, str]
"""Pod UID, container, GPU."""


@dataclass(frozen=True)
class Card:
    name: str
    uuid: str
    kind: str = "gpu"
    parent: str = ""
    capacity: int = CAPACITY
    shared: bool = True
    listed: bool = True
    bad: str = ""


CARDS: Final = (
    Card("gpu-0", "GPU-0"), Card("gpu-1", "GPU-1"),
    Card("gpu-2-mig-19-0-1", "MIG-20", "mig", "GPU-2", CAPACITY // 4),
    Card("gpu-2-mig-19-1-1", "MIG-21", "mig", "GPU-2", CAPACITY // 4),
    Card("gpu-2-mig-19-2-1", "MIG-22", "mig", "GPU-9", CAPACITY // 4, bad="gpu"),
    Card("gpu-3", "GPU-3", shared=False, bad="gpu"),
    Card("gpu-4", "GPU-4", listed=False, bad="gpu"),
    Card("gpu-vfio-5", "GPU-5", "vfio", bad="all"),
    Card("gpu-6", "GPU-6", bad="all"),
)  # fmt: skip
"""The last five: another parent than NVML has, a whole GPU, not in NVML, for virtual machines, a name twice."""


def nvml() -> list[Gpu]:
    """What NVML lists: the wrong parent is only in the slice."""
    found = [(each.uuid, "GPU-2" if each.kind == "mig" else None) for each in CARDS if each.listed]
    return [
        Gpu(
            uuid=uuid, index=index, minor=index, model="A100", memory_mib=CAPACITY, reserved_mib=0,
            compute_capability=(8, 0), pci_bus_id="0", driver_version="580", cuda_version=(13, 0), parent=parent,
        )
        for index, (uuid, parent) in enumerate([*found, ("GPU-2", None)])
    ]  # fmt: skip


def device(card: Card, uuid: str = "") -> Object:
    attributes = {"type": {"string": card.kind}, "uuid": {"string": uuid or card.uuid}, "brand": {"string": "Nvidia"}}
    if card.parent:
        attributes["parentUUID"] = {"string": card.parent}
    made: Object = {
        "name": card.name,
        "attributes": attributes,
        "capacity": {"memory": {"value": f"{card.capacity}Mi"}},
    }
    return made | ({"allowMultipleAllocations": True} if card.shared else {})


def piece(devices: list[Object], generation: int, count: int, **spec: Any) -> Object:
    pool = {"name": NODE, "generation": generation, "resourceSliceCount": count}
    return {"spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices} | spec}


@dataclass
class Result:
    """One result: who uses it, and whether it can be read: not at all (``all``), or but for its amount (``gpu``)."""

    name: str
    users: list[str]
    card: Card
    mib: int
    bad: str = ""
    changes: Object = field(default_factory=dict)
    driver: str = DRIVER


@dataclass
class Claim:
    name: str
    results: list[Result]
    allocated: bool = True
    kind: str = "template"
    reserved: Any = None

    def object(self, pod: str) -> Object:
        made: Object = {"metadata": {"name": self.name, "namespace": TEAM, "uid": f"uid-{self.name}"}, "status": {}}
        if not self.allocated:
            return made
        mine = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}]
        here = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]}
        results = [_result(each) for each in self.results]
        made["status"] = {
            "allocation": {"devices": {"results": results}, "nodeSelector": here},
            "reservedFor": mine
            if self.reserved is None
            else mine[: self.reserved % 2] + mine[:1] * (self.reserved // 2),
        }
        if self.reserved == 3:  # two users: this pod and another one
            made["status"]["reservedFor"][1] = mine[0] | {"name": "other", "uid": "uid-other"}
        return made


def _result(result: Result) -> Object:
    made: Object = {
        "driver": result.driver, "pool": NODE, "device": result.card.name, "request": result.name,
        "shareID": result.name, "consumedCapacity": {"memory": f"{result.mib}Mi"},
    }  # fmt: skip
    return made | result.changes


@dataclass
class Pod:
    name: str
    apps: list[str]
    sidecars: list[str]
    inits: list[str]
    claims: list[Claim]

    def object(self) -> Object:
        """Write the pod as the API server has it, bound and with its claims made."""
        sections: list[tuple[str, list[str], Object]] = [
            ("containers", self.apps, {}),
            ("initContainers", self.sidecars, {"restartPolicy": "Always"}),
            ("initContainers", self.inits, {}),
        ]
        spec: Object = defaultdict(list, {"nodeName": NODE})
        for section, names, more in sections:
            spec[section] += [{"name": name, **more, "resources": {"claims": self._used(name)}} for name in names]
        status: Object = {"resourceClaimStatuses": []}
        for claim in self.claims:
            if claim.kind == "extended":
                pairs = [
                    {"containerName": user, "requestName": each.name} for each in claim.results for user in each.users
                ]
                status["extendedResourceClaimStatus"] = {"resourceClaimName": claim.name, "requestMappings": pairs}
            elif claim.kind == "named":
                spec["resourceClaims"].append({"name": f"e-{claim.name}", "resourceClaimName": claim.name})
            else:
                spec["resourceClaims"].append({"name": f"e-{claim.name}", "resourceClaimTemplateName": "some"})
                status["resourceClaimStatuses"].append({"name": f"e-{claim.name}", "resourceClaimName": claim.name})
        return {
            "metadata": {"name": self.name, "namespace": TEAM, "uid": f"uid-{self.name}"},
            "spec": dict(spec), "status": status,
        }  # fmt: skip

    def _used(self, container: str) -> list[Object]:
        found = []
        for claim in (each for each in self.claims if each.kind != "extended"):
            mine = [each.name for each in claim.results if container in each.users]
            whole = len(mine) == len(claim.results) > 0
            found += [
                {"name": f"e-{claim.name}"} | ({} if whole else {"request": name})
                for name in mine[: 1 if whole else None]
            ]
        return found


class World:
    """A random node."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.complete, self.swapped = self.dice.random() < 0.9, False
        self.pods = [self._pod(f"p{seed}-{number}") for number in range(self.dice.randint(1, 3))]
        self.own = {
            (f"uid-{pod.name}", card.uuid)
            for pod in self.pods
            for card in CARDS[:4]
            if seed % 4 == 0 and self.dice.random() < 0.2
        }

    def slices(self) -> list[Object]:
        """Return what is published: two slices, old ones, another node's, and another driver's."""
        other = {"GPU-0": "GPU-1", "GPU-1": "GPU-0"} if self.swapped else {}
        devices = [device(card, other.get(card.uuid, "")) for card in CARDS] + [device(CARDS[-1], "GPU-7")]
        cut = self.dice.randint(0, len(devices))
        newest = [piece(devices[:cut], 4, 2), piece(devices[cut:], 4, 2)]
        old = [piece([device(card, "GPU-old") for card in CARDS], 3, 1)] if self.dice.random() < 0.3 else []
        wrong = [device(card, "GPU-wrong") for card in CARDS]
        beside = [piece(wrong, 9, 1, nodeName="gpu-8"), piece(wrong, 9, 1, driver="gpu-share.io")]
        found = [*old, *beside, *(newest if self.complete else newest[:1])]
        self.dice.shuffle(found)
        return found

    def claims(self) -> list[Object]:
        return [claim.object(pod.name) for pod in self.pods for claim in pod.claims]

    def expected(self) -> tuple[dict[Row, int], set[str]]:
        """Return the MiB of each container on each GPU, and the claims of which something gives no quota."""
        rows: dict[Row, int] = {}
        findings: set[str] = set()
        for pod in self.pods:
            judged = {id(each): self._judge(pod, claim, each) for claim in pod.claims for each in claim.results}
            for container in [*pod.apps, *pod.sidecars, *pod.inits]:
                self._sum_up(pod, container, judged, rows)
            for claim in (each for each in pod.claims if each.allocated):
                for each in (each for each in claim.results if each.driver == DRIVER):
                    given = [(f"uid-{pod.name}", user, each.card.uuid) in rows for user in each.users]
                    if judged[id(each)] or not all(given):
                        findings.add(claim.name)
        return rows, findings

    def _sum_up(self, pod: Pod, container: str, judged: dict[int, str], rows: dict[Row, int]) -> None:
        mine = [(claim, each) for claim in pod.claims for each in claim.results if container in each.users]
        if any(not claim.allocated for claim, _ in mine):
            return
        mine = [(claim, each) for claim, each in mine if each.driver == DRIVER]
        if any(judged[id(each)] == "all" for _, each in mine):
            return
        spoilt = {each.card.uuid for _, each in mine if judged[id(each)] == "gpu"}
        for _, each in mine:
            uuid = each.card.uuid
            if not judged[id(each)] and uuid not in spoilt:
                key = (f"uid-{pod.name}", container, uuid)
                rows[key] = rows.get(key, 0) + each.mib

    def _judge(self, pod: Pod, claim: Claim, result: Result) -> str:
        """Return '' for a result that gives a quota, ``gpu`` for one that spoils its GPU, ``all`` for all GPUs."""
        if claim.reserved not in {None, 1} or result.bad == "all" or result.card.bad == "all" or not self.complete:
            return "all"
        lasting = [each for each in result.users if each in pod.apps or each in pod.sidecars]
        own = (f"uid-{pod.name}", result.card.uuid) in self.own
        if self.swapped and result.card in CARDS[:2]:
            return "all"
        return "gpu" if result.bad or result.card.bad or len(lasting) != 1 or own else ""

    def _pod(self, name: str) -> Pod:
        dice = self.dice
        apps = [f"app{number}" for number in range(dice.randint(1, 3))]
        sidecars, inits = ["proxy"] * dice.randint(0, 1), [f"init{number}" for number in range(dice.randint(0, 2))]
        pod = Pod(name, apps, sidecars, inits, [])
        kinds = ["template", "named", "template", "extended"]
        for number in range(dice.randint(1, 4)):
            results = [self._result(f"r{number}{each}", pod) for each in range(dice.choice([1, 1, 1, 2]))]
            claim = Claim(f"{name}-{number}", results, allocated=dice.random() < 0.95, kind=kinds[number])
            if dice.random() < 0.08:
                claim.reserved = dice.choice([0, 3])
            pod.claims.append(claim)
        return pod

    def _result(self, name: str, pod: Pod) -> Result:
        dice, lasting = self.dice, [*pod.apps, *pod.sidecars]
        many = dice.choices([1, 0, 2], [12, 1, 1])[0]
        users = dice.sample(lasting, min(many, len(lasting))) + [each for each in pod.inits if dice.random() < 0.3]
        card = dice.choices(CARDS, [12, 12, 5, 5, 1, 1, 1, 1, 1])[0]
        made = Result(name, users, card, dice.randint(1, card.capacity - 1))
        if dice.random() < 0.1:
            made.driver = "other.example.com"
        elif dice.random() < 0.2:
            made.bad, made.changes = dice.choice(_faults(made))
        elif dice.random() < 0.3:
            made.changes = {
                "consumedCapacity": {"memory": dice.choice([f"{made.mib * 2**20}", f"{made.mib * 1024}Ki"])}
            }
        elif dice.random() < 0.1:
            made.changes = {"request": f"{made.name}/large"}
        return made


def _faults(made: Result) -> list[tuple[str, Object]]:
    amounts: list[Any] = [
        "0", f"{made.card.capacity}Mi", f"{made.card.capacity + 1}Mi", f"{made.mib * 2**20 + 1}", "1e9", "4.5Gi",
        "-1Mi", "1Gi ", "5G", "4Gi0", "", None, 4096, "1500m",
    ]  # fmt: skip
    consumed: list[Object] = [{}, {"gpu.nvidia.com/mem": "1Gi"}, *({"memory": amount} for amount in amounts)]
    changes: list[Object] = [{"adminAccess": True}, {"device": "gpu-77"}, {"pool": "other"}]
    return [("gpu", {"consumedCapacity": each}) for each in consumed] + [("all", each) for each in changes * 3]
