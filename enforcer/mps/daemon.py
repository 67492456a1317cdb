"""MPS: one control daemon per shared GPU, started, configured, watched and stopped through its own protocol.

One GPU per daemon, so that a fault stays on one GPU and ordinal 0 is always the right one. The daemon runs in the
foreground form (``-f``): its pid is known from the first moment, and nothing has to be guessed when it has to go. It
outlives us (``launcher``): restarting the enforcer must not end a tenant. The next enforcer finds it by a request, and
by the note in its directory.

Nothing here waits longer than its deadline: a tenant can stop every administration of its daemon (``control``).
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import structlog

from enforcer.attribution.procfs import PidHandle, read_stat
from enforcer.mps import protocol
from enforcer.mps.control_program import ControlProgram, Deadline
from enforcer.mps.daemon_commands import DaemonCommands
from enforcer.mps.health_check import HealthCheck
from enforcer.mps.incidents import Incident, IncidentLog
from enforcer.mps.launcher import ChildLauncher, HostPodLauncher, LaunchedProcess, variables
from enforcer.mps.paths import clear, log_tail
from enforcer.mps.protocol import ServerStatus
from enforcer.mps.state_file import DaemonStateFile
from enforcer.mps.watchdog import DaemonWatchdog
from enforcer.nvml.types import ComputeMode
from gpushare.errors import GpuShareError, MpsError
from gpushare.reasons import Reason

STANDING: Final = frozenset({Reason.MPS_CONTROL_BLOCKED, Reason.MPS_FAULT})
"""What is wrong with a daemon that is there: to start it is no help."""
HUNG_SECONDS: Final = 20.0
"""Two questions of ten seconds, without an answer or a cause."""
START_SECONDS: Final = (10.0, 40.0)
"""For the first attempt; doubled after each that ran out, to at most the second: a node that boots may be slow."""
STOP_SECONDS: Final = 5.0
ATTEMPTS: Final = 2
BLOCKED_TRIES: Final = 3
BLOCKED_SECONDS: Final = 4.0
"""For each of these tries to reach a daemon that somebody blocks; then signals have to do."""
POLL: Final = 0.02
PROGRAM: Final = Path("nvidia-cuda-mps-control")

log = structlog.get_logger()


class ComputeModes(Protocol):
    """Reads and changes who may open contexts on a GPU; ``enforcer.nvml.reader.NvmlReader`` does."""

    def compute_mode(self, uuid: str) -> ComputeMode:
        """Read it. Raises ``NvmlError``."""

    def set_compute_mode(self, uuid: str, mode: ComputeMode) -> None:
        """Change it. Raises ``NvmlError``."""


Servers = Mapping[int, ServerStatus | None]
"""Status of each server by its pid; ``None`` where the daemon is too old to say."""


class MpsDaemon:
    """The control daemon of one GPU.

    Args:
        gpu: the GPU's UUID.
        directory: of this daemon alone; ``pipe`` and ``log`` in it are what tenants get mounted.
        binary: NVIDIA's control program.
        limit_mib: what shares can have in all; the next whole GiB, which can be read back exactly, is each client's
            default limit. A client's own only lowers it.
        modes: to set EXCLUSIVE_PROCESS while the daemon runs, and what there was before afterwards; ``None``: leave it.
        server_uid: user whose server is started before the first client comes; ``None``: MPS starts it when one comes.
        environment: what else the daemon finds in its environment.
        launcher: starts it in the MPS pod; ``None``: it is a child of this process.
        incidents: takes what happens to it.
    """

    def __init__(  # noqa: PLR0913 - one thing each, given by name
        self,
        gpu: str,
        directory: Path,
        binary: Path = PROGRAM,
        *,
        limit_mib: int,
        modes: ComputeModes | None = None,
        server_uid: int | None = None,
        environment: Mapping[str, str] | None = None,
        launcher: HostPodLauncher | None = None,
        incidents: IncidentLog | None = None,
    ) -> None:
        self.gpu, self.directory, self.limit_mib = gpu, directory, protocol.whole_gib(limit_mib)
        self.pipe, self.log = directory / "pipe", directory / "log"
        protocol.check_pipe_path(str(self.pipe))
        self._binary, self._modes, self._server_uid = binary, modes, server_uid
        self._environment = {**(os.environ if environment is None else environment), **variables(gpu, directory)}
        self._launcher = launcher or ChildLauncher()
        self._notes = DaemonStateFile(directory, gpu)
        self._incidents = IncidentLog() if incidents is None else incidents
        self._watched = DaemonWatchdog(gpu, self.pipe, self._notes, self._incidents)
        self.control = ControlProgram(binary, directory / "lock", self._environment, self._watched)
        self.client: Final = DaemonCommands(self.control)
        self._checkup = HealthCheck(gpu, self.client, self.limit_mib, self._incidents)
        self._child: LaunchedProcess | None = None
        self._start_seconds = START_SECONDS[0]

    def start(self) -> None:
        """Start the daemon, or take over one that already serves this directory, and put its limit in force.

        Raises:
            MpsError: it does not start, does not answer, or does not keep its limit; then none is left running.
            NvmlError: the compute mode cannot be set.
        """
        with self._explained():
            self._notes.check_owner()
            self._start()

    def _start(self) -> None:
        for folder in (self.directory, self.pipe, self.log):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        taken_over = self.answers()
        if not taken_over:
            self._end_process()
            clear(self.pipe)
        try:
            self._assert_exclusive()
            if not taken_over:
                self._launch()
            self.client.set_limit(self.limit_mib)
        except (GpuShareError, OSError):
            if not taken_over:
                with suppress(GpuShareError):
                    self.stop()
            raise
        self._start_server()
        log.info("MPS control daemon serves", reason=Reason.MPS_STARTED, gpu=self.gpu, taken_over=taken_over)

    def answers(self, deadline: Deadline | None = None) -> bool:
        """Say whether a daemon serves this directory.

        Raises:
            MpsError: one is there but blocked; or that is unknown, because the control program fails while the
                daemon's process lives.
        """
        try:
            self.client.alive(deadline)
        except MpsError as error:
            nobody = protocol.NO_DAEMON in error.message
            if error.reason is Reason.MPS_CONTROL_BLOCKED or (not nobody and self._notes.process() is not None):
                raise
            return False
        return True

    def _came_up(self) -> bool:
        """Say whether the daemon that was just started answers; it may be on its way."""
        with suppress(MpsError):
            self.client.alive()
            return True
        return False

    def health(self) -> Servers:
        """Ask the daemon how it is, and put defaults and compute mode right where they were changed.

        Raises:
            MpsError: it does not answer, or does not keep its settings; or (``MpsFault``) it is there and takes nobody.
            NvmlError: the compute mode cannot be read or set.
        """
        with self._explained():
            self._assert_exclusive()
            self._watched.drain_log_pipe(blocked=False)
            try:
                return self._checkup.run(Deadline())
            except MpsError as error:
                if error.reason is Reason.MPS_CONTROL_BLOCKED and self.control.hung_for() >= HUNG_SECONDS:
                    self._give_up()
                raise

    def _give_up(self) -> None:
        """End a daemon that hangs and that nobody holds up; raises ``MpsError``, so that it is started again."""
        note = f"the MPS daemon of {self.gpu} hung for {self.control.hung_for():.0f} s, so the enforcer ended it"
        self._incidents.record(Incident(self.gpu, Reason.MPS_HUNG, note))
        self._end_process()
        raise MpsError(note)

    def servers(self, deadline: Deadline | None = None) -> tuple[int, ...]:
        """Pids of the servers that run. Raises ``MpsError``."""
        return self.client.servers(deadline)

    def clients(self, server: int, deadline: Deadline | None = None) -> tuple[int, ...]:
        """Pids of a server's clients. Raises ``MpsError``."""
        return self.client.clients(server, deadline)

    def all_clients(self) -> dict[int, int]:
        """Pids of all clients, each with its server's. Raises ``MpsError``."""
        deadline = Deadline()
        return {pid: server for server in self.servers(deadline) for pid in self.clients(server, deadline)}

    def terminate(self, pid: int, deadline: Deadline | None = None, ended: Callable[[], bool] = bool) -> bool | None:
        """End a client's use of the GPU before it is signalled, so that its neighbours survive.

        ``ended`` says whether the process meant has ended; the caller has pinned it since before this call.

        Returns:
            ``True``: it is not a client any more. ``False``: it could not be terminated, or the daemon did not answer.
            ``None``: it is not a client of this daemon, or has ended.

        Raises:
            MpsError: the daemon is blocked (``MpsControlBlocked``), and was so at each of three attempts.
        """
        handle = PidHandle.open(pid)
        if handle is None:
            return None
        notified: list[int] = []
        with handle:
            if ended():
                return None  # who has its pid now is somebody else
            for left in reversed(range(1 if deadline else BLOCKED_TRIES)):
                try:
                    return self._terminate(handle, deadline or Deadline(BLOCKED_SECONDS), notified)
                except MpsError as error:
                    if error.reason is Reason.MPS_CONTROL_BLOCKED and not left:
                        raise
        raise AssertionError("the last attempt returns or raises")

    def _terminate(self, handle: PidHandle, deadline: Deadline, notified: list[int]) -> bool | None:
        """Try once; ``notified``: servers that got the command before and did not answer in time; extended."""
        try:
            server = self._server_of(handle.pid, deadline)
            if server is None:
                return True if notified and not handle.ended() else None
            notified.append(server)
            refusal = self.client.terminate(server, handle.pid, deadline, handle.ended)
        except MpsError as error:
            if error.reason is Reason.MPS_CONTROL_BLOCKED:
                raise
            if error.reason is Reason.ALREADY_EXITED:
                return None
            log.warning(error.message, reason=Reason.TERMINATE_FAILED, gpu=self.gpu, pid=handle.pid)
            return False
        if refusal is not None:
            log.warning(
                "terminate_client failed", reason=Reason.TERMINATE_FAILED, gpu=self.gpu, pid=handle.pid, answer=refusal
            )
        return refusal is None

    def _server_of(self, pid: int, deadline: Deadline) -> int | None:
        for attempt in range(ATTEMPTS):
            try:
                return next((each for each in self.servers(deadline) if pid in self.clients(each, deadline)), None)
            except MpsError as error:
                # A server may end between the two questions; the next list is without it.
                if error.reason is Reason.MPS_CONTROL_BLOCKED or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def pids(self) -> frozenset[int]:
        """The daemon's and its servers' processes: never a target. Raises ``MpsError``."""
        note = self._notes.read()
        return frozenset(self.servers()) | ({note.pid} if note.pid is not None else set())

    def stop(self) -> None:
        """End the daemon, by asking it and then by its pid, and give the GPU its compute mode back.

        Raises:
            MpsError: it was started by nobody we know of and does not listen.
            NvmlError: the compute mode cannot be set back; the note of it stays for the next attempt.
        """
        with self._explained():
            self._notes.check_owner()
            self._stop()

    def _stop(self) -> None:
        deadline = Deadline(STOP_SECONDS)
        with suppress(MpsError):
            if self.answers(deadline):
                self.client.quit(deadline)
        known = self._notes.read().pid is not None
        self._end_process()
        if not known and self.answers():
            raise MpsError(
                f"the MPS control daemon of {self.gpu} does not quit, and the enforcer does not know its pid"
            )
        note = self._notes.read()
        if self._modes is not None and note.previous_mode is not None:
            self._modes.set_compute_mode(self.gpu, ComputeMode(note.previous_mode))
        self._notes.forget()
        log.info("MPS control daemon stopped", reason=Reason.MPS_STOPPED, gpu=self.gpu)

    def _launch(self) -> None:
        self._child = self._launcher.launch(self.gpu, self.directory, self._binary, self._environment)
        stat = read_stat(Path(f"/proc/{self._child.pid}/stat"))
        self._notes.write(replace(self._notes.read(), pid=self._child.pid, start=stat.start if stat else None))
        deadline = Deadline(self._start_seconds)
        while not self._came_up():
            if self._child.poll() is not None or not deadline.left():
                if self._child.poll() is None:
                    self._start_seconds = min(2 * self._start_seconds, START_SECONDS[1])
                raise MpsError(f"the MPS control daemon of {self.gpu} does not start; its log: {log_tail(self.log)}")
            time.sleep(POLL)
        self._start_seconds = START_SECONDS[0]

    def _start_server(self) -> None:
        """Start the server early. A failure is logged; the server then starts with its first client or not at all."""
        if self._server_uid is None:
            return
        deadline = Deadline()
        try:
            if not self.servers(deadline):
                self.client.start_server(self._server_uid, deadline)
            if any(self.client.status(pid, deadline) is not ServerStatus.FAULT for pid in self.servers(deadline)):
                return
            cause = log_tail(self.log)
        except MpsError as error:
            cause = error.message
        log.warning(
            "the MPS server did not start in advance; it starts with its first client",
            reason=Reason.MPS_UNREACHABLE,
            gpu=self.gpu,
            cause=cause,
        )

    def _assert_exclusive(self) -> None:
        """Only MPS's server may open contexts: a tenant that misses the pipe gets nothing instead of everything."""
        if self._modes is None:
            return
        mode = self._modes.compute_mode(self.gpu)
        if mode is not ComputeMode.EXCLUSIVE_PROCESS:
            note = self._notes.read()
            if note.previous_mode is None:
                # Noted before it is changed: after a crash in between there is still something to go back to.
                self._notes.write(replace(note, previous_mode=int(mode)))
            self._modes.set_compute_mode(self.gpu, ComputeMode.EXCLUSIVE_PROCESS)

    def _end_process(self) -> None:
        """End the noted daemon by its pid, if it is still the same process.

        Raises:
            MpsError: it lives on, as one does that waits in the driver. Its note stays: no other is started over it.
        """
        note = self._notes.read()
        handle = None if note.pid is None else PidHandle.open(note.pid)
        if handle is not None:
            with handle:
                stat = read_stat(Path(f"/proc/{note.pid}/stat"))
                if stat is not None and stat.start == note.start and not self._signal(handle):
                    cause = (
                        f"(process {note.pid}) still runs after SIGKILL, so no second daemon starts; drain and "
                        "reboot the node"
                    )
                    raise MpsError(f"the MPS control daemon of {self.gpu} {cause}")
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_SECONDS)
            self._child = None
        if note.pid is not None:
            self._notes.write(replace(note, pid=None, start=None))

    @staticmethod
    def _signal(handle: PidHandle) -> bool:
        """End it; whether it has."""
        # It may be ending already, after `quit`; a moment's patience spares its servers a signal.
        if handle.ended(STOP_SECONDS / 5):
            return True
        for number in (signal.SIGTERM, signal.SIGKILL):
            handle.send(number)
            if handle.ended(STOP_SECONDS):
                return True
        return False

    @property
    def noted(self) -> bool:
        """Whether a daemon of ours was started here and has not been stopped since."""
        return self._notes.read().pid is not None

    @property
    def marked(self) -> bool:
        """Whether there is something of ours to undo here: a daemon, or the compute mode it took."""
        note = self._notes.read()
        return note.pid is not None or note.previous_mode is not None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A directory that cannot be used is something to say, not to die of."""
        try:
            yield
        except OSError as error:
            raise MpsError(f"the enforcer cannot use the MPS directory of {self.gpu}: {error}") from error
