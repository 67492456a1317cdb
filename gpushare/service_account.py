"""A pod's own way to the API server: where it is, and who the pod is there, as the kubelet mounts it.

The official client reads the same three things, but takes 15 MiB to load, in an enforcer on every node. Kubeconfigs,
with all their ways to log in, are left to it (``gpushare.kubeconfig``).
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Final, Protocol, Self

import urllib3

from gpushare.errors import ClusterError

FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
READ_AGAIN: Final = 60.0
"""Seconds a token is used before its file is read again: the kubelet puts a newer one there long before it expires."""
CONNECTIONS: Final = 16
"""Kept open for the next call."""
KEEPALIVE: Final = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A connection whose other end is gone without a word ends after half a minute. Seconds, seconds, probes."""


def _socket_options() -> list[tuple[int, int, int]]:
    there = [(name, value) for name, value in KEEPALIVE.items() if hasattr(socket, name)]  # not every system has all
    options = [(socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in there]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *options]


class Access(Protocol):
    """A way to an API server."""

    host: str
    """Such as ``https://10.96.0.1:443``."""
    pool: urllib3.PoolManager

    def authorization(self) -> dict[str, str]:
        """The headers that say who asks. Raises ``ClusterError``: that cannot be known now."""


class ServiceAccount:
    """The pod's service account.

    Args:
        host: see ``Access``.
        folder: where ``token`` and ``ca.crt`` are.
        clock: seconds that never go back.
    """

    def __init__(self, host: str, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.host: str = host
        self.authority: Final = folder / "ca.crt"
        self.pool: urllib3.PoolManager = urllib3.PoolManager(
            maxsize=CONNECTIONS,
            cert_reqs="CERT_REQUIRED",
            ca_certs=str(self.authority),
            socket_options=_socket_options(),
        )
        self._file, self._clock = folder / "token", clock
        self._token, self._due = "", -inf

    @classmethod
    def found(cls, environ: Mapping[str, str] = os.environ, folder: Path = FOLDER) -> Self | None:
        """Find it; ``None`` outside of pods, and in one that was given none."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
        if not (host and port and _content(folder / "token") and _content(folder / "ca.crt")):
            return None
        return cls(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", folder)

    def authorization(self) -> dict[str, str]:
        """See ``Access``. While the file cannot be read, the last token is sent: the server says when it is too old."""
        now = self._clock()
        if now >= self._due and (found := _content(self._file)):
            self._token, self._due = found, now + READ_AGAIN
        if not self._token:
            raise ClusterError(f"the pod's service account has no token: {self._file} cannot be read or is empty")
        return {"Authorization": f"Bearer {self._token}"}


def _content(file: Path) -> str:
    """What a file says; empty where it cannot be read."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
