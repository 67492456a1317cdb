"""During a driver upgrade nothing of the enforcer holds the driver; afterwards all is as before, without a restart."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from enforcer.quota.driver_upgrade import STATE
from tests.integration.processes.containers import wait_for
from tests.integration.processes.test_driver_root import Machine, laid_out
from tests.integration.processes.test_nvml_away import noted
from tests.integration.processes.test_threads import NODE, Api, start
from tests.support.kubelet import KubeletCalls

pytestmark = pytest.mark.node


class LabelledNode(Api):
    """An API server whose node has the labels that a test sets."""

    labels: ClassVar[dict[str, str]] = {}

    def node(self) -> dict[str, Any]:
        return {"metadata": NODE["metadata"] | {"labels": NODE["metadata"]["labels"] | self.labels}}


def holders(machine: Machine) -> set[int]:
    """Processes that have the driver's library or a device of it open: by their memory maps and open files."""
    return {int(folder.name) for folder in Path("/proc").glob("[0-9]*") if any(held(folder, str(machine.root)))}


def held(process: Path, root: str) -> Iterator[str]:
    with suppress(OSError):
        yield from (
            line for line in (process / "maps").read_text().splitlines() if root in line and "libnvidia" in line
        )
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                opened = str(descriptor.readlink())
                if opened.startswith("/dev/nvidia") or ("libnvidia" in opened and root in opened):
                    yield opened


def daemons(machine: Machine) -> set[int]:
    """Pids of the MPS daemons that run."""
    notes = [json.loads(note.read_text()) for note in (machine.run / "mps").glob("*/daemon.json")]
    return {note["pid"] for note in notes if note["pid"] is not None and Path(f"/proc/{note['pid']}").exists()}


def test_nothing_holds_the_driver_while_it_is_upgraded_and_all_comes_back() -> None:
    LabelledNode.labels = {}
    with laid_out() as machine, ExitStack() as stack:
        everyone = {gpu.uuid for gpu in machine.sim.machine.gpus}
        enforcer = start(machine, stack, LabelledNode)
        calls = stack.enter_context(KubeletCalls(machine.root / "kubelet"))
        wait_for(lambda: noted(machine) == everyone, 60)
        calls.register()
        driver, aside = machine.root / "driver", machine.root / "aside"
        wait_for(lambda: noted(machine) == everyone and holders(machine) != set(), 60)
        assert {machine.sim.compute_mode(gpu) for gpu in everyone} == {3}
        LabelledNode.labels = {STATE: "pod-restart-required"}
        wait_for(lambda: not daemons(machine) and not holders(machine), 20)
        assert {machine.sim.compute_mode(gpu) for gpu in everyone} == {0}
        driver.rename(aside)  # the old driver goes
        answer = calls.prepare(("asr", "claim", "00000000-0000-4000-8000-000000000001"))
        assert "DriverUpgrade" in str(answer)
        wait_for(lambda: any("NVML is closed" in each for each in machine.problems()), 20)
        assert holders(machine) == set()
        assert enforcer.poll() is None
        aside.rename(driver)  # the new one comes
        LabelledNode.labels = {STATE: "upgrade-done"}
        wait_for(lambda: noted(machine) == everyone and machine.problems() == [], 30)
        assert enforcer.poll() is None
