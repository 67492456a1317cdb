"""What is known of one GPU at one moment."""

from collections.abc import Sequence
from dataclasses import replace

from enforcer.attribution.snapshot import GpuSnapshot, ProcessUsage, beyond_sums, total_mib, unattributed_processes
from enforcer.nvml.types import Gpu, GpuSample
from enforcer.quota.types import Quota, pod_row
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, OTHER_GPU, POD, holder, quota

CARD = Gpu(
    uuid=GPU, index=0, minor=0, model="scripted", memory_mib=16384, reserved_mib=0, compute_capability=(9, 0),
    pci_bus_id="0", driver_version="0", cuda_version=(13, 0),
)  # fmt: skip


def test_processes_of_containers_without_a_quota_and_of_none_are_unattributed() -> None:
    own, other, nobody = holder(1, 100), holder(2, 200, NEIGHBOUR), holder(3, 300)
    nobody = replace(nobody, identity=replace(nobody.identity, owner=None))
    view = GpuSnapshot(gpu=CARD, holders=(own, other, nobody))
    assert unattributed_processes(view, frozenset({CONTAINER})) == (other, nobody)
    assert unattributed_processes(view, frozenset({CONTAINER, NEIGHBOUR})) == (nobody,)
    assert unattributed_processes(view, frozenset()) == (own, other, nobody)
    assert total_mib(view.holders) == 600


HELPER, LOST = "a" * 64, "b" * 64
OTHERS = "another-pod"
ROWS = (
    quota(memory_mib=512, tolerance_mib=100),
    quota(container="b", container_id=HELPER, memory_mib=1024, tolerance_mib=50),
)
POD_ROW = pod_row(ROWS[0], 1536)


def beyond(*holders: ProcessUsage, rows: Sequence[Quota] = (*ROWS, POD_ROW)) -> list[int]:
    """The pids of what the pod holds beyond its sum."""
    found = beyond_sums(holders, rows)
    assert found.keys() <= {POD}
    return [each.identity.pid for each in found.get(POD, ())]


def test_a_pod_within_its_sum_and_the_largest_tolerance_of_its_containers_holds_nothing_beyond() -> None:
    full = (holder(1, 512), holder(2, 1024, HELPER))
    assert beyond(*full) == []
    assert beyond(*full, holder(3, 100, LOST)) == []
    assert beyond(*full, holder(3, 101, LOST)) == [3]
    assert beyond(holder(3, 1636, LOST)) == []
    assert beyond(holder(3, 1637, LOST)) == [3]
    of_others = quota(pod_uid=OTHERS, container_id="c" * 64, memory_mib=512, tolerance_mib=9000)
    assert beyond(holder(3, 1637, LOST), rows=(*ROWS, of_others, POD_ROW)) == [3]


def test_what_a_container_holds_over_its_own_quota_is_its_own_violation() -> None:
    assert beyond(holder(1, 9000), holder(2, 1024, HELPER)) == []
    assert beyond(holder(1, 9000), holder(2, 1024, HELPER), holder(3, 101, LOST)) == [3]


def test_what_no_quota_explains_goes_first_and_the_largest_of_it() -> None:
    unknown = (holder(3, 300, LOST), holder(4, 200, "e" * 64), holder(5, 150, LOST))
    assert beyond(holder(1, 512), holder(2, 1024, HELPER), *unknown) == [3, 4, 5]
    assert beyond(holder(2, 1024, HELPER), *unknown) == [3]


def test_where_all_is_explained_and_too_much_the_largest_goes() -> None:
    """As where a container that runs beside others has taken the name of an init container."""
    first = quota(container="init", container_id=LOST, memory_mib=1536, tolerance_mib=0)
    rows = (*ROWS, first, POD_ROW)
    assert beyond(holder(1, 500), holder(2, 1000, HELPER), holder(3, 1500, LOST), rows=rows) == [3]


def test_a_pod_that_may_hold_nothing_holds_all_of_it_beyond() -> None:
    assert beyond(holder(1, 1), holder(2, 300, LOST), rows=[pod_row(quota(), 0)]) == [2, 1]


def test_a_pod_without_a_row_is_nobodys_business_and_an_id_in_another_pod_explains_nothing() -> None:
    assert beyond(holder(1, 9000), rows=ROWS) == []
    thief = holder(7, 9000, HELPER, OTHERS)
    assert beyond(holder(1, 512), thief) == []
    row = pod_row(quota(pod_uid=OTHERS), 512)
    assert beyond_sums([thief], [*ROWS, POD_ROW, row]) == {OTHERS: (thief,)}


def test_the_reading_of_a_gpu_has_it_under_the_pods_uid_and_from_the_quotas_of_that_gpu_alone() -> None:
    sample = GpuSample(uuid=GPU, total_mib=9000, used_mib=9000, processes=())
    held, row = holder(3, 2000, LOST), replace(POD_ROW, gpu=OTHER_GPU)
    rows: tuple[Quota, ...]
    found: object
    for rows, found in (((*ROWS, POD_ROW), {LOST: (held,), POD: (held,)}), ((*ROWS, row), {LOST: (held,)})):
        assert GpuSnapshot(gpu=CARD, sample=sample, holders=(held,), quotas=rows).reading == found
