"""Whose unaccounted memory is: of one container only where nobody else can hold it; and what new shares cannot have."""

from dataclasses import replace
from typing import Any

import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage, total_mib
from enforcer.attribution.unaccounted import TOLERANCE_MIB, Account, Holder, Holders, Presence, member_of
from enforcer.detection.hidden import Finding, Limits, Verified, counted, find
from enforcer.nvml.types import GpuProcess, GpuSample
from enforcer.quota.types import LimitStatus, Quota
from gpushare.reasons import Reason
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, POD, holder, neighbour, quota
from tests.unit.enforcer.test_loop import card

MINE, THEIRS = quota(memory_mib=8192), neighbour(memory_mib=4096)
THEIR_POD = THEIRS.pod_uid
KNOWN = Presence(members=frozenset({member_of(MINE), member_of(THEIRS)}))
ALONE = Presence(members=frozenset({member_of(MINE)}))
SERVER = holder(66, 66, "e" * 64, "mps-pod")
HIDDEN = 12_288


def view(*holders: ProcessUsage, gap: int = HIDDEN) -> GpuSnapshot:
    sample = GpuSample(uuid=GPU, total_mib=81_079, used_mib=gap + total_mib(holders), processes=())
    return GpuSnapshot(gpu=card(GPU, 0), sample=sample, holders=holders)


def mine(mib: int = 96) -> ProcessUsage:
    return holder(101, mib)


def theirs(mib: int = 4000) -> ProcessUsage:
    return holder(201, mib, NEIGHBOUR, THEIR_POD)


def descriptors(pid: int = 150, container: str = CONTAINER, pod: str = POD, count: int = 3) -> Holder:
    return Holder(Identity(pid=pid, start=pid * 10, owner=ContainerRef(pod, container), cgroup_inode=7), count)


def limited(*holders: ProcessUsage, state: Reason = Reason.IN_FORCE, backend: str = "mps-v2") -> Limits:
    status = LimitStatus(state=state, backend=backend, sentence="")
    return {(NEIGHBOUR, GPU): Verified(status, frozenset(each.identity for each in holders))}


def found(
    *holders: ProcessUsage, has: tuple[Holder, ...] = (), complete: bool = True, limits: Limits | None = None,
    quotas: tuple[Quota, ...] = (MINE, THEIRS), present: Presence = KNOWN, gap: int = HIDDEN, **account: Any,
) -> Finding:  # fmt: skip
    made = Account(level_mib=gap, present=present, **account)
    return find(made, view(*holders, gap=gap), quotas, Holders(has, complete), {66}, limits or {})


def owned(finding: Finding) -> tuple[str | None, int]:
    return None if finding.owner is None else finding.owner.container_id, finding.owner_mib


def test_the_one_with_descriptors_has_what_others_cannot_hold() -> None:
    """12 GiB behind descriptors of a process without CUDA; its neighbour is an MPS client within its limit."""
    finding = found(mine(), theirs(4000), SERVER, has=(descriptors(),), limits=limited(theirs(4000)))
    assert owned(finding) == (CONTAINER, HIDDEN - TOLERANCE_MIB - 96)
    assert [(each.quota, each.descriptors) for each in finding.suspects] == [(MINE, 3)]
    assert finding.processes == (descriptors().identity,)
    several = (theirs(1000), holder(202, 1000, NEIGHBOUR, THEIR_POD))
    finding = found(mine(), *several, SERVER, has=(descriptors(),), limits=limited(*several))
    assert owned(finding) == (CONTAINER, HIDDEN - TOLERANCE_MIB - 6192), "each of its processes has the whole limit"


def test_processes_without_a_row_need_none_to_hold_it() -> None:
    finding = found(has=(descriptors(), descriptors(151, count=1)), present=Presence(unknown=True))
    assert owned(finding) == (CONTAINER, HIDDEN - TOLERANCE_MIB)
    assert finding.processes == (descriptors().identity, descriptors(151).identity)


@pytest.mark.parametrize(
    "case",
    [
        {"has": (descriptors(), descriptors(250, NEIGHBOUR, THEIR_POD))},
        {"has": (descriptors(), descriptors(350, "f" * 64, "some-pod"))},
        {"has": (descriptors(), Holder(Identity(pid=9, start=1, owner=None), 1))},
        {"complete": False},
        {"limits": {}},
        {"limits": limited(theirs(), state=Reason.LIMIT_ESCAPED)},
        {"limits": limited(theirs(), backend="driver-cgroup")},  # it does not count managed memory
        {"limits": limited(holder(299, 1, NEIGHBOUR, THEIR_POD))},  # a process started since
        {"limits": limited(theirs(), state=Reason.UNKNOWN)},
        {"gap": 4096 - 4000 + TOLERANCE_MIB},  # the neighbour may hold all of it, within its limit
        {"base_mib": HIDDEN},
        {"gap": TOLERANCE_MIB},
    ],
    ids=str,
)  # fmt: skip
def test_where_somebody_else_may_hold_it_it_is_nobodys(case: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"has": (descriptors(),), "limits": limited(theirs())}
    assert owned(found(mine(), theirs(), SERVER, **usual))[0] == CONTAINER
    assert owned(found(mine(), theirs(), SERVER, **(usual | case))) == (None, 0)


def test_a_process_outside_of_shares_that_nvml_lists_may_hold_any_amount() -> None:
    foreign = holder(99, 500, "f" * 64, "some-pod")
    assert owned(found(mine(), foreign, SERVER, has=(descriptors(),), quotas=(MINE,))) == (None, 0)
    assert owned(found(mine(), ProcessUsage(Identity(pid=7, start=1, owner=None), 500), has=(descriptors(),))) == (
        None,
        0,
    )


@pytest.mark.parametrize(("mib", "owner"), [(0, CONTAINER), (1, None)])
def test_a_process_that_does_not_show_whose_it_is_may_hold_it(mib: int, owner: str | None) -> None:
    seen = replace(view(mine(), SERVER), unknown_mib=mib)
    account = Account(level_mib=HIDDEN, present=KNOWN)
    assert owned(find(account, seen, (MINE, THEIRS), Holders((descriptors(),)), {66}, {}))[0] == owner


def test_pytorchs_ipc_and_expandable_segments_are_not_charged_for_what_somebody_hides() -> None:
    """A process that NVML lists keeps descriptors of memory in its own row; its data loaders inherit them by fork.

    Another container may hide its own where no look finds them.
    """
    exporter, fork = descriptors(101), descriptors(151)
    for has in ((exporter,), (exporter, fork)):
        finding = found(mine(8000), theirs(), SERVER, has=has, limits=limited(theirs()))
        assert owned(finding) == (None, 0)
        assert [each.quota for each in finding.suspects] == [MINE], "it is named, and told what to close"
    assert owned(found(mine(8000), SERVER, has=(exporter,), quotas=(MINE,), present=ALONE))[0] == CONTAINER


def test_imported_memory_is_in_the_row_of_the_exporter_and_then_of_the_importer() -> None:
    """PyTorch's IPC between two processes of a share: it is never beyond the rows."""
    exporter, importer = holder(101, 5000), holder(102, 500)
    for rows in ((exporter, importer), (holder(102, 5000),)):
        finding = found(*rows, theirs(), SERVER, has=(descriptors(101, count=1),), gap=TOLERANCE_MIB)
        assert finding == Finding()


def test_a_data_loader_that_holds_a_descriptor_is_nothing_while_all_memory_is_in_rows() -> None:
    assert found(mine(), theirs(), SERVER, has=(descriptors(),), gap=TOLERANCE_MIB) == Finding()


def test_what_nvml_lists_for_processes_that_have_ended_may_be_anybodys() -> None:
    """A program that crashed leaves it to the children that it forked, for as long as they live."""

    def owned_mib(ended: int, **case: Any) -> int:
        seen = view(mine(), SERVER)
        assert seen.sample is not None
        rows = [GpuProcess(pid=each.identity.pid, used_mib=each.used_mib) for each in seen.holders]
        rows.append(GpuProcess(pid=900, used_mib=ended))
        seen = replace(seen, sample=seen.sample._replace(processes=tuple(rows)))
        usual: dict[str, Any] = {"has": (descriptors(),), "present": KNOWN} | case
        account = Account(level_mib=HIDDEN, present=usual["present"])
        return find(account, seen, (MINE, THEIRS), Holders(usual["has"]), {66}, {}).owner_mib

    assert owned_mib(0) == HIDDEN - TOLERANCE_MIB
    assert owned_mib(5000) == HIDDEN - TOLERANCE_MIB - 5000
    assert owned_mib(1) == HIDDEN - TOLERANCE_MIB - 1
    assert owned_mib(HIDDEN) == 0
    assert owned_mib(HIDDEN, present=ALONE, has=()) == HIDDEN - TOLERANCE_MIB, "one that was alone has those as well"


def test_one_that_was_alone_all_the_time_has_it_without_descriptors() -> None:
    """Managed memory has none, and memory that was imported by a descriptor since closed."""
    finding = found(mine(500), SERVER, quotas=(MINE,), present=ALONE)
    assert owned(finding) == (CONTAINER, HIDDEN - TOLERANCE_MIB)
    assert finding.processes == (mine().identity,)
    for present in (
        KNOWN, Presence(), Presence(members=ALONE.members, unknown=True),
        Presence(members=ALONE.members, pids=frozenset({99})),
        Presence(members=frozenset({(POD, "model", "f" * 64)})),
    ):  # fmt: skip
        assert owned(found(mine(500), SERVER, quotas=(MINE,), present=present)) == (None, 0), present
    server = Presence(members=ALONE.members, pids=frozenset({66}))
    assert owned(found(mine(500), SERVER, quotas=(MINE,), present=server))[0] == CONTAINER
    assert owned(found(SERVER, quotas=(MINE,), present=ALONE)) == (None, 0), "one without a process there holds nothing"


def test_withheld_is_all_but_what_each_of_those_who_may_have_it_has_left() -> None:
    def withheld(*holders: ProcessUsage, gap: int = 9000, **more: Any) -> int:
        return found(*holders, gap=gap, **more).withheld_mib

    alone: dict[str, Any] = {"quotas": (MINE,)}
    assert withheld(mine(192), **alone, gap=TOLERANCE_MIB) == 0
    assert withheld(mine(192), **alone, gap=8000) == 0, "within its own reservation"
    assert withheld(mine(192), **alone) == 1000
    assert withheld(mine(192), quotas=(quota(memory_mib=1024, reserved_mib=8192),)) == 1000
    assert withheld(mine(9000), **alone) == 9000
    assert withheld(mine(192), theirs(3096)) == 8000, "it may be the neighbour's, who has used up its own"
    assert withheld(mine(192), theirs(9000)) == 9000, "who is over takes nothing back"
    assert withheld(mine(192)) == 4904, "or by a descriptor that no look finds: it has 4096 left"
    assert withheld(mine(192), quotas=(MINE, neighbour(memory_mib=0))) == 9000
    assert withheld(has=(descriptors(250, NEIGHBOUR, THEIR_POD),)) == 9000 - 4096
    assert withheld(mine(192), holder(99, 1, "f" * 64, "some-pod"), **alone) == 9000
    assert withheld(mine(192), **alone, complete=False) == 9000
    assert withheld(SERVER, **alone) == 9000


def test_what_must_be_a_containers_counts_to_its_processes() -> None:
    reading = view(mine(), theirs()).reading
    assert reading is not None
    finding = found(mine(), theirs(), SERVER, has=(descriptors(), descriptors(151)), limits=limited(theirs()))
    rows = {each.identity.pid: each.used_mib for each in counted(finding, reading)[CONTAINER]}
    assert rows == {101: 96, 150: finding.owner_mib, 151: 0}
    assert counted(finding, reading)[NEIGHBOUR] == reading[NEIGHBOUR]
    alone = found(mine(500), SERVER, quotas=(MINE,), present=ALONE)
    assert [each.used_mib for each in counted(alone, {CONTAINER: (mine(500),)})[CONTAINER]] == [500 + alone.owner_mib]
    assert counted(Finding(), reading) == reading
