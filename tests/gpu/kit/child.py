"""What runs in a child process of ours, with the driver's libraries at hand: one experiment, or one look around."""

import json
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from enforcer.nvml.reader import NvmlReader
from enforcer.nvml.types import ComputeMode
from gpushare.errors import GpuShareError
from tests.gpu.kit import facts as looking
from tests.gpu.kit.backend import Facts
from tests.gpu.kit.client import HURRY_S, Client
from tests.gpu.kit.machine import Machine
from tests.gpu.kit.registry import Experiment, named
from tests.gpu.kit.result import NotMeasurable, Result, Trouble, not_measured
from tests.gpu.kit.setup import Setup


def one(name: str, folder: str) -> int:
    """Run an experiment in its folder and leave ``result.json`` there. Told to end, it tidies up and leaves nothing."""
    signal.signal(signal.SIGTERM, _time_is_up)
    work, experiment = Path(folder), named(name)
    setup = Setup.from_json((work / "setup.json").read_text())
    known = Facts(**json.loads((work / "facts.json").read_text()))
    begun = time.monotonic()
    machine = Machine(setup, known, work)
    try:
        result = judge(experiment, machine)
    finally:
        machine.close()
    whole = result.of(experiment.name, experiment.hypothesis, time.monotonic() - begun, machine.journal.entries())
    (work / "result.new").write_text(whole.to_json())
    (work / "result.new").rename(work / "result.json")
    return 0


def _time_is_up(*_: object) -> None:
    # Whoever hangs will not quit for being waited for; the daemon still has to be stopped in order.
    Client.end_s = HURRY_S
    sys.exit(1)


def judge(experiment: Experiment, machine: Machine) -> Result:
    """What the experiment says; what it raises is an answer too."""
    try:
        return experiment.run(machine)
    except NotMeasurable as error:
        return not_measured(str(error))
    except GpuShareError as error:
        traceback.print_exc()
        return not_measured(f"broke off: {error.message}", Trouble.ERROR)
    except Exception as error:  # noqa: BLE001 - the rest of the run goes on, and this one says what it was
        traceback.print_exc()
        broken = not_measured(f"broke off: {type(error).__name__}: {error}", Trouble.ERROR)
        return replace(broken, raw=[{"kind": "traceback", "answered": traceback.format_exc()}])


def facts(file: str) -> int:
    """Print what the machine is: ``{"gpu": uuid, "facts": {...}}``."""
    gpu, found = looking.look(Setup.from_json(Path(file).read_text()))
    print(json.dumps({"gpu": gpu, "facts": found.as_dict()}))
    return 0


def mode(file: str, name: str) -> int:
    """Give the GPU this compute mode where it has another."""
    setup, reader = Setup.from_json(Path(file).read_text()), NvmlReader()
    if reader.compute_mode(setup.gpu) is not ComputeMode[name]:
        reader.set_compute_mode(setup.gpu, ComputeMode[name])
    return 0


def visible(file: str, folder: str) -> int:
    """Print in which of NVML's lists a plain CUDA process of ours stands; ``{}`` where it gets no context."""
    setup = Setup.from_json(Path(file).read_text())
    machine = Machine(setup, Facts(), Path(folder))
    try:
        with machine.client() as client:
            said = client.ask("alloc 256") if client.usable else client.hello
            lists = {name: machine.nvml(f"nvmlDeviceGet{name}RunningProcesses", "@") for name in LISTS}
            seen = [name for name, rows in lists.items() if client.pid in pids(rows)]
            print(json.dumps({"lists": seen, "said": said, "usable": client.usable}))
    finally:
        machine.close()
    return 0


LISTS = ("Compute", "Graphics", "MPSCompute")


def pids(rows: object) -> list[int]:
    """The pids of a raw process list; none where it is an error."""
    return [row["pid"] for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


CHILDREN: dict[str, Callable[..., int]] = {"_one": one, "_facts": facts, "_mode": mode, "_visible": visible}
