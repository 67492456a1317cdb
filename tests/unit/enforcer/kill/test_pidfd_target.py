"""Pinning processes: which, in which order, and what becomes of those that are not who they were."""

import os
from contextlib import ExitStack
from dataclasses import replace

import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.container_processes import ContainerProcess
from enforcer.attribution.procfs import PidHandle
from enforcer.attribution.snapshot import ProcessUsage
from enforcer.audit.kill_records import process_outcome
from enforcer.kill.pidfd_target import PidfdPinner, PinnedProcess, is_protected
from enforcer.quota.types import pod_row
from gpushare.reasons import Reason
from tests.unit.enforcer.made import CONTAINER, NEIGHBOUR, POD, holder, quota


class Handle(PidHandle):
    def __init__(self, pid: int, world: "World") -> None:
        super().__init__(pid, -1)
        self.world, self.closed = world, False

    def ended(self, seconds: float = 0.0) -> bool:
        return self.pid in self.world.ended

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self, *holders: ProcessUsage) -> None:
        self.seen: dict[int, Identity | None] = {each.identity.pid: each.identity for each in holders}
        self.ended: set[int] = set()
        self.absent: set[int] = set()
        self.full: set[int] = set()
        self.opened: list[Handle] = []
        self.pinner = PidfdPinner(self)

    def identify(self, pid: int) -> Identity | None:
        assert pid in {each.pid for each in self.opened}, "who it is is asked before it is pinned"
        return self.seen[pid]

    def leads_namespace(self, pid: int) -> bool:
        raise NotImplementedError

    def processes_of(self, container: ContainerRef) -> list[ContainerProcess]:
        raise NotImplementedError

    def pin(self, pid: int) -> PidHandle | None:
        if pid in self.full:
            raise OSError(24, "Too many open files")
        if pid in self.absent:
            return None
        self.opened.append(Handle(pid, self))
        return self.opened[-1]


A, B, C = holder(501, 9000), holder(502, 800), holder(503, 70)


def test_all_that_are_who_they_were_are_pinned_until_the_stack_ends() -> None:
    world = World(A, B)
    with ExitStack() as stack:
        pinned, exited = world.pinner.pin(stack, quota(), [A, B])
        assert pinned == [PinnedProcess(A, handle=world.opened[0]), PinnedProcess(B, handle=world.opened[1])]
        assert exited == []
        assert not any(each.closed for each in world.opened)
    assert all(each.closed for each in world.opened)


def test_those_that_ended_before_or_while_they_were_checked_have_already_exited() -> None:
    world = World(A, B, C)
    world.absent, world.ended, world.seen[502] = {501}, {502}, None
    with ExitStack() as stack:
        pinned, exited = world.pinner.pin(stack, quota(), [A, B, C])
    assert [each.usage for each in pinned] == [C]
    assert exited == [process_outcome(A, Reason.ALREADY_EXITED), process_outcome(B, Reason.ALREADY_EXITED)]


def test_where_no_more_can_be_pinned_the_rest_is_left_for_another_round() -> None:
    world = World(A, B, C)
    world.full = {502}
    with ExitStack() as stack:
        pinned, exited = world.pinner.pin(stack, quota(), [A, B, C])
    assert ([each.usage for each in pinned], exited) == ([A], [])
    assert [each.pid for each in world.opened] == [501], "nobody after it is taken instead"


def test_those_left_out_are_not_touched_at_all() -> None:
    world = World(A, B)
    with ExitStack() as stack:
        pinned, _ = world.pinner.pin(stack, quota(), [A, B], {A.identity: None})
    assert [each.usage for each in pinned] == [B]
    assert [each.pid for each in world.opened] == [502]


def test_one_that_is_somebody_else_is_spared_and_the_others_are_not() -> None:
    world = World(A, B)
    world.seen[501] = replace(A.identity, start=1)
    with ExitStack() as stack:
        pinned, exited = world.pinner.pin(stack, quota(), [A, B])
    assert ([each.usage for each in pinned], exited) == ([B], [])


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (A.identity, None),
        (None, Reason.PROCESS_HIDDEN),
        (replace(A.identity, kernel_thread=True), Reason.PROTECTED),
        (replace(A.identity, owner=None), Reason.PROTECTED),
        (replace(A.identity, start=1), Reason.IDENTITY_CHANGED),
        (replace(A.identity, cgroup_inode=8), Reason.IDENTITY_CHANGED),
        (replace(A.identity, owner=ContainerRef(POD, NEIGHBOUR)), Reason.IDENTITY_CHANGED),
    ],
    ids=str,
)
def test_each_is_distinguished_from_all_it_might_be_instead(seen: Identity | None, why: Reason | None) -> None:
    world = World(A)
    world.seen[501] = seen
    handle = world.pin(501)
    assert handle is not None
    assert world.pinner.identity_mismatch(quota(), PinnedProcess(A, handle=handle)) is why
    world.ended = {501}
    assert world.pinner.identity_mismatch(quota(), PinnedProcess(A, handle=handle)) is Reason.ALREADY_EXITED, (
        "whatever /proc says, it may be of another"
    )


@pytest.mark.parametrize(
    "change", [{"pod_uid": POD.replace("0a", "ff")}, {"container_id": NEIGHBOUR}, {"container_id": None}], ids=str
)
def test_one_of_another_container_than_the_quotas_is_not_the_one(change: dict[str, str | None]) -> None:
    world = World(A)
    handle = world.pin(501)
    assert handle is not None
    assert world.pinner.identity_mismatch(quota(**change), PinnedProcess(A, handle=handle)) is Reason.IDENTITY_CHANGED


def test_a_container_without_an_id_owns_nobody_not_even_one_of_an_empty_id() -> None:
    nameless = replace(A, identity=replace(A.identity, owner=ContainerRef(POD, "")))
    world = World(nameless)
    handle = world.pin(501)
    assert handle is not None
    found = world.pinner.identity_mismatch(quota(container_id=None), PinnedProcess(nameless, handle=handle))
    assert found is Reason.IDENTITY_CHANGED


def test_the_row_of_a_whole_pod_is_about_each_container_of_that_pod_and_of_no_other() -> None:
    for holder_, found in (
        (A, None),
        (replace(A, identity=replace(A.identity, owner=ContainerRef("x", CONTAINER))), 1),
    ):
        world = World(holder_)
        handle = world.pin(501)
        assert handle is not None
        mismatch = world.pinner.identity_mismatch(pod_row(quota(), 512), PinnedProcess(holder_, handle=handle))
        assert mismatch is (None if found is None else Reason.IDENTITY_CHANGED)


def test_ourselves_init_the_kernel_and_nobodys_are_protected() -> None:
    fine = holder(501, 1).identity
    assert not is_protected(fine)
    for change in ({"pid": os.getpid()}, {"pid": os.getppid()}, {"pid": 1}, {"kernel_thread": True}, {"owner": None}):
        assert is_protected(replace(fine, **change))
