"""The one implementation of ``Backend``: real and simulated machines differ in their ``Setup`` alone."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from enforcer.mps.daemon import MpsDaemon
from enforcer.mps.launcher import MULTIUSER
from enforcer.nvml.reader import NvmlReader
from enforcer.nvml.types import ComputeMode
from gpushare.contract import CUDA_VISIBLE_DEVICES, MPS_PIPE_DIRECTORY
from gpushare.errors import GpuShareError, MpsError, NvmlError
from tests.gpu.kit import cgroups, raw_nvml
from tests.gpu.kit.backend import Container, Facts, Said
from tests.gpu.kit.client import READY_S, Client
from tests.gpu.kit.journal import Journal
from tests.gpu.kit.result import NotMeasurable
from tests.gpu.kit.setup import LAUNCH, Setup

MODE_REFUSED: Final = "mode change not allowed"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOLDER: Final = """
import socket, sys
try:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(sys.argv[1])
    print("connected", flush=True)
    sys.stdin.read()
except OSError as error:
    print(error, flush=True)
"""
RESERVE_MIB: Final = 1024
"""Left of the card when a limit as large as the card is wanted: the daemon's own context lives there."""


class Machine:
    """See ``Backend``. ``work`` is this experiment's own folder; close the machine when the experiment is over."""

    def __init__(self, setup: Setup, facts: Facts, work: Path) -> None:
        self._setup, self.facts, self.tmp = setup, facts, work
        self.name, self.gpu, self.allow_mode_change = setup.backend, setup.gpu, setup.allow_mode_change
        self.journal = Journal()
        self._count = itertools.count()
        self._end = ExitStack()
        self._client_program = _shared_copy(Path(setup.client), work)
        (work / "cache").mkdir(exist_ok=True)
        (work / "cache").chmod(0o1777)

    def close(self) -> None:
        """End whatever was started and is still there."""
        self._end.close()

    def client(
        self,
        env: Mapping[str, str] | None = None,
        *,
        uid: int | None = None,
        cgroup: str | None = None,
        gpu: str | None = None,
        private_shm: bool = False,
        server_files: bool = False,
        arguments: Sequence[str] = (),
        wait: bool = True,
    ) -> Client:
        """See ``Backend``."""
        shm = ["--private-shm", *(["--server-files"] if server_files else [])] if private_shm else []
        launch = self._launch(uid, ["--cgroup", cgroup] if cgroup else [], shm)
        device = self.gpu if gpu is None else gpu
        program = [
            self._python(uid),
            "-S",
            str(self._client_program),
            *(["--gpu", device] if device else []),
            *arguments,
        ]
        errors = self.tmp / f"client-{next(self._count)}.err"
        client = Client([*launch, *program], {**self._bare(), **(env or {})}, errors, self.journal)
        self._end.callback(client.close)
        if wait:
            client.ready(READY_S)
        return client

    def daemon_env(self, daemon: MpsDaemon, **more: str) -> dict[str, str]:
        """See ``Backend``."""
        return {MPS_PIPE_DIRECTORY: str(daemon.pipe), CUDA_VISIBLE_DEVICES: self.gpu, **more}

    def reader(self) -> NvmlReader:
        """See ``Backend``."""
        reader = NvmlReader()
        self._end.callback(reader.close)
        return reader

    def nvml(self, name: str, *arguments: Any) -> Any:
        """See ``Backend``."""
        answer = raw_nvml.call(name, *arguments, gpu=self.gpu)
        self.journal.add("nvml", [name, *map(str, arguments)], answer)
        return answer

    @contextmanager
    def mps(
        self, *, limit_mib: int | None = None, single_user: bool = False, exclusive: bool = False, name: str = "mps"
    ) -> Iterator[MpsDaemon]:
        """See ``Backend``."""
        if exclusive:
            self._may_change_mode()
        daemon = MpsDaemon(
            self.gpu, self.tmp / name, self._program(single_user=single_user),
            limit_mib=limit_mib or max(1, self.facts.memory_mib - RESERVE_MIB),
            modes=self.reader() if exclusive else None, environment=self._bare(),
        )  # fmt: skip
        # The daemon may be stopped by whoever has started it, or at the end of the experiment: once.
        with ExitStack() as stopping:
            self._end.callback(stopping.close)
            stopping.callback(_stop, daemon)
            self._started(daemon)
            try:
                yield daemon
            finally:
                stopping.close()
                self.journal.add("mps-log", str(daemon.log), logs_of(daemon))

    def control(self, daemon: MpsDaemon, command: str, *, uid: int | None = None, timeout: float = 10.0) -> Said:
        """See ``Backend``."""
        environment = {**self._bare(), **self.daemon_env(daemon)}
        said = run([*self._launch(uid), self._setup.mps_control], environment, f"{command}\n", timeout)
        answered = {"status": said.status, "out": said.out, "err": said.err, "seconds": said.seconds}
        self.journal.add("mps", command if uid is None else {"command": command, "uid": uid}, answered)
        return said

    @contextmanager
    def silent_holder(self, daemon: MpsDaemon, uid: int) -> Iterator[int]:
        """See ``Backend``."""
        command = [*self._launch(uid), self._python(uid), "-S", "-c", HOLDER, str(daemon.pipe / "control")]
        holder = subprocess.Popen(command, env=self._bare(), stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        try:
            said = holder.stdout.readline().strip() if holder.stdout else ""
            self.journal.add("holder", {"uid": uid, "pid": holder.pid}, said)
            if said != "connected":
                raise NotMeasurable(f"uid {uid} cannot connect to the control socket: {said}")
            yield holder.pid
        finally:
            holder.kill()
            holder.communicate()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """See ``Backend``."""
        self._may_change_mode()
        reader = self.reader()
        before = reader.compute_mode(self.gpu)
        try:
            reader.set_compute_mode(self.gpu, ComputeMode.EXCLUSIVE_PROCESS)
            yield
        except NvmlError as error:
            raise NotMeasurable(f"the compute mode cannot be changed: {error.message}") from error
        finally:
            with suppress(NvmlError):
                reader.set_compute_mode(self.gpu, before)

    @contextmanager
    def container(self) -> Iterator[Container]:
        """See ``Backend``."""
        mount = Path(self.facts.known.get("cgroup") or cgroups.find())
        try:
            made = cgroups.make(mount, self.tmp / "cgroups")
        except OSError as error:
            raise NotMeasurable(f"no cgroup can be made for a tenant: {error}") from error
        yield made
        # Removed by the runner from the list, when the processes are gone for certain.

    def fixture(self, name: str, text: str) -> None:
        """See ``Backend``."""
        file = self.tmp / "fixtures" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _may_change_mode(self) -> None:
        if not self.allow_mode_change:
            raise NotMeasurable(MODE_REFUSED)
        if os.geteuid() != 0:
            raise NotMeasurable("the compute mode can be changed by root only")

    def _program(self, *, single_user: bool) -> Path:
        if not self._setup.mps_control:
            raise NotMeasurable(self._setup.mps_problem or "no MPS programs")
        if not single_user:
            return Path(self._setup.mps_control)
        wrapper = self.tmp / "control-single-user"
        # It ends silently on the option, as the real one does where it cannot serve several users.
        wrapper.write_text(
            f'#!/bin/sh\ncase " $* " in *" {MULTIUSER} "*) exit 1 ;; esac\nexec {self._setup.mps_control} "$@"\n'
        )
        wrapper.chmod(0o755)
        return wrapper

    def _started(self, daemon: MpsDaemon) -> None:
        try:
            daemon.start()
        except MpsError as error:
            raise NotMeasurable(f"the MPS daemon does not start: {error.message}") from error

    def _python(self, uid: int | None) -> str:
        if uid is None:
            return self._setup.python
        if not self._setup.python_of_others:
            raise NotMeasurable(f"there is no Python that uid {uid} could run")
        return self._setup.python_of_others

    def _launch(self, uid: int | None, *more: list[str]) -> list[str]:
        options = [*(["--uid", str(uid)] if uid is not None else []), *itertools.chain(*more)]
        return [self._setup.python, "-S", str(LAUNCH), *options, "--"] if options else []

    def _bare(self) -> dict[str, str]:
        folders = [str(Path(each).parent) for each in (self._setup.mps_control, self._setup.mps_server) if each]
        return {
            "PATH": ":".join([*folders, PATH]), "LANG": "C.UTF-8",
            "CUDA_CACHE_PATH": str(self.tmp / "cache"), **self._setup.environment,
        }  # fmt: skip


def run(command: list[str], environment: Mapping[str, str], given: str, timeout: float) -> Said:
    """Run a program to its end, or to its timeout; it never raises for what the program does."""
    begun = time.monotonic()
    process = subprocess.Popen(
        command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", errors="replace", cwd="/",
    )  # fmt: skip
    try:
        out, err = process.communicate(given, timeout)
        status: int | None = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        status = None
    return Said(status=status, out=out, err=err, seconds=round(time.monotonic() - begun, 4))


def logs_of(daemon: MpsDaemon) -> dict[str, str]:
    """The ends of what daemon and server wrote."""
    found = {}
    for file in sorted(daemon.log.glob("*.log")):
        with suppress(OSError):
            found[file.name] = file.read_text(errors="replace")[-16_000:]
    return found


def _stop(daemon: MpsDaemon) -> None:
    try:
        daemon.stop()
    except GpuShareError as error:
        print(error.message, file=sys.stderr)


def _shared_copy(program: Path, work: Path) -> Path:
    """The client where every user can read it: a checkout may lie in somebody's home."""
    copy = work / program.name
    copy.write_bytes(program.read_bytes() if program.exists() else b"")
    copy.chmod(0o755)
    return copy
