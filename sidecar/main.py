"""``gpu-share sidecar``: watches the pod's status file, prints what is new in it, serves /metrics; ends on SIGTERM."""

import argparse
import contextlib
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from gpushare.contract import STATUS_PATH
from gpushare.http_server import Answer, Server, text
from sidecar import files, metrics, pod_status

ABOUT: Final = "Watch the pod's status file, print changes, and serve /metrics until SIGTERM."
FINE: Final = 0
WRONG_USE: Final = 2
LISTEN: Final = "0.0.0.0:9403"
POLL_SECONDS: Final = 1.0
SILENT_SECONDS: Final = 60.0
"""The enforcer writes every few seconds; a restart of it takes less than this."""
LAST_WORDS: Final = 0.6
"""Seconds given to the enforcer, once we are to end, to say what came of a kill, or why a container likely failed."""
KILLING: Final = "Killing"
SHORT: Final = 0.95
"""Fraction of a quota, or of a GPU, above which an allocation may have failed; the enforcer explains the failure."""
SHORT_SECONDS: Final = 10.0
"""So long after a shortage a program's end may be due to it."""


class Watcher:
    """What is known of the pod, and which messages have been printed."""

    def __init__(self, file: str, say: Callable[[str], None], clock: Callable[[], float] = time.time) -> None:
        self._file, self._say, self._clock = file, say, clock
        self._seen: frozenset[pod_status.Message] = frozenset()
        self._data: bytes | None = None
        self._silent = False
        self._short: float | None = None
        self.status: pod_status.Status | None = None
        self.printed = 0

    def look(self) -> None:
        """Read the file again and print what is new. A torn file leaves the last status standing, none ends it."""
        data = files.read(self._file, pod_status.MAX_BYTES)
        if data is None:
            self._data = self.status = None
        elif data != self._data and (found := pod_status.parse(data)) is not None:
            self._tell(found)
            self._data, self.status = data, found
            self._short = self._clock() if found.short(SHORT) else self._short
        self._listen()

    @property
    def expecting(self) -> bool:
        """Whether a kill is under way whose outcome is not known yet."""
        return self.status is not None and any(use.state == KILLING for use in self.status.uses)

    @property
    def was_short(self) -> bool:
        """Whether memory was short a moment ago, so that the enforcer may explain why a container ended."""
        return self._short is not None and 0 <= self._clock() - self._short < SHORT_SECONDS

    def _tell(self, found: pod_status.Status) -> None:
        before = self.status is not None and self.status.ready
        if found.ready and not before:
            shares = ", ".join(f"{use.container} {use.quota_mib} MiB on {use.gpu}" for use in found.uses)
            self._say("the share of the GPU is ready" + (f": {shares}" if shares else ""))
        if before and not found.ready:
            self._say(f"the share of the GPU is no longer ready: {found.waiting or 'the enforcer gives no reason'}")
        for message in found.messages:
            if message not in self._seen:
                self._say(str(message))
                self.printed += 1
        self._seen = frozenset(found.messages)

    def _listen(self) -> None:
        """Say once when the enforcer falls silent, and once when it is back."""
        written = self.status.written if self.status else None
        silent = written is not None and self._clock() - written > SILENT_SECONDS
        if silent and not self._silent:
            self._say(
                f"the enforcer has not updated the status for {SILENT_SECONDS:.0f} s: the pod runs on without "
                "quota enforcement"
            )
        if self._silent and not silent:
            self._say("the enforcer is back")
        self._silent = silent

    def page(self, path: str) -> Answer:
        """Return the page served under ``path``."""
        if path != "/metrics":
            return text("there is /metrics", HTTPStatus.NOT_FOUND)
        body = metrics.render(self.status, messages=self.printed, rss_bytes=files.rss_bytes())
        return Answer(body, metrics.CONTENT_TYPE)


def main(argv: Sequence[str]) -> int:
    """Run the sidecar and return the exit code."""
    options = _parser().parse_args(argv)
    try:
        address = _address(options.listen)
    except ValueError as error:
        sys.stderr.write(f"gpu-share sidecar: --listen {options.listen!r:.80}: {error}; write for example {LISTEN}\n")
        return WRONG_USE
    return _run(Watcher(f"{options.status}/{pod_status.FILE}", _say), address)


def _run(watcher: Watcher, address: tuple[str, int]) -> int:
    woken, waker = socket.socketpair()
    woken.settimeout(0)
    waker.settimeout(0)
    stopping: list[int] = []
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda found, _: stopping.append(found))
    server = _serve(watcher, address)
    waited = [woken.fileno(), *([server.fileno()] if server else [])]
    try:
        while not stopping:
            watcher.look()
            select.select(waited, [], [], POLL_SECONDS)
            if server:
                server.work()
    finally:
        signal.set_wakeup_fd(-1)
        if server:
            server.close()
        woken.close()
        waker.close()
    _last_words(watcher)
    return FINE


def _last_words(watcher: Watcher) -> None:
    """Print what happened last: it is most worth reading, and where the pod ends by it nobody else prints it."""
    until, printed = time.monotonic() + LAST_WORDS, watcher.printed
    watcher.look()
    while (watcher.expecting or (watcher.was_short and watcher.printed == printed)) and time.monotonic() < until:
        time.sleep(LAST_WORDS / 6)
        watcher.look()


def _serve(watcher: Watcher, address: tuple[str, int]) -> Server | None:
    """Listen; a port that is taken (a pod on the host's network) costs the metrics, not the sidecar."""
    try:
        server = Server(address, watcher.page, lambda bug: _say(f"cannot serve /metrics: {bug!r:.200}"))
    except OSError as error:
        _say(f"/metrics is not available: cannot listen on {address[0]}:{address[1]}: {error.strerror}")
        return None
    _say(f"watching this pod's share; metrics on port {server.port}, {files.rss_bytes() // 1024} KiB resident")
    return server


def _say(line: str) -> None:
    """Print a line for `kubectl logs`; a log that cannot be written is no reason to end."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:  # noqa: PLR2004 - the last port
        raise ValueError("is not an address with a port")
    return host.strip("[]"), int(port)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-share sidecar", description=ABOUT, allow_abbrev=False)
    parser.add_argument(
        "--status", default=STATUS_PATH, metavar="DIR", help=f"where {pod_status.FILE} is ({STATUS_PATH})"
    )
    parser.add_argument(
        "--listen", default=LISTEN, metavar="HOST:PORT", help=f"address of /metrics (default: {LISTEN})"
    )
    return parser
