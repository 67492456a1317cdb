"""Which processes ran kernels, as the simulated NVML says it, and whom the enforcer names for managed memory."""

import time
from collections.abc import Iterator

import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.usage import UsageSampler
from enforcer.nvml.types import ran_kernels
from enforcer.status.unattributed_monitor import UnattributedMonitor
from tests.fakes.gpu import world
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.probe import Probe
from tests.fakes.gpu.programs import GpuHost, host
from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Fault
from tests.support.wiring import Attribution

pytestmark = pytest.mark.node


@pytest.fixture(name="here")
def _here() -> Iterator[GpuHost]:
    with host(need_library()) as made:
        yield made


def now() -> int:
    return time.time_ns() // 1000


def test_nvml_names_who_ran_kernels_alike_in_c_and_in_python(here: GpuHost) -> None:
    gpu, reader = here.gpus[0], SimReader(here.sim)
    pipe = here.daemon(1)
    with Probe(here.sim, need_library()) as probe:

        def both(after: int, uuid: str = gpu) -> list[int] | None:
            found, python = probe.ask("utilization", uuid, after), reader.utilization(uuid, after)
            assert found == (None if python is None else [list(row) for row in python])
            return None if python is None else list(ran_kernels(python) or ())

        assert both(0) == both(0, here.gpus[1]) == []
        idle, busy = here.start(), here.start()
        idle.ask("alloc 10")
        busy.ask("gemm 8 1")
        assert both(0) == [busy.pid]
        assert both(now()) == []
        client = here.start(pipe=pipe)
        client.ask("gemm 8 1")
        server = int(here.control(pipe, "get_server_list"))
        assert both(0, here.gpus[1]) == [server], "whose clients they were of is not known then"
        world.change(here.sim, mps_kernels_of_client=1)
        after = now()
        client.ask("sleep 0.06")
        client.ask("gemm 8 1")
        assert both(after, here.gpus[1]) == [client.pid]
        here.sim.fail(Fault(call="nvmlDeviceGetProcessUtilization", error=3))
        assert both(0) is None


def test_who_takes_managed_memory_alone_is_named_and_beside_another_nobody(here: GpuHost) -> None:
    def owner(pid: int) -> Identity:
        return Identity(pid=pid, start=pid, owner=ContainerRef(f"pod-{pid}", f"container-{pid}"))

    reader = SimReader(here.sim)
    watch = UsageSampler(reader, Attribution(owner))
    monitor = UnattributedMonitor(watch, reader)
    taker, other = here.start(), here.start()

    def round_(*busy: object) -> None:
        taker.ask("alloc 100 managed")
        for program in (taker, other):
            program.ask("sleep 0.06")
            if program in busy:
                program.ask("gemm 8 1")
        watch.sample()
        monitor.turn()

    watch.sample()
    monitor.turn()
    for _ in range(5):
        round_(taker)
    found = monitor.growth()[here.gpus[0]]
    assert (found.mib, found.only) == (500, f"container-{taker.pid}")
    round_(taker, other)
    assert monitor.growth()[here.gpus[0]].only is None
