"""What NVML says of a GPU's health, through the real nvidia-ml-py and the simulated library."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.reasons import Reason
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.probe import Probe
from tests.fakes.gpu.state import Fault, Machine, Sim

pytestmark = pytest.mark.node


@pytest.fixture(name="sim")
def _sim(tmp_path: Path) -> Sim:
    return Sim.create(tmp_path / "sim", "pair-16g")


@pytest.fixture(name="uuids")
def _uuids(sim: Sim) -> list[str]:
    return [gpu.uuid for gpu in sim.machine.gpus]


@pytest.fixture(name="probe")
def _probe(sim: Sim) -> Iterator[Probe]:
    with Probe(sim, need_library()) as probe:
        yield probe


def reason(probe: Probe, *question: Any) -> Any:
    with pytest.raises(LookupError) as caught:
        probe.ask(*question)
    return caught.value.args[0]


@pytest.mark.parametrize("machine", ["pair-16g", "mixed"], ids=["rows are remapped", "pages are retired"])
def test_memory_errors_that_wait_for_a_reset_are_an_ailment(sim: Sim, probe: Probe, machine: str) -> None:
    sim.become(Machine.named(machine))
    uuid = sim.machine.gpus[0].uuid
    assert probe.ask("ailment", uuid) is None
    sim.mark("ecc", uuid)
    assert probe.ask("ailment", uuid) == Reason.ECC_UNCORRECTABLE


def test_a_driver_that_knows_neither_question_finds_nothing(sim: Sim, probe: Probe, uuids: list[str]) -> None:
    sim.mark("ecc", uuids[0])
    sim.fail(
        Fault(call="nvmlDeviceGetRemappedRows", error=13),
        Fault(call="nvmlDeviceGetRetiredPagesPendingStatus", error=3),
    )
    assert probe.ask("ailment", uuids[0]) is None


@pytest.mark.parametrize("error", [15, 16], ids=["lost", "needs a reset"])
def test_a_lost_gpu_is_reported_to_be_and_still_described(sim: Sim, probe: Probe, uuids: list[str], error: int) -> None:
    before = probe.ask("gpus")
    sim.fail(Fault(call="*", error=error, gpu=uuids[0]))
    for question in (("sample", uuids[0]), ("ailment", uuids[0])):
        assert reason(probe, *question) == Reason.GPU_LOST
    assert probe.ask("gpus") == before
    assert probe.ask("sample", uuids[1])["uuid"] == uuids[1]


def test_one_that_was_lost_from_the_start_hides_no_other(sim: Sim, probe: Probe, uuids: list[str]) -> None:
    sim.fail(Fault(call="*", error=15, gpu=uuids[0]))
    assert [(gpu["uuid"], gpu["index"]) for gpu in probe.ask("gpus")] == [(uuids[1], 1)]
    sim.fail(*(Fault(call="*", error=15, gpu=uuid) for uuid in uuids))
    assert [gpu["uuid"] for gpu in probe.ask("gpus")] == [uuids[1]]
    with Probe(sim, need_library()) as late:
        assert reason(late, "gpus") == Reason.GPU_LOST


def test_critical_errors_are_heard_once_and_not_those_of_the_past(sim: Sim, probe: Probe, uuids: list[str]) -> None:
    sim.raise_xid(uuids[0], 48)
    assert probe.ask("critical_errors") == []
    sim.raise_xid(uuids[1], 79)
    sim.raise_xid(uuids[0], 31)
    assert probe.ask("critical_errors") == [[uuids[1], 79], [uuids[0], 31]]
    assert probe.ask("critical_errors") == []


def test_errors_are_heard_again_after_the_library_was_closed(sim: Sim, probe: Probe, uuids: list[str]) -> None:
    probe.ask("critical_errors")
    probe.ask("close")
    assert probe.ask("critical_errors") == []
    sim.raise_xid(uuids[0], 79)
    assert probe.ask("critical_errors") == [[uuids[0], 79]]
