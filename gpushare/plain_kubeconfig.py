"""Kubeconfigs that hold certificates or a token: these are read here, for the official client takes long to load.

What says more, such as a command that logs in, a proxy or several files, is left to ``gpushare.kubeconfig``, and
so is what cannot be read: it says why. That no file is there is known here.
"""

import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final, Self
from urllib.request import getproxies

import urllib3
import yaml
from urllib3.util.ssl_ import create_urllib3_context

from gpushare.errors import ClusterError
from gpushare.service_account import CONNECTIONS

CA, CERTIFICATE, KEY = "certificate-authority", "client-certificate", "client-key"
CLUSTER_FIELDS: Final = frozenset({"server", CA, f"{CA}-data", "extensions"})
USER_FIELDS: Final = frozenset({CERTIFICATE, f"{CERTIFICATE}-data", KEY, f"{KEY}-data", "token", "extensions"})
GIVE: Final = "give --kubeconfig"
ABSENT: Final = f"no usable kubeconfig: Invalid kube-config file. No configuration found; {GIVE}"
UNREAD: Final = (
    yaml.YAMLError, OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What comes of a file that is left to the official client."""


class PlainKubeconfig:
    """A way to the API server that a kubeconfig describes (``service_account.Access``).

    Attributes:
        source: the file and the context that were given, if any.
    """

    def __init__(self, file: str | None, context: str | None) -> None:
        where, config = _content(file)
        chosen = _context(config, context)
        cluster, user = _named(config, "cluster", chosen["cluster"]), _named(config, "user", chosen["user"])
        if cluster.keys() - CLUSTER_FIELDS or user.keys() - USER_FIELDS or getproxies():
            raise ValueError("it needs more than certificates and a token")
        self.source: Final = file, context
        self.host: str = cluster["server"].rstrip("/")
        self._token = user.get("token")
        tls = create_urllib3_context()
        tls.load_verify_locations(cadata=_pem(cluster, CA, where).decode("ascii"))
        if not user.keys().isdisjoint({CERTIFICATE, f"{CERTIFICATE}-data"}):
            with NamedTemporaryFile() as together:
                together.write(_pem(user, CERTIFICATE, where) + b"\n" + _pem(user, KEY, where))
                together.flush()
                tls.load_cert_chain(together.name, password="")  # else it would ask at the terminal
        self.pool = urllib3.PoolManager(maxsize=CONNECTIONS, ssl_context=tls)

    @classmethod
    def read(cls, file: str | None = None, context: str | None = None) -> Self | None:
        """Read the given file, or the user's own; ``None``: the official client has to.

        Raises:
            ClusterError: there is no such file.
        """
        if not any(each.exists() for each in _files(file)):
            raise ClusterError(f"no usable kubeconfig in {file}: the file does not exist; {GIVE}" if file else ABSENT)
        with suppress(*UNREAD):
            return cls(file, context)
        return None

    def authorization(self) -> dict[str, str]:
        """See ``Access``."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}


def namespace_of(file: str | None, context: str | None) -> str | None:
    """Return the namespace that a context names, ``default`` where it names none; ``None``: ask the official client."""
    with suppress(*UNREAD):
        return str(_context(_content(file)[1], context).get("namespace") or "default")
    return None


def _content(file: str | None) -> tuple[Path, Mapping[str, Any]]:
    """Return the folder and the content of one file; several are merged by the official client."""
    (found,) = _files(file)
    return found.parent, yaml.safe_load(found.read_bytes())


def _files(file: str | None) -> list[Path]:
    where = os.environ.get("KUBECONFIG", "~/.kube/config") if file is None else file
    return [Path(each).expanduser() for each in where.split(os.pathsep)]


def _context(config: Mapping[str, Any], name: str | None) -> Mapping[str, Any]:
    return _named(config, "context", config["current-context"] if name is None else name)


def _named(config: Mapping[str, Any], kind: str, name: str) -> Mapping[str, Any]:
    """Return the first of that name, as the official client does."""
    found: Mapping[str, Any] = {each["name"]: each for each in reversed(config[f"{kind}s"])}[name][kind]
    return found


def _pem(about: Mapping[str, Any], field: str, folder: Path) -> bytes:
    data = about.get(f"{field}-data")
    return (folder / about[field]).read_bytes() if data is None else base64.b64decode(data, validate=True)
