"""The simulated machine: the same programs and libraries by name, and a ``world`` in which hypotheses may be false."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.fakes.gpu import mps_control
from tests.fakes.gpu.build import MPS_CLIENT, library_folder
from tests.fakes.gpu.state import ENV, Fault, MpsFault, Sim
from tests.fakes.gpu.world import change
from tests.gpu.kit.find import CONTROL
from tests.gpu.kit.setup import Setup, python_of_others

MACHINE: Final = "single-16g"
MPS: Final = "mps."
NVML: Final = "nvml."


def prepare(
    folder: Path, world: Mapping[str, str], *, machine: str = MACHINE, allow_mode_change: bool = False
) -> Setup:
    """Build the libraries and put a machine into ``folder``.

    ``world`` goes into the simulator's file of that name, but for two kinds of keys: ``mps.<command>=<answer>`` makes
    the MPS daemon answer something else, ``nvml.<function>=<error number>`` makes NVML fail.

    Raises:
        NoCompilerError: the libraries cannot be built here.
        ValueError: the world has no such switch.
    """
    sim = Sim.create(folder / "sim", machine)
    _open(sim.folder)
    script(sim, world)
    libraries = folder / "lib"
    shutil.copytree(library_folder(), libraries, dirs_exist_ok=True)
    return Setup(
        backend="fake", gpu=sim.machine.gpus[0].uuid,
        environment={ENV: str(sim.folder), "LD_LIBRARY_PATH": str(libraries)},
        mps_control=str(_program(folder, sim, libraries)), python_of_others=python_of_others(),
        allow_mode_change=allow_mode_change, world=dict(world),
    )  # fmt: skip


def script(sim: Sim, world: Mapping[str, str]) -> None:
    """Make the simulator's world be like this. Raises ``ValueError`` for a switch it has not."""
    change(sim, **{key: value for key, value in world.items() if not key.startswith((MPS, NVML))})
    spoken = {key.removeprefix(MPS): value for key, value in world.items() if key.startswith(MPS)}
    sim.fail_mps(*(MpsFault(command=command, answer=f"{answer}\n") for command, answer in spoken.items()))
    calls = {key.removeprefix(NVML): value for key, value in world.items() if key.startswith(NVML)}
    sim.fail(*(Fault(call=call, error=int(error)) for call, error in calls.items()))


def _program(folder: Path, sim: Sim, libraries: Path) -> Path:
    """The stand-in, runnable by every user: its daemon runs here, a transaction may be anybody's."""
    program = folder / CONTROL
    program.write_text(mps_control.script(sim.folder, mps_control.ROOT, libraries / MPS_CLIENT))
    program.chmod(0o755)
    return program


def _open(folder: Path) -> None:
    """Tenants are other users here as on a node, and the simulator's state is theirs to write."""
    (folder / "lock").touch()
    for each in (folder, *folder.rglob("*")):
        each.chmod(0o777 if each.is_dir() else 0o666)
