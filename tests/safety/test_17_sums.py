"""Test 17: who is over quota, over random vectors, against an oracle that counts by hand and shares no code."""

import random
from dataclasses import dataclass
from typing import Final

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.detection.detector import evaluate
from enforcer.detection.types import Decision, DetectorConfig, DetectorState, KillDecision
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from enforcer.quota.types import OnExceed, Quota
from tests.support import extent

GPUS: Final = ("GPU-a", "GPU-b")
MOST: Final = 64
POLL: Final = 0.5
RULES: Final = DetectorConfig(kills=10_000)
NO_QUOTA: Final = "no quota"
NOBODY: Final = "nobody"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A container with a quota on one GPU, and what the vector was made to do to it."""

    name: str
    gpu: str
    ceiling: int
    on_exceed: str
    excess: int


@dataclass(frozen=True, slots=True)
class Row:
    """One process on one GPU, as drawn."""

    pid: int
    gpu: str
    owner: str
    mib: int


Vector = tuple[list[Tenant], list[Row]]


def _vector(chance: random.Random, *, alone: bool) -> Vector:
    """Draw tenants and processes; ``alone``: one tenant is over by 1 MiB, all others at their ceiling or below."""
    tenants = []
    for number in range(chance.randint(1, 6)):
        ceiling, gpu = chance.randint(MOST, 5000), chance.choice(GPUS)
        excess = chance.choice([0, 0, -1, -chance.randint(1, ceiling)]) if alone else chance.randint(-300, 300)
        kind = chance.choice(["kill", "kill", "kill-container", "warn"])
        tenants.append(Tenant(f"{number:064x}", gpu, ceiling, kind, excess))
    if alone:
        first = tenants[0]
        tenants[0] = Tenant(first.name, first.gpu, first.ceiling, chance.choice(["kill", "kill-container"]), 1)
    rows: list[Row] = []
    for tenant in tenants:
        rows += _split(chance, tenant, len(rows) + 1)
    for owner in (NO_QUOTA, NOBODY):
        rows += [Row(len(rows) + 1, chance.choice(GPUS), owner, chance.randint(0, 9000)) for _ in range(3)]
    chance.shuffle(rows)
    return tenants, rows


def _split(chance: random.Random, tenant: Tenant, pid: int) -> list[Row]:
    """Deal a tenant's memory to 1 to 64 processes, each of them below the ceiling where there are several."""
    held = max(0, tenant.ceiling + tenant.excess)
    cuts = sorted(chance.randint(0, held) for _ in range(chance.randint(1, MOST) - 1))
    sizes = [high - low for low, high in zip([0, *cuts], [*cuts, held], strict=True)]
    other = next(gpu for gpu in GPUS if gpu != tenant.gpu)
    elsewhere = [Row(pid + len(sizes), other, tenant.name, 9000)]  # it has no quota there
    return [Row(pid + n, tenant.gpu, tenant.name, mib) for n, mib in enumerate(sizes)] + elsewhere


def _oracle(vector: Vector) -> dict[tuple[str, str], list[int]]:
    """Whom to end, and which of its processes, counted by hand."""
    tenants, rows = vector
    answer: dict[tuple[str, str], list[int]] = {}
    for tenant in tenants:
        own = [row for row in rows if row.owner == tenant.name and row.gpu == tenant.gpu]
        left = 0
        for row in own:
            left += row.mib
        if left <= tenant.ceiling or tenant.on_exceed == "warn":
            continue
        chosen: list[int] = []
        while own and (left > tenant.ceiling or tenant.on_exceed == "kill-container"):
            largest = own[0]
            for row in own:
                if row.mib > largest.mib or (row.mib == largest.mib and row.pid < largest.pid):
                    largest = row
            own.remove(largest)
            left -= largest.mib
            chosen.append(largest.pid)
        answer[tenant.name, tenant.gpu] = chosen
    return answer


def _judged(vector: Vector) -> dict[tuple[str, str], list[int]]:
    """What the product makes of the same: three looks at both GPUs, through what the loop calls."""
    tenants, rows = vector
    quotas = [
        Quota(
            claim_uid=tenant.name, namespace=tenant.name[-2:], pod=tenant.name, pod_uid=tenant.name,
            container="model", container_id=tenant.name, gpu=tenant.gpu, memory_mib=tenant.ceiling,
            tolerance_mib=0, grace_seconds=0.0, on_exceed=OnExceed(tenant.on_exceed),
        )
        for tenant in tenants
    ]  # fmt: skip
    views = {uuid: _view(uuid, rows) for uuid in GPUS}
    state, said = DetectorState(), list[KillDecision]()
    for look in range(1, 4):
        readings = {uuid: view.reading for uuid, view in views.items()}
        state, verdicts = evaluate(state, quotas, readings, look * POLL, RULES)
        said += verdicts
    kills = [verdict for verdict in said if verdict.decision is Decision.KILL]
    assert len({verdict.quota.container_id for verdict in kills}) == len(kills)
    return {
        (verdict.quota.container_id or "", verdict.quota.gpu): [each.identity.pid for each in verdict.targets]
        for verdict in kills
    }


def _view(uuid: str, rows: list[Row]) -> GpuSnapshot:
    """The GPU's holders, as the loop puts them together."""
    here = [row for row in rows if row.gpu == uuid]
    gpu = Gpu(
        uuid=uuid, index=0, minor=0, model="", memory_mib=10**7, reserved_mib=0, compute_capability=(9, 0),
        pci_bus_id="", driver_version="", cuda_version=(13, 0),
    )  # fmt: skip
    processes = tuple(GpuProcess(row.pid, row.mib) for row in here)
    sample = GpuSample(uuid=uuid, total_mib=10**7, used_mib=sum(row.mib for row in here), processes=processes)
    owners = (None if row.owner == NOBODY else ContainerRef(row.owner, row.owner) for row in here)
    holders = (
        ProcessUsage(Identity(pid=row.pid, start=row.pid, owner=owner), row.mib)
        for row, owner in zip(here, owners, strict=True)
    )
    return GpuSnapshot(gpu=gpu, sample=sample, holders=tuple(holders))


def test_random_vectors_are_evaluated_as_counted_by_hand() -> None:
    chance, wrong, killed, exact, hit = random.Random(17), 0, 0, 0, 0
    every = extent.trials(1000, 10_000)
    for number in range(every):
        alone = number % 2 == 0
        vector = _vector(chance, alone=alone)
        expected, found = _oracle(vector), _judged(vector)
        wrong += found != expected
        killed += len(expected)
        at_quota = {(tenant.name, tenant.gpu) for tenant in vector[0] if tenant.excess == 0}
        exact += len(at_quota)
        hit += len(at_quota & found.keys())
        assert not alone or list(expected) == [(vector[0][0].name, vector[0][0].gpu)], "one tenant over by 1 MiB"
    assert wrong == hit == 0
    assert min(killed, exact) > every // 4, "vectors that say something"
    extent.figure("17", "kill decisions that differ from those by hand", f"{wrong} in {every:,}")
    extent.figure("17", "containers exactly at their quota that were killed", f"{hit} of {exact:,}")
