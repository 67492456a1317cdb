"""The 34 faults: what each does to the world when its moment has come, and what undoes it."""

import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enforcer.detection import state_file
from enforcer.quota.checkpoint import NAME, Checkpoint
from enforcer.runtime.lock import NAME as LOCK
from tests.safety.matrix.page import Switch
from tests.safety.matrix.people import Group

if TYPE_CHECKING:
    from tests.safety.matrix.run import Run

WITHIN, OVER = 1000, 9000
"""MiB below and above every quota here."""
BRIEF: Final = 0.15
LONG: Final = 0.3
STOPPED: Final = 1.0
DAY: Final = 86400
ROOM: Final = 3
"""File descriptors a process without room may have: its standard streams."""


class Ends(StrEnum):
    """How a run has to end."""

    KILLED = "the container is back under its quota because its processes were ended"
    SETTLED = "nobody has to be ended any more, and nothing is"


Step = Callable[["Run"], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """``strike`` is done while the enforcer stands at the moment, ``lift`` ``seconds`` later."""

    name: str
    strike: Step
    lift: Step
    seconds: float = BRIEF
    ends: Ends = Ends.KILLED


def nothing(_: "Run") -> None:
    """Nothing to undo."""


def _switched(name: str, switch: Switch, seconds: float = BRIEF) -> Fault:
    return Fault(
        name, lambda run: run.page.switch(switch, on=True), lambda run: run.page.switch(switch, on=False), seconds
    )


def _spike(run: "Run") -> None:
    run.page.hold(run.bed.neighbour.pids[0], OVER)


def _spike_over(run: "Run") -> None:
    run.page.hold(run.bed.neighbour.pids[0], WITHIN)


def _term(run: "Run") -> None:
    run.signal(signal.SIGTERM)


def _kill(run: "Run") -> None:
    run.signal(signal.SIGKILL)


def _stop(run: "Run") -> None:
    run.signal(signal.SIGSTOP)


def _continue(run: "Run") -> None:
    run.signal(signal.SIGCONT)


def _spoil_memory(run: "Run") -> None:
    """An enforcer dies, and what it would have remembered is spoilt."""
    run.signal(signal.SIGKILL)
    garbage = (b"", b"{", b'{"version": 1}', b"\xff" * 100, b'{"version": 0, "bootId": "x", "cases": [], "kills": []}')
    (run.state / state_file.NAME).write_bytes(run.chance.choice(garbage))
    run.tell("forgotten")


def _no_descriptors(run: "Run") -> None:
    _, hard = run.limit = resource.prlimit(run.patient, resource.RLIMIT_NOFILE)
    resource.prlimit(run.patient, resource.RLIMIT_NOFILE, (ROOM, hard))


def _descriptors(run: "Run") -> None:
    if run.patient:
        with suppress(ProcessLookupError):
            resource.prlimit(run.patient, resource.RLIMIT_NOFILE, run.limit)


def _hide(run: "Run") -> None:
    (run.folder / "nothing").mkdir()
    _point(run.folder / "proc", run.folder / "nothing")


def _show(run: "Run") -> None:
    _point(run.folder / "proc", Path("/proc"))


def _point(link: Path, target: Path) -> None:
    new = link.with_name("new")
    new.symlink_to(target)
    new.rename(link)


def _lose_lock(run: "Run") -> None:
    """Somebody tidies the lock file away, and a second enforcer starts."""
    (run.state / LOCK).unlink(missing_ok=True)
    run.start_second()


def _end_second(run: "Run") -> None:
    run.end_second()


def _busy_port(run: "Run") -> None:
    run.occupy()
    run.signal(signal.SIGKILL)


def _free_port(run: "Run") -> None:
    run.vacate()


def _vanish(run: "Run") -> None:
    run.end_victim()


def _made_again(run: "Run") -> None:
    """The container ends; another of the same name and path, with another inode, is within the quota."""
    old = run.victim
    run.end_victim()
    run.adopt(Group(old.mount, old.pod_uid, old.container_id).make(), WITHIN)


def _restarted(run: "Run") -> None:
    run.end_victim()
    run.adopt(Group(run.victim.mount, run.victim.pod_uid).make(), WITHIN, known=True)


def _stale(run: "Run") -> None:
    """The container restarted and is over its quota, and nobody has told the enforcer of it."""
    run.end_victim()
    run.adopt(Group(run.victim.mount, run.victim.pod_uid).make(), OVER)


def _deleted(run: "Run") -> None:
    run.allow([quota for quota in run.quotas if quota.pod_uid != run.victim.pod_uid])


def _frees(run: "Run") -> None:
    run.page.hold(run.big, WITHIN)
    run.tell("freed", container=run.victim.container_id)


def _forks(run: "Run") -> None:
    run.hold(run.person(run.victim.spawn(run.blocked), run.victim, "victim"), OVER)


def _sets_clock(run: "Run") -> None:
    run.page.wall = run.chance.choice((10 * 365 * DAY, -10 * 365 * DAY, 3600, -3600))


def _resets_clock(run: "Run") -> None:
    run.page.wall = 0


def _storm(run: "Run") -> None:
    """Everybody is over at once, as with a quota in the wrong unit."""
    for group in run.crowd:
        run.hold(group.pids[0], OVER)


def _halts(run: "Run") -> None:
    with suppress(ProcessLookupError):
        os.kill(run.big, signal.SIGSTOP)


def _spoil_checkpoint(run: "Run") -> None:
    (run.state / NAME).write_bytes(run.chance.choice((b"", b"{", b"[]", b'{"version": 9, "quotas": []}', b"\0" * 64)))


def _mend_checkpoint(run: "Run") -> None:
    (run.state / NAME).unlink()  # one of a newer release is not overwritten
    Checkpoint(run.state).write(run.quotas)


FAULTS: Final[tuple[Fault, ...]] = (
    _switched("NVML error", Switch.NVML_ERROR),
    _switched("GPU lost", Switch.NVML_LOST),
    _switched("NVML hangs", Switch.NVML_HANG, LONG),
    _switched("NVML crashes", Switch.NVML_CRASH),
    _switched("NVML insane", Switch.NVML_INSANE),
    Fault("NVML spike on a neighbour", _spike, _spike_over, 0.02),
    _switched("MPS blocked", Switch.MPS_BLOCKED),
    _switched("MPS dead", Switch.MPS_DEAD),
    _switched("MPS lies", Switch.MPS_LYING, LONG),
    _switched("MPS refuses", Switch.MPS_REFUSES),
    _switched("EIO", Switch.EIO),
    _switched("ENOSPC", Switch.ENOSPC),
    _switched("EROFS", Switch.EROFS),
    _switched("slow sync", Switch.SLOW_SYNC, LONG),
    Fault("EMFILE", _no_descriptors, _descriptors),
    _switched("ENOMEM", Switch.ENOMEM),
    Fault("proc hidden", _hide, _show),
    Fault("SIGTERM", _term, nothing),
    Fault("SIGKILL", _kill, nothing),
    Fault("SIGSTOP", _stop, _continue, STOPPED),
    Fault("state file spoilt", _spoil_memory, nothing),
    Fault("lock lost", _lose_lock, _end_second, LONG),
    Fault("metrics port busy", _busy_port, _free_port),
    Fault("cgroup vanishes", _vanish, nothing, ends=Ends.SETTLED),
    Fault("cgroup made again", _made_again, nothing, ends=Ends.SETTLED),
    Fault("container restarts", _restarted, nothing, ends=Ends.SETTLED),
    Fault("pod deleted", _deleted, _vanish, ends=Ends.SETTLED),
    Fault("API stale", _stale, _vanish, LONG, Ends.SETTLED),
    Fault("memory freed", _frees, nothing, ends=Ends.SETTLED),
    Fault("victim forks", _forks, nothing),
    Fault("wall clock set", _sets_clock, _resets_clock),
    Fault("everybody over", _storm, nothing, LONG, Ends.SETTLED),
    Fault("checkpoint spoilt", _spoil_checkpoint, _mend_checkpoint),
    Fault("victim stopped", _halts, nothing),
)
BY_NAME: Final = {fault.name: fault for fault in FAULTS}
STORM: Final = "everybody over"
