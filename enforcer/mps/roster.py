"""Which GPUs of a node have an MPS daemon, and what each daemon is run with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from enforcer.inventory import InventoryPolicy, capacity_mib, offer
from enforcer.model import Gpu, Mode
from enforcer.mps.daemon import PROGRAM, ComputeModes, MpsDaemon
from enforcer.mps.incidents import Incidents
from enforcer.mps.launch import FOLDER, Launcher, folder_of
from enforcer.mps.manager import MpsManager


@dataclass(frozen=True, slots=True)
class MpsTools:
    """What daemons are run with: NVIDIA's control program, its environment, who starts it, a door to compute modes."""

    modes: ComputeModes
    program: Path = PROGRAM
    environment: Mapping[str, str] | None = None
    launcher: Launcher | None = None
    incidents: Incidents = field(default_factory=Incidents)


def daemons(gpus: Sequence[Gpu], run: Path, policy: InventoryPolicy, tools: MpsTools) -> MpsManager:
    """One daemon per GPU that can be shared, each in a short directory of its own (``folder_of``)."""
    through_mps = replace(policy, mode=Mode.MPS)  # whatever the node's mode is now, it may become that
    shared = [gpu for gpu in gpus if not any(out.uuid == gpu.uuid for out in offer([gpu], through_mps).left_out)]
    return MpsManager(
        {
            gpu.uuid: MpsDaemon(
                gpu.uuid,
                run / FOLDER / folder_of(gpu.uuid),
                tools.program,
                limit_mib=capacity_mib(gpu, policy),
                modes=tools.modes,
                environment=tools.environment,
                launcher=tools.launcher,
                incidents=tools.incidents,
            )
            for gpu in shared
        }
    )
