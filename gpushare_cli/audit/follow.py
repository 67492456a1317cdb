"""Follow audit logs: the segments on this machine, or the logs of the enforcer's pods on all nodes.

Each enforcer prints its records to its standard output, so that reading all nodes needs only ``get`` on ``pods/log``.
"""

import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from queue import Empty, Queue
from typing import Final

from enforcer.audit.record import MAX_BYTES, read
from enforcer.audit.segments import segments
from gpushare.errors import ClusterError, ConfigError, GpuShareError, RecordError
from gpushare.kube_client import KubeClient
from gpushare_cli import enforcer_pods
from gpushare_cli.api_errors import sentence
from gpushare_cli.audit import filters, remote
from gpushare_cli.audit.filters import Record, RecordFilter, printable
from gpushare_cli.audit.log_reader import Selection, missing, seq_of
from gpushare_cli.exit_codes import FINE, NOT_FINE
from gpushare_cli.terminal import Terminal, cell, warn

FOLLOW_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 5.0
"""Between two requests for the log of one pod."""
REFRESH_SECONDS: Final = 30.0
"""After this time the pods of the enforcer are listed again, for new nodes and replaced pods."""
MAX_WAITING: Final = 1000
"""If this many lines wait to be shown, no more are read."""
NOT_PRINTED: Final = "missing in the enforcer pod's log; read the node's audit log with 'gpu-share audit show -A'"
AT_ONCE: Final = 256 * MAX_BYTES
"""Bytes read of one file at a time."""
Item = bytes | ClusterError


class Tail:
    """Reads what it has not read before; the first time that is the whole log.

    Args:
        folder: of segments, or one segment.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._name, self._offset = folder, "", 0

    def read(self) -> Iterator[bytes]:
        """Yield whole lines with their ends. A line that is still being written waits; an endless one is cut.

        Raises:
            ConfigError: there is no log there, or it cannot be read.
        """
        try:
            files = [self._folder] if self._folder.is_file() else segments(self._folder)
            if files and files[-1].name < self._name:  # the folder was moved away, and a new log begun
                self._name = ""
            for file in [each for each in files if each.name >= self._name]:
                if file.name != self._name:
                    self._name, self._offset = file.name, 0
                with suppress(FileNotFoundError):  # old segments are removed
                    yield from self._new_lines(file)
        except OSError as error:
            raise ConfigError(f"no audit log to follow in {self._folder}: {error.strerror}") from error

    def _new_lines(self, file: Path) -> Iterator[bytes]:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb"):
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{ascii(file.name)[1:-1]} is not a regular file")
            self._offset = min(self._offset, found.st_size)  # a torn tail was cut off
            while taken := _whole(os.pread(descriptor, AT_ONCE, self._offset)):
                self._offset += len(taken)
                yield from (line + b"\n" for line in taken.removesuffix(b"\n").split(b"\n"))


def _whole(data: bytes) -> bytes:
    """Cut off a line that is still being written; not one without end."""
    whole, newline, rest = data.rpartition(b"\n")
    return data if len(rest) > MAX_BYTES else whole + newline


class Printer:
    """Shows records, one a line.

    Args:
        output: ``table``, or ``json``: as they are in the log.
        nodes: whether a table names the node of each record.
    """

    def __init__(self, output: str, *, nodes: bool) -> None:
        self._output, self._nodes, self._terminal = output, nodes, Terminal.of()

    def begin(self) -> None:
        """Write the header."""
        if self._output == "table":
            self._terminal.say("  ".join([filters.NODE] * self._nodes + list(filters.HEADERS)))

    def show(self, line: bytes, record: Record, node: str = "") -> None:
        """Show one record of a node's log."""
        cells = map(cell, [printable(node)] * self._nodes + filters.row(record))
        self._terminal.say("  ".join(cells) if self._output == "table" else line.decode("ascii").rstrip())


def follow_local(tail: Tail, wanted: RecordFilter, printer: Printer, until: float) -> int:
    """Follow the log of this machine until that time (monotonic clock, seconds). Raises ``ConfigError``."""
    code, last = FINE, 0
    printer.begin()
    while True:
        picked = Selection(tail.read(), wanted, last)
        for line, record in picked:
            printer.show(line, record)
        last = picked.last
        for problem in picked.problems():
            warn(problem)
            code = NOT_FINE
        if time.monotonic() >= until:
            return code
        time.sleep(FOLLOW_SECONDS)


def follow_all_nodes(
    api: KubeClient, namespace: str | None, wanted: RecordFilter, printer: Printer, until: float
) -> int:
    """Follow the logs of all nodes, also of nodes that come later, until that time (monotonic clock, seconds).

    Raises:
        GpuShareError: the enforcers cannot be found, see ``find_enforcers``, or do not print their records.
    """
    streams = _Streams(api, namespace)
    nodes: dict[str, _Node] = {}
    printer.begin()
    try:
        while (now := time.monotonic()) < until:
            streams.refresh(now)
            with suppress(Empty):
                node, item = streams.items.get(timeout=min(FOLLOW_SECONDS, until - now))
                nodes.setdefault(node, _Node(node, wanted, printer)).take(item)
    finally:
        streams.stopped.set()
    return NOT_FINE if any(each.troubled for each in nodes.values()) else FINE


class _Streams:
    """The logs of the enforcer's pods, each read by a thread.

    Attributes:
        items: what the threads read: a node's name, with a line of its log or with the error that ended reading.
    """

    def __init__(self, api: KubeClient, namespace: str | None) -> None:
        self._api, self._namespace = api, namespace
        self.items: Final = Queue[tuple[str, Item]](MAX_WAITING)
        self.stopped: Final = threading.Event()
        self._pods: set[str] = set()
        self._refreshed = time.monotonic()
        self._start()

    def refresh(self, now: float) -> None:
        """Read the logs of pods that are new. Where the API server does not answer, each node reports it."""
        if now >= self._refreshed + REFRESH_SECONDS:
            self._refreshed = now
            with suppress(GpuShareError):
                self._start()

    def _start(self) -> None:
        enforcers = enforcer_pods.find_enforcers(self._api, self._namespace)
        if any(enforcer.silent for enforcer in enforcers):
            raise GpuShareError(
                "the enforcers do not print audit records (enforcer.auditToStdout is false); use "
                "'gpu-share audit show -A'"
            )
        for enforcer in enforcers:
            if enforcer.pod not in self._pods:
                self._pods.add(enforcer.pod)
                threading.Thread(target=self._read, args=[enforcer], name=f"log of {enforcer.pod}", daemon=True).start()

    def _read(self, enforcer: enforcer_pods.EnforcerPod) -> None:
        """Read one pod's log until the pod is gone, from its start each time."""
        while not self.stopped.is_set():
            try:
                for number, line in enumerate(remote.printed(self._api, enforcer)):
                    if number == 0 or seq_of(line) is not None:
                        self.items.put((enforcer.node, line))
            except ClusterError as error:
                self.items.put((enforcer.node, error))
                if error.status == HTTPStatus.NOT_FOUND:
                    return
            self.stopped.wait(RETRY_SECONDS)


class _Node:
    """What was shown of one node's log."""

    def __init__(self, name: str, wanted: RecordFilter, printer: Printer) -> None:
        self._name, self._wanted, self._printer = name, wanted, printer
        self._seq, self._time = 0, ""
        self._failed, self._lost = False, False

    @property
    def troubled(self) -> bool:
        """Whether the log cannot be read now, or lacked records."""
        return self._failed or self._lost

    def take(self, item: Item) -> None:
        """Show a line if it is a record that is new and asked for; report an error once until the log is read again."""
        if isinstance(item, ClusterError):
            if not self._failed:
                self._warn(f"cannot follow the log of the enforcer pod: {sentence(item)}; retrying")
            self._failed = True
            return
        if self._failed:
            self._warn("the log of the enforcer pod is readable again")
        self._failed = False
        with suppress(RecordError):  # a line of the enforcer's own log
            self._show(item, read(item))

    def _show(self, line: bytes, record: Record) -> None:
        if record["seq"] <= self._seq and record["time"] <= self._time:
            return  # shown before the connection was lost; the numbers of a new log begin at 1, and its times are later
        if lost := missing(self._seq, record["seq"], NOT_PRINTED):
            self._lost = True
            self._warn(lost)
        self._seq, self._time = record["seq"], record["time"]
        if self._wanted.matches(record):
            self._printer.show(line, record, self._name)

    def _warn(self, text: str) -> None:
        warn(str(printable(f"node {self._name}: {text}")))
