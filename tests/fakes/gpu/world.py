"""How hardware behaves: a switch per fact, so that each experiment can meet its contrary.

The defaults are what an H100 with driver 580.159.04 did where that was measured, and a belief elsewhere.

Written as ``key=value`` lines into the file ``world`` of a machine's state folder; the C sources name the same
defaults, and a test holds them together.
"""

from collections.abc import Mapping
from typing import Final

from tests.fakes.gpu.state import Sim

NEW: Final = 580
"""From this driver on an MPS server makes no file in /dev/shm, and a stranger's commands to its daemon are refused."""
DEFAULTS: Final[Mapping[str, str]] = {
    # Memory: what a context takes, and whose row shows what.
    "context_mib": "0",  # of a bare client; 0: by the multiprocessors it may use, 516 at 132
    "managed_counted": "0",  # managed memory stands in the process's row
    "ipc_counted": "2",  # imported memory stands in the importer's row: 1 as well, 2 when the exporter has ended
    "created_counted": "1",  # memory of cuMemCreate stands in the process's row
    "pooled_counted": "1",  # memory of cuMemAllocAsync's pool does
    "mps_clients_listed": "compute,mps",  # the lists an MPS client stands in: compute, mps, none
    "server_mib": "66",  # what the MPS server's own row shows; 0: it has none
    # The pinned limit.
    "escape_by_unseen_entry": "1",  # an entry for a GPU that is not seen, or without an amount, drops every limit
    "env_limit_raises": "0",  # the environment may raise what the daemon set
    "late_setenv_counts": "0",  # the variable is read again at each allocation
    "limit_counts_managed": "1",
    "limit_counts_imported": "1",
    "limit_counts_created": "1",
    "limit_counts_pooled": "1",
    "limit_is_free": "1",  # CUDA calls what is left of it free memory
    "limit_is_total": "0",  # CUDA calls it total memory
    "limit_per_process": "1",  # 0: per cgroup
    "cgroup_counts_managed": "0",  # NVML's limit per cgroup (R615)
    "cgroup_limits_bind": "1",  # 0: it is kept, shown, and not enforced
    # Modes and directories.
    "missing_pipe_runs_plain": "1",  # no daemon: plain CUDA; 0: error 805
    "idle_server_holds_gpu": "1",  # a server without clients keeps plain CUDA out in EXCLUSIVE_PROCESS
    "shm_needed": "-1",  # a client has to open its server's file in /dev/shm; -1: before driver 580
    "multiuser_shm_mode": "666",  # of that file, where one server serves all users; else 600, of its user
    "max_clients": "48",
    # The control socket.
    "foreign_uid_waits": "1",  # single-user mode: another user's client waits for the last one to go; 0: error 807
    # -1: before driver 580.
    "foreign_uid_may_set": "-1",
    "foreign_uid_may_terminate": "-1",
    "foreign_uid_may_shutdown": "-1",
    "multiuser_supported": "1",  # 0: the daemon ends silently, as 535 without a GPU
    # Death and faults.
    "sigkill_hurts_neighbours": "0",  # 1: they get error 719; 2: they compute wrongly
    "terminate_hurts_neighbours": "0",
    "terminate_xid": "0",
    "fault_contained": "0",  # only the faulting client is hurt
    "fault_neighbour_error": "700",
    "fault_xid": "31",
    # Speed.
    "sm_count": "0",  # multiprocessors; 0: as the machine file says
    "kernel_us": "200",  # the least a kernel takes
    "mps_concurrent": "1",  # kernels of MPS clients run side by side
    "mps_kernels_of_client": "0",  # NVML says that a client ran kernels; 0: that the server did
    "poll_holds_us": "0",  # each list NVML makes stops the GPU for so long
}


def change(sim: Sim, **values: str | int) -> None:
    """Set switches of this world, others stay. Raises ``ValueError`` for one that does not exist."""
    unknown = sorted(values.keys() - DEFAULTS.keys())
    if unknown:
        raise ValueError(f"this world has no switch {', '.join(unknown)}; there are {', '.join(DEFAULTS)}")
    now = current(sim) | {name: str(value) for name, value in values.items()}
    written = "".join(f"{name}={value}\n" for name, value in now.items() if value != DEFAULTS[name])
    file, temporary = sim.folder / "world", sim.folder / ".world.new"
    temporary.write_text(written)
    temporary.rename(file)


def current(sim: Sim) -> dict[str, str]:
    """Every switch as it stands."""
    file = sim.folder / "world"
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(DEFAULTS) | dict(line.split("=", 1) for line in lines)


def unless_new(sim: Sim, name: str) -> bool:
    """One switch that says what drivers before 580 do where this world says nothing."""
    value = number(sim, name)
    return bool(value) if value >= 0 else not is_new(sim)


def is_new(sim: Sim) -> bool:
    """Whether the machine's driver is 580 or newer."""
    return int(sim.machine.driver.partition(".")[0]) >= NEW


def number(sim: Sim, name: str) -> int:
    """One switch that is a number."""
    return int(current(sim)[name])
