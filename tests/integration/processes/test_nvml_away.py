"""An enforcer that is there before its driver: it waits, says so, and takes GPUs and daemons up when they come."""

import json
from collections.abc import Iterator

import pytest

from tests.integration.processes.containers import wait_for
from tests.integration.processes.test_driver_root import Machine, laid_out

pytestmark = pytest.mark.node
EXCLUSIVE = 3


@pytest.fixture(name="machine")
def _made() -> Iterator[Machine]:
    with laid_out() as made:
        yield made


def seen(machine: Machine) -> set[str]:
    status = json.loads((machine.state / "status.json").read_text())
    return {gpu["uuid"] for gpu in status["gpus"]}


def noted(machine: Machine) -> set[str]:
    """GPUs whose daemon runs; a note is written before that, when the compute mode changes."""
    notes = [json.loads(note.read_text()) for note in (machine.run / "mps").glob("*/daemon.json")]
    return {note["gpu"] for note in notes if note["pid"] is not None}


def test_gpus_and_daemons_come_with_the_driver_and_without_a_restart(machine: Machine) -> None:
    driver, aside = machine.root / "driver", machine.root / "aside"
    driver.rename(aside)
    machine.start(driver)
    assert machine.enforcer is not None
    wait_for(lambda: any("no libnvidia-ml.so.1 below" in each for each in machine.problems()), 20)
    assert (seen(machine), noted(machine)) == (set(), set())
    aside.rename(driver)
    everyone = {gpu.uuid for gpu in machine.sim.machine.gpus}
    wait_for(lambda: seen(machine) == everyone, 20)
    wait_for(lambda: noted(machine) == everyone and machine.problems() == [], 20)
    assert {machine.sim.compute_mode(gpu) for gpu in everyone} == {EXCLUSIVE}
    assert machine.enforcer.poll() is None
