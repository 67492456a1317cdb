"""``gpu-share enforcer``: runs one node's enforcer until it is asked to stop.

Exit codes: 0 stopped when asked to, 1 something it cannot do without failed, 2 wrong use.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from typing import Final

import structlog

from enforcer.attribution.procfs import CgroupAttributor, in_initial_pid_namespace
from enforcer.build import build
from enforcer.flags import parse
from enforcer.loop import EnforcementLoop
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.runtime import capabilities, lock
from enforcer.runtime.logs import configure_logging
from enforcer.runtime.manager import Manager
from gpushare.errors import ConfigError, GpuShareError
from gpushare.reasons import Reason
from gpushare.signals import stopped_by_signal

FINE: Final = 0
NOT_FINE: Final = 1
WRONG_USE: Final = 2
log = structlog.get_logger()


def main(argv: Sequence[str], *, reader: GpuReader | None = None, attributor: CgroupAttributor | None = None) -> int:
    """Run ``gpu-share enforcer`` and return its exit code.

    Args:
        argv: the arguments.
        reader: reads the GPUs instead of NVML.
        attributor: finds the container of a process in another way than by its cgroup, where cgroups cannot be made.
    """
    try:
        options = parse(argv)
        configure_logging(options.log_level)
        return _run(options, reader, attributor or CgroupAttributor())
    except GpuShareError as error:
        sys.stderr.write(f"gpu-share enforcer: {error.reason}: {error.message}\n")
        return WRONG_USE if isinstance(error, ConfigError) else NOT_FINE


def _run(options: argparse.Namespace, reader: GpuReader | None, attributor: CgroupAttributor) -> int:
    if options.drop_capabilities:
        capabilities.drop_unneeded(daemons=not (options.no_mps or options.mps_host))
    with lock.acquire_lock(options.state, wait=True) as hold:
        _check_namespace(options)
        manager = Manager()
        loop = build(options, manager, hold, reader, attributor)
        try:
            manager.start()
            _serve(loop, options, manager)
        finally:
            manager.stop()
        return FINE if hold.lost() is None else NOT_FINE


def _serve(loop: EnforcementLoop, options: argparse.Namespace, manager: Manager) -> None:
    stopped_by_signal(manager.stopped)
    log.info(
        "enforcer started", reason=str(Reason.ENFORCER_STARTED), node=options.node, state=str(options.state),
        enforcing=not options.no_enforce, poll=options.poll_seconds,
    )  # fmt: skip
    gc.collect()
    gc.freeze()  # what is there now stays: looking through all of it again and again takes longer than a look
    loop.run(manager.stopped, options.poll_seconds)
    log.info("enforcer stopped", reason=str(Reason.ENFORCER_STOPPED), node=options.node)


def _check_namespace(options: argparse.Namespace) -> None:
    """In another pid namespace than the host's, NVML's pids are somebody else's.

    Raises:
        ConfigError: we are in one.
    """
    if not (options.allow_any_pid_namespace or in_initial_pid_namespace()):
        message = "the enforcer is not in the host's pid namespace, which NVML's pids belong to; set hostPID: true"
        raise ConfigError(message, Reason.NOT_INITIAL_PID_NAMESPACE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
