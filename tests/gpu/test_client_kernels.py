"""Which processes ran kernels, as the simulated NVML says it: the clients themselves, or the MPS server for them."""

from collections.abc import Iterator

import pytest

from tests.fakes.gpu import world
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.probe import Probe
from tests.fakes.gpu.programs import Desk, desk
from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Fault

pytestmark = pytest.mark.node
UTILIZATION = "nvmlDeviceGetProcessUtilization"


@pytest.fixture(name="here")
def _here() -> Iterator[Desk]:
    with desk(need_library()) as made:
        yield made


def test_nvml_names_who_ran_kernels_alike_in_c_and_in_python(here: Desk) -> None:
    gpu, reader = here.gpus[0], SimReader(here.sim)
    pipe = here.daemon(1)
    with Probe(here.sim, need_library()) as probe:

        def both(uuid: str = gpu) -> list[int] | None:
            found, python = probe.ask("ran_kernels", uuid), reader.ran_kernels(uuid)
            assert found == (None if python is None else list(python))
            return found  # type: ignore[no-any-return]

        assert both() is both(here.gpus[1]) is None
        idle, busy = here.start(), here.start()
        idle.ask("alloc 10")
        busy.ask("gemm 8 1")
        assert both() == [busy.pid]
        assert both() == []
        client = here.start(pipe=pipe)
        client.ask("gemm 8 1")
        server = int(here.control(pipe, "get_server_list"))
        assert both(here.gpus[1]) == [server], "whose clients they were of is not known then"
        world.change(here.sim, mps_kernels_of_client=1)
        client.ask("sleep 0.06")
        client.ask("gemm 8 1")
        assert both(here.gpus[1]) == [client.pid]
        here.sim.fail(Fault(call=UTILIZATION, error=3))
        assert both() is None
