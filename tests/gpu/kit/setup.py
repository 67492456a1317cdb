"""What a run is told about its machine, in a form that travels to the child process of each experiment."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

ROOT: Final = Path(__file__).resolve().parents[3]
CLIENT: Final = ROOT / "tests" / "gpu" / "client.py"
LAUNCH: Final = Path(__file__).parent / "launch.py"
PYTHONS: Final = ("/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3")
OTHERS: Final = 0o001


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where things are, and what is allowed.

    ``environment`` goes to every process that touches the GPU: where the libraries are, and for the fake where the
    simulated machine is. ``mps_problem`` says why there are no MPS programs; empty where there are.
    """

    backend: str
    gpu: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    mps_control: str = ""
    mps_server: str = ""
    mps_problem: str = ""
    client: str = str(CLIENT)
    python: str = sys.executable
    python_of_others: str = ""
    allow_mode_change: bool = False
    world: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        values: dict[str, Any] = json.loads(text)
        return cls(**values)


def python_of_others(wanted: str = sys.executable) -> str:
    """A Python that every user can run, best our own; empty where there is none."""
    return next((each for each in (wanted, *PYTHONS) if reachable(Path(each))), "")


def reachable(path: Path) -> bool:
    """Whether any user can get at a file: each folder on the way, links followed, and the file itself."""
    try:
        real = path.resolve(strict=True)
        steps = [*path.absolute().parents, *real.parents, real]
        return all(step.stat().st_mode & OTHERS for step in steps) and os.access(real, os.X_OK)
    except OSError:
        return False
