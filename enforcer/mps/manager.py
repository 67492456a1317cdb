"""The MPS control daemons of a node, by GPU. They come and go, and one that is silent holds up no other."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

import structlog

from enforcer.mps.daemon import MpsDaemon, Servers
from gpushare.errors import GpuShareError
from gpushare.reasons import Reason

log = structlog.get_logger()

AT_ONCE: Final = 16
"""Daemons asked side by side. One that is blocked answers nobody for ten seconds."""
T = TypeVar("T")
R = TypeVar("R")


class MpsManager:
    """The daemons there are. Safe to use from several threads; each daemon lets one transaction in at a time.

    Args:
        daemons: those there are from the start, by GPU.
    """

    def __init__(self, daemons: Mapping[str, MpsDaemon] | None = None) -> None:
        self._lock = threading.Lock()
        self._daemons = dict(daemons or {})
        self._absent: set[str] = set(self._daemons.keys() - self.noted())
        self._notified: set[str] = set()
        self._listeners: list[Callable[[str], object]] = []

    @property
    def daemons(self) -> Mapping[str, MpsDaemon]:
        """All there are now, by GPU."""
        with self._lock:
            return dict(self._daemons)

    def add(self, daemon: MpsDaemon) -> None:
        """Take a GPU's daemon in; one that is there already stays. It is not started by that."""
        with self._lock:
            if daemon.gpu not in self._daemons:
                self._daemons[daemon.gpu] = daemon
                self._absent |= set() if daemon.noted else {daemon.gpu}
                self._tell(daemon.gpu, self._listeners)

    def replace(self, daemon: MpsDaemon) -> None:
        """Put another in the place of a GPU's daemon: the same process, known better."""
        with self._lock:
            self._daemons[daemon.gpu] = daemon

    def subscribe(self, listener: Callable[[str], object]) -> None:
        """Tell of every GPU that has a daemon now or ever will, once each."""
        with self._lock:
            self._listeners.append(listener)
            for gpu in self._notified | self._daemons.keys():
                self._tell(gpu, [listener], again=True)

    def remove(self, gpu: str) -> None:
        """Forget a GPU's daemon, which was stopped before."""
        with self._lock:
            self._daemons.pop(gpu, None)
            self._absent.discard(gpu)

    def _tell(self, gpu: str, listeners: Iterable[Callable[[str], object]], *, again: bool = False) -> None:
        if again or gpu not in self._notified:
            for listener in listeners:
                listener(gpu)
        self._notified.add(gpu)

    def answers(self, gpu: str) -> bool:
        """Say whether a GPU's daemon serves. Raises ``MpsError`` where it is there but blocked."""
        daemon = self.daemons.get(gpu)
        return daemon is not None and daemon.answers()

    def noted(self) -> frozenset[str]:
        """The GPUs whose daemon was started and not stopped since, also by an enforcer before us."""
        return frozenset(gpu for gpu, daemon in self.daemons.items() if daemon.noted)

    def marked(self) -> frozenset[str]:
        """The GPUs that had a daemon, and are not what they were before it yet: it runs, or their compute mode is."""
        return frozenset(gpu for gpu, daemon in self.daemons.items() if daemon.marked)

    def start(self, gpus: Collection[str] | None = None) -> dict[str, GpuShareError]:
        """Start those of ``gpus`` (``None``: all) that are not there; by UUID, what went wrong with which."""
        found = self._each(MpsDaemon.start, gpus)
        failures = {gpu: answer for gpu, answer in found.items() if isinstance(answer, GpuShareError)}
        for gpu, error in failures.items():
            log.error(error.message, reason=error.reason, gpu=gpu)
        # One that is not there has no clients; one that is blocked, or runs on while NVML fails, may have many.
        failed = {
            gpu for gpu, error in failures.items() if error.reason is not Reason.MPS_CONTROL_BLOCKED
        } - self.noted()
        with self._lock:
            self._absent = (self._absent - found.keys()) | (failed & self._daemons.keys())
        return failures

    def health(self, gpus: Collection[str] | None = None) -> dict[str, Servers | GpuShareError]:
        """Ask those of ``gpus`` (``None``: all); by UUID, the status of each one's servers, or why it is unknown."""
        return self._each(MpsDaemon.health, gpus)

    def terminate(self, pid: int, gpu: str | None = None, ended: Callable[[], bool] = bool) -> bool | None:
        """Terminate an MPS client, of one GPU or wherever it is one; see ``MpsDaemon.terminate``.

        Raises:
            MpsError: a daemon is blocked.
        """
        asked = {name for name in self.daemons if gpu in {None, name}} - self._absent
        answers = self._each(lambda daemon: daemon.terminate(pid, ended=ended), asked).values()
        for answer in answers:
            if isinstance(answer, GpuShareError):
                raise answer
        if False in answers:
            return False
        return True if True in answers else None

    def pids(self) -> frozenset[int]:
        """All daemons' and servers' processes that can be known now: never a target."""
        found = self._each(MpsDaemon.pids).values()
        return frozenset[int]().union(*(pids for pids in found if not isinstance(pids, GpuShareError)))

    def stop(self, gpus: Collection[str] | None = None) -> None:
        """Stop those of ``gpus`` (``None``: all). Raises the last error after trying every one."""
        errors = [answer for answer in self._each(MpsDaemon.stop, gpus).values() if answer is not None]
        if errors:
            raise errors[-1]

    def _each(self, ask: Callable[[MpsDaemon], R], gpus: Collection[str] | None = None) -> dict[str, R | GpuShareError]:
        def answer(gpu: str) -> R | GpuShareError:
            try:
                return ask(daemons[gpu])
            except GpuShareError as error:
                return error

        daemons = self.daemons
        return side_by_side(answer, [gpu for gpu in daemons if gpus is None or gpu in gpus])


def side_by_side(work: Callable[[T], R], items: Iterable[T], at_once: int = AT_ONCE) -> dict[T, R]:
    """Do something to each of them at the same time, in threads that end with the process; by item, what came of it.

    Raises:
        Exception: what one of them raised, after all have come to their end.
    """
    todo: SimpleQueue[T] = SimpleQueue()
    found: dict[T, R] = {}
    bugs: list[Exception] = []

    def run() -> None:
        with suppress(Empty):
            while True:
                item = todo.get_nowait()
                try:
                    found[item] = work(item)
                except Exception as bug:  # noqa: BLE001 - raised again below, where it is expected
                    bugs.append(bug)

    for item in items:
        todo.put(item)
    count = min(at_once, todo.qsize()) - 1
    others = [threading.Thread(target=run, name="mps-daemon", daemon=True) for _ in range(count)]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    for bug in bugs:
        raise bug
    return found
