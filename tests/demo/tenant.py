"""The demo's GPU program: holds some memory of the simulated GPU, and takes more when told to by SIGUSR1.

python -m tests.demo.tenant GPU-UUID MIB [MORE-MIB]
"""

import os
import signal
import sys
from collections.abc import Sequence

from tests.fakes.gpu.state import Sim


def main(argv: Sequence[str]) -> int:
    """Run until killed."""
    gpu, mib, *more = argv
    sim = Sim.from_environment()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    sim.allocate(os.getpid(), gpu, int(mib))
    for step in more:
        signal.sigwait([signal.SIGUSR1])
        sim.allocate(os.getpid(), gpu, int(step) - int(mib))
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
