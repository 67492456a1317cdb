"""The stand-in for ``nvidia-cuda-mps-control``: the real one cannot start a server without a GPU.

``mps_daemon.py`` is its daemon, and ``mps_client.c`` passes commands to it. Same command line, same words on standard
input and output; clients are the processes that hold simulated memory of kind ``mps`` on the daemon's GPU. A test holds
it to the real program's answers. What goes wrong is scripted with ``Sim.fail_mps``.
"""

import sys
from pathlib import Path

from tests.fakes.gpu.build import MPS_CLIENT, library_folder

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """\
#!/bin/sh
# The simulator's stand-in for NVIDIA's program.
export GPU_SHARE_SIM={state}
python={python}
[ -x "$python" ] || python=/opt/gpu-share/bin/python
case "$1" in -d|-f|-multiuser-server) cd {root} && exec "$python" -m tests.fakes.gpu.mps_daemon "$@" {more};; esac
exec {client} "$@"
"""


def install(folder: Path, state: Path) -> Path:
    """Put an executable into ``folder`` that takes ``nvidia-cuda-mps-control``'s place on the machine in ``state``."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(script(state, ROOT, library_folder() / MPS_CLIENT))
    program.chmod(0o755)
    return program


def script(state: Path, root: Path, client: Path, *more: str) -> str:
    """The program: it starts the daemon below ``root``, with ``more`` words, or ``client``."""
    return SCRIPT.format(python=sys.executable, state=state, root=root, client=client, more=" ".join(more))
