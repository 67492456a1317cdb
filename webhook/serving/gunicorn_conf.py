"""How gunicorn serves the application. Each value that is not gunicorn's default has its reason beside it."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gunicorn.app.base import BaseApplication

from webhook.flags import Options
from webhook.serving.gunicorn_worker import Worker
from webhook.serving.logs import LogStream, standard_library

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

KEEPALIVE_SECONDS: Final = 95
"""Longer than the API server's own 90 s: the side that may be sending should be the one that closes."""
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - heartbeat files; a disk there would stall the worker


Context = Callable[[], ssl.SSLContext]
Closed = Callable[[str], None]


class Server(BaseApplication):  # type: ignore[misc] # gunicorn ships no types
    """gunicorn with settings from here and nowhere else: no command line, no file, no ``GUNICORN_CMD_ARGS``.

    Args:
        settings: as ``settings`` returns them.
        load: builds the application in the worker, after the fork: threads do not survive one.
    """

    def __init__(self, settings: dict[str, Any], load: Callable[[], "WSGIApplication"]) -> None:
        self._settings, self._load = settings, load
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        for name, value in self._settings.items():
            self.cfg.set(name, value)

    def load(self) -> "WSGIApplication":
        """Called by gunicorn, in the worker."""
        return self._load()


def settings(options: Options, context: Context, on_closed: Closed, stream: LogStream) -> dict[str, Any]:
    """Return what differs from gunicorn's defaults.

    Args:
        options: of the command line.
        context: returns the TLS context for one handshake.
        on_closed: called with why a connection was closed before its request was whole.
        stream: where gunicorn's log lines go.
    """
    host, port = options.bind
    return {
        "bind": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        # gunicorn makes the instance itself.
        "worker_class": type("WebhookWorker", (Worker,), {"on_closed": staticmethod(on_closed)}),
        # One process: metrics, caches and the controller live in it; replicas do the scaling.
        "workers": 1,
        # The API server reuses connections; a new one costs four requests' time.
        "keepalive": KEEPALIVE_SECONDS,
        "timeout": 30,
        "graceful_timeout": 20,
        # It would be opened in $HOME, which is read-only in the container.
        "control_socket_disable": True,
        **({"worker_tmp_dir": str(SHARED_MEMORY)} if SHARED_MEMORY.is_dir() else {}),
        # Naming files is what switches TLS on, and they have to exist; the pair itself is read by the hook below only.
        "certfile": os.devnull,
        "keyfile": os.devnull,
        "ssl_context": lambda _config, _default: context(),
        "logconfig_dict": standard_library(options.settings.log_level, stream),
        "proc_name": "gpu-share-webhook",
    }
