from enforcer.attribution.cgroup import Identity
from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage
from enforcer.nvml.types import GpuSample
from enforcer.resourceslices.foreign_memory import LOWER_AFTER, SmoothedUsage, foreign_mib, smooth
from tests.unit.enforcer.made import GPU, OTHER_GPU, POD, holder, quota
from tests.unit.enforcer.test_loop import card


def view(*holders: ProcessUsage, gpu: str = GPU) -> GpuSnapshot:
    return GpuSnapshot(
        gpu=card(gpu, 0), holders=holders, sample=GpuSample(uuid=gpu, total_mib=16384, used_mib=0, processes=())
    )


NOBODY = ProcessUsage(Identity(pid=900, start=1, owner=None), 300)


def test_foreign_is_what_is_lowered_by_no_pod_with_a_share_there() -> None:
    mine, sibling = holder(101, 5000), holder(102, 50, "e" * 64)
    stranger, ours = holder(103, 700, "f" * 64, "another-pod"), holder(104, 900, "a" * 64, "our-pod")
    seen = [view(mine, sibling, stranger, ours, NOBODY), view(holder(105, 20), gpu=OTHER_GPU)]
    assert foreign_mib(seen, [quota()], {"our-pod"}) == {GPU: 1000, OTHER_GPU: 20}
    assert foreign_mib(seen, [], {POD}) == {GPU: 1900, OTHER_GPU: 0}


def test_an_mps_server_is_no_stranger_wherever_it_runs() -> None:
    assert foreign_mib([view(NOBODY)], [], servers={900}) == {GPU: 0}


def test_a_gpu_that_cannot_be_read_says_nothing() -> None:
    assert foreign_mib([GpuSnapshot(gpu=card(GPU, 0))], []) == {}
    assert smooth({GPU: SmoothedUsage(512)}, {}) == {GPU: SmoothedUsage(512)}


def walk(*amounts: int) -> list[int]:
    steady: dict[str, SmoothedUsage] = {}
    shown = []
    for amount in amounts:
        steady = smooth(steady, {GPU: amount})
        shown.append(steady[GPU].mib)
    return shown


def test_more_is_taken_off_at_once_and_less_given_back_after_a_while() -> None:
    assert walk(0, 300, 600, 0) == [0, 512, 1024, 1024]
    assert walk(300, *[0] * LOWER_AFTER) == [512] * LOWER_AFTER + [0]


def test_ups_and_downs_do_not_show() -> None:
    assert set(walk(*[520, 500] * 50)) == {1024}
    assert set(walk(*[300, 0, 0, 0] * 20)) == {512}


def test_a_pod_that_was_given_nothing_of_a_gpu_is_a_stranger_there() -> None:
    assert foreign_mib([view(holder(101, 5000))], [quota(memory_mib=0)]) == {GPU: 5000}
