"""What is known of one GPU at one moment."""

from dataclasses import replace

from enforcer.attribution.snapshot import GpuSnapshot, total_mib, unattributed_processes
from enforcer.nvml.types import Gpu
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, holder

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
