"""A limit above the reservation, from the annotation to the quota, and the wait for what others borrowed."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.claim_wait import ClaimWait
from enforcer.detection.lending import LEAST_MIB, SLACK_MIB
from enforcer.dra import driver as driver_module
from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.cdi import variables
from enforcer.dra.prepared_claim import PreparedClaim, decode, encode
from enforcer.dra.quotas import quotas_of_prepared
from enforcer.dra.returned_memory import missing_mib, with_loan_where_free
from enforcer.nvml.types import GpuSample
from enforcer.quota.types import Quota
from gpushare import contract
from gpushare.errors import PrepareError
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from tests.unit.enforcer.dra.objects import NODE, claim, namespace, pod
from tests.unit.enforcer.dra.test_allocation import DEVICES
from tests.unit.enforcer.dra.test_driver import refused
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU, holder, quota
from tests.unit.enforcer.test_loop import card

ASKED = {contract.MEMORY: "4Gi", contract.MEMORY_LIMIT: "12Gi"}
ALLOWED = {contract.MAX_MEMORY_LIMIT: "12Gi"}
LENT = quota(memory_mib=2048, limit_mib=12_288)


def prepared(asked: dict[str, str], policy: dict[str, str]) -> PreparedClaim:
    made = pod("tts", asked, policy=NamespacePolicy.from_annotations(ALLOWED))
    return compute_limits(NODE, PrepareRequest(claim(made), made, namespace(policy)), DEVICES)


def test_the_reservation_is_claimed_and_the_limit_frozen_beside_it() -> None:
    found = prepared(ASKED, ALLOWED)
    assert [(each.memory_mib, each.limit_mib) for each in found.limits] == [(4096, 12_288)]
    assert found.mib_on(GPU) == 4096
    assert decode(encode(found)) == found
    rows = quotas_of_prepared([found], [], [], [])
    assert [(each.memory_mib, each.limit_mib) for each in rows if not each.whole_pod] == [(4096, 12_288)]
    assert [(each.reserved_mib, each.limit_mib) for each in rows if each.whole_pod] == [(4096, None)]


def test_mps_gets_the_limit_and_all_else_the_reservation() -> None:
    with_loan = prepared(ASKED, ALLOWED)
    plain = prepared({contract.MEMORY: "4Gi"}, {})
    found, usual = (variables(each, each.of(each.limits[0].request), mps=True) for each in (with_loan, plain))
    changed = {name for name in found if found[name] != usual.get(name)}
    assert changed == {contract.MPS_MEMORY_LIMIT}
    assert found[contract.MPS_MEMORY_LIMIT] == "0=12288M"


@pytest.mark.parametrize("policy", [{}, {contract.MAX_MEMORY_LIMIT: "8Gi"}, {contract.OWN_CLAIMS: "any"}])
def test_prepare_grants_no_more_than_the_namespace_allows_whatever_admission_saw(policy: dict[str, str]) -> None:
    with pytest.raises(PrepareError, match="max-memory-limit") as error:
        prepared(ASKED, policy)
    assert error.value.reason is Reason.ABOVE_MAXIMUM


def test_a_claim_without_the_field_borrows_nothing() -> None:
    data = encode(prepared({contract.MEMORY: "4Gi"}, {})).replace(b'"limitMib": null', b'"other": null')
    assert [each.limit_mib for each in decode(data).limits] == [None]


def test_a_share_borrows_nothing_where_too_little_is_reserved_by_nobody() -> None:
    lent, other = prepared(ASKED, ALLOWED), replace(prepared({contract.MEMORY: "4Gi"}, {}), uid="other")
    full = 2 * 4096 + SLACK_MIB
    assert with_loan_where_free(lent, [other], {GPU: full}) == lent
    found = with_loan_where_free(lent, [other], {GPU: full - 1})
    assert [(each.memory_mib, each.limit_mib) for each in found.limits] == [(4096, None)]
    assert variables(found, found.of(found.limits[0].request), mps=True)[contract.MPS_MEMORY_LIMIT] == "0=4096M"


def test_who_came_later_is_not_waited_for() -> None:
    new, later = prepared({contract.MEMORY: "4Gi"}, {}), quota(pod_uid="later", container_id="f" * 64, memory_mib=4096)
    waits, seen = ClaimWait(), [view(10_000, LENT, later, *own(new), total=10_000 + 4096 + LEAST_MIB)]
    with waits.for_memory(new.pod_uid), waits.for_memory("later"), waits.for_memory(new.pod_uid):
        assert waits.after(new.pod_uid) == {"later"}
        assert waits.after("later") == {new.pod_uid}
        assert missing_mib(new, seen, waits.after(new.pod_uid)) == 0
        assert missing_mib(new, seen) == 4096


def view(held: int, *quotas: Quota, total: int = 16_384) -> GpuSnapshot:
    gpu = card(GPU, 0)._replace(memory_mib=total, reserved_mib=0)
    sample = GpuSample(uuid=GPU, total_mib=total, used_mib=held, processes=())
    return GpuSnapshot(gpu=gpu, sample=sample, holders=(holder(101, held),), quotas=quotas)


def own(found: PreparedClaim) -> list[Quota]:
    return list(quotas_of_prepared([found], [], [], []))


def test_what_is_missing_is_what_borrowers_have_to_give_back_before_all_have_what_they_reserved() -> None:
    new = prepared({contract.MEMORY: "4Gi"}, {})
    assert missing_mib(new, [view(12_000, LENT, *own(new))]) == 4096 + LEAST_MIB - 4384
    assert missing_mib(new, [view(12_000, LENT, *own(new), total=20_480)]) == 0
    assert missing_mib(new, [view(2048, LENT, *own(new), total=4096)]) == 0, "nobody has anything to give back"


def test_while_its_quotas_are_not_known_a_claim_waits_only_where_somebody_may_borrow() -> None:
    new = prepared({contract.MEMORY: "4Gi"}, {})
    assert missing_mib(new, [view(2048, LENT)]) == 4096
    assert missing_mib(new, [view(2048, replace(LENT, limit_mib=None))]) == 0
    assert missing_mib(new, [GpuSnapshot(gpu=card(GPU, 0), quotas=(LENT, *own(new)))]) == 4096


class Lent(UsageSampler):
    """Shows a borrower on the GPU, until it has given back."""

    lent = True
    extra: tuple[Quota, ...] = ()

    def sample(self) -> tuple[GpuSnapshot, ...]:
        found = super().sample()
        rows = (LENT, *self.extra) if self.lent else ()
        return tuple(replace(each, quotas=rows) if each.gpu.uuid == GPU else each for each in found)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    setup = made.config()
    made.lent = Lent(made.reader, made.pods)  # type: ignore[attr-defined] # only here
    made.setup = replace(setup, watch=made.lent)  # type: ignore[attr-defined] # only here
    made.driver._parts = made.setup
    return made


def test_a_new_share_is_known_to_wait_and_ready_once_the_memory_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = world.tenant("tts")
    world.reader.used[GPU] = {101: 12_000}
    error = refused(world, ref)
    assert error.reason is Reason.GPU_MEMORY_IN_USE
    assert "other pods borrowed" in error.message
    assert [each.name for each in world.store.prepared()] == [ref.name], "its quota has to be in force to be seen"
    assert world.setup.claim_wait.pods == frozenset()
    seen = list[frozenset[str]]()

    def give_back() -> None:
        seen.append(world.setup.claim_wait.pods)
        world.lent.lent = False  # type: ignore[attr-defined] # only here

    monkeypatch.setattr(driver_module, "CALL_PATIENCE", 60.0)
    timer = threading.Timer(0.2, give_back)
    timer.start()
    assert world.driver.prepare(ref)
    timer.join()
    assert [len(each) for each in seen] == [1]
    assert world.setup.claim_wait.pods == frozenset()
