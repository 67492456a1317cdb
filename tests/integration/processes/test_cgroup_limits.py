"""Memory limits of cgroups in the simulated driver: set through our reader, felt by programs in the cgroup."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.gpu import cgroup_limits, world
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.probe import Probe
from tests.fakes.gpu.programs import CLIENT as SCRIPT
from tests.fakes.gpu.programs import GpuHost, Program, host
from tests.fakes.gpu.state import OutOfGpuMemoryError, Sim
from tests.integration.processes.containers import Container, Kubelet, wait_for

pytestmark = pytest.mark.node
ENTER = ("sh", "-c", 'echo $$ > "$CGROUP/cgroup.procs"; exec "$@"', "sh", sys.executable)
GIB = 1024
OUT_OF_MEMORY = 2


class Bed:
    """A machine with a driver of 2026, its reader, and containers."""

    def __init__(self, here: GpuHost, probe: Probe, stack: ExitStack) -> None:
        self.here, self.sim, self.gpu = here, here.sim, here.gpus[2]
        self._probe, self._stack, self._kubelet = probe, stack, Kubelet()

    def container(self) -> Container:
        return self._stack.enter_context(self._kubelet.container())

    def limit(self, cgroup: Path, mib: int) -> None:
        self._probe.ask("set_cgroup_limit", self.gpu, str(cgroup), mib)

    def limit_of(self, cgroup: Path) -> int | None:
        found: int | None = self._probe.ask("cgroup_limit_mib", self.gpu, str(cgroup))
        return found

    def program(self, cgroup: Path) -> Program:
        return self.here.start(prefix=(*ENTER, str(SCRIPT)), CGROUP=str(cgroup), CUDA_VISIBLE_DEVICES=self.gpu)


@pytest.fixture(name="bed")
def _bed() -> Iterator[Bed]:
    library = need_library()
    with ExitStack() as stack:
        here = stack.enter_context(host(library, "mixed"))
        yield Bed(here, stack.enter_context(Probe(here.sim, library)), stack)


def test_an_allocation_beyond_the_limit_fails_and_the_program_lives(bed: Bed) -> None:
    container = bed.container()
    bed.limit(container.cgroup, 4 * GIB)
    assert bed.limit_of(container.cgroup) == 4 * GIB
    program = bed.program(container.cgroup)
    assert "error" not in program.ask("alloc 3072")
    assert program.ask("alloc 1024")["error"] == OUT_OF_MEMORY
    assert program.process.poll() is None


def test_all_processes_of_a_container_share_its_limit_and_neighbours_do_not(bed: Bed) -> None:
    container, neighbour = bed.container(), bed.container()
    bed.limit(container.cgroup, 4 * GIB)
    first, second, other = (bed.program(each.cgroup) for each in (container, container, neighbour))
    assert "error" not in first.ask("alloc 2048")
    assert second.ask("alloc 2048")["error"] == OUT_OF_MEMORY
    assert "error" not in other.ask("alloc 2048")


def test_a_process_below_the_container_is_bound_as_well(bed: Bed) -> None:
    container = bed.container()
    below = container.cgroup / "nested"
    below.mkdir()
    bed.limit(container.cgroup, 2 * GIB)
    program = bed.program(below)
    assert program.ask("alloc 2048")["error"] == OUT_OF_MEMORY
    program.kill()
    wait_for(lambda: not (below / "cgroup.procs").read_text().strip(), 5)
    below.rmdir()


def test_a_tenant_that_holds_memory_through_python_is_bound_as_well(bed: Bed) -> None:
    container = bed.container()
    bed.limit(container.cgroup, 2 * GIB)
    process = container.tenant(bed.sim, "--gpu", bed.gpu, "--mib", "1500")
    with pytest.raises(OutOfGpuMemoryError, match="548 MiB left"):
        bed.sim.allocate(process.pid, bed.gpu, 600)
    world.change(bed.sim, cgroup_limits_bind=0)
    bed.sim.allocate(process.pid, bed.gpu, 600)


def test_a_cgroup_without_a_limit_says_so(bed: Bed) -> None:
    container = bed.container()
    assert bed.limit_of(container.cgroup) is None
    process = container.tenant(bed.sim, "--gpu", bed.gpu, "--mib", "1500")
    assert cgroup_limits.left(bed.sim.folder, bed.gpu, process.pid, []) == float("inf")


@pytest.mark.parametrize(
    ("machine", "index", "known"), [("mixed", 0, True), ("mixed", 1, False), ("pair-16g", 0, False)]
)
def test_only_a_driver_that_has_them_and_no_gpu_in_mig_mode_limits_cgroups(
    tmp_path: Path, machine: str, index: int, *, known: bool
) -> None:
    sim = Sim.create(tmp_path / "sim", machine)
    with Probe(sim, need_library()) as probe:
        assert probe.ask("limits_cgroups", sim.machine.gpus[index].uuid, "/sys/fs/cgroup") is known
