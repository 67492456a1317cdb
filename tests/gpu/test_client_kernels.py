"""Which processes ran kernels, as the simulated NVML says it."""

import time
from collections.abc import Iterator

import pytest

from tests.fakes.gpu import world
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.probe import Probe
from tests.fakes.gpu.programs import GpuHost, host
from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Fault

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
            return None if python is None else [pid for pid, percent in sorted(python or ()) if percent]

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
