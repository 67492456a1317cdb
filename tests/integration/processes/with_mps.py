"""A machine whose enforcer shares its GPU through MPS."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.launcher import folder_of
from gpushare.errors import MpsError
from tests.fakes.gpu import mps_control
from tests.integration.processes.enforcing import Node


@contextmanager
def machine_with_mps(folder: Path, *options: str) -> Iterator[Node]:
    """Start one. The daemon outlives its enforcer, so it is ended here."""
    with ExitStack() as stack:
        # Not pytest's own folder: its paths are too long for sockets.
        run = Path(tempfile.mkdtemp(prefix="mps"))
        stack.callback(shutil.rmtree, run)
        node = Node(folder, stack)
        program = mps_control.install(run, node.sim.folder)
        daemon = MpsDaemon(node.gpu, run / "mps" / folder_of(node.gpu), program, limit_mib=1)
        stack.callback(_stop, daemon)
        stack.callback(node.end)
        node.start(*options, run=run, path=run)
        yield node


def _stop(daemon: MpsDaemon) -> None:
    with suppress(MpsError):
        daemon.stop()
