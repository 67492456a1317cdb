"""How the webhook process is set up: flags win over variables, variables over the file; what is unknown is refused."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import yaml

from gpushare import defaults
from gpushare.errors import ConfigError
from gpushare.plain_kubeconfig import UNREAD
from webhook.mutation.settings import VARIABLES, Settings

PREFIX: Final = "GPU_SHARE_"
MAX_PORT: Final = 65535

Values = dict[str, str]
"""Raw settings by variable name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """Which clients are accepted: those with a certificate of a CA in the file, and of this name unless it is empty."""

    ca: Path
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One webhook process. ``retention`` is in seconds; addresses are ``(host, port)``."""

    bind: tuple[str, int]
    admin: tuple[str, int]
    certs: Path
    clients: Clients | None
    kubeconfig: str | None
    namespaces: Path | None
    retention: float
    settings: Settings

    @classmethod
    def read(cls, argv: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Merge file, variables and flags.

        Raises:
            ConfigError: a value cannot be used; the message names it and the way out.
            SystemExit: the flags are wrong, or help was asked for (argparse).
        """
        flags = vars(_parser().parse_args(argv))
        file = flags.pop("config") or environment.get(f"{PREFIX}CONFIG")
        values = _file(Path(file)) if file else {}
        values |= {name: environment[name] for name in _KNOWN if environment.get(name)}
        values |= {_variable(flag): text for flag, text in flags.items() if text is not None}
        get = values.get
        return cls(
            bind=_address("--bind", get(f"{PREFIX}BIND", "0.0.0.0:10250")),
            admin=_address("--admin", get(f"{PREFIX}ADMIN", "0.0.0.0:9402")),
            certs=Path(get(f"{PREFIX}CERTS", "/etc/gpu-share/certs")),
            clients=_clients(get(f"{PREFIX}CLIENT_CA", ""), get(f"{PREFIX}CLIENT_NAME", "")),
            kubeconfig=get(f"{PREFIX}KUBECONFIG"),
            namespaces=Path(text) if (text := get(f"{PREFIX}NAMESPACES")) else None,
            retention=_seconds("--retention", get(f"{PREFIX}RETENTION", str(defaults.RETENTION_SECONDS))),
            settings=Settings.from_environment(values),
        )

    def effective(self) -> dict[str, Any]:
        """Everything that is in force, for the log. There are no secrets among it."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return plain


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "gpu-share webhook",
        description="Serve admission reviews over TLS, and readiness and metrics on a second port.",
        epilog="Each flag can also be set by an environment variable (GPU_SHARE_BIND for --bind) or a key of the "
        "--config file (bind).",
        allow_abbrev=False,
    )
    for flag, help_text in _FLAGS.items():
        parser.add_argument(f"--{flag}", metavar=flag.split("-")[-1].upper(), help=help_text)
    return parser


_FLAGS: Final = {
    "config": "YAML or JSON file of settings; its keys are the names of the flags and of further chart values",
    "bind": "address of /mutate over TLS (default 0.0.0.0:10250)",
    "admin": "address of /readyz and /metrics over plain HTTP (default 0.0.0.0:9402)",
    "certs": "folder with tls.crt and tls.key; the webhook reloads changed files (default /etc/gpu-share/certs)",
    "client-ca": (
        "file of CA certificates that must have signed the client's certificate (default: no client certificate needed)"
    ),
    "client-name": "common name that the client's certificate must have (default: any)",
    "kubeconfig": "kubeconfig of the API server (default: the pod's service account, else the user's kubeconfig)",
    "namespaces": (
        "file of Namespace objects to use instead of an API server; the webhook then creates no claim templates"
    ),
    "retention": f"seconds until the webhook deletes an unused claim template (default {defaults.RETENTION_SECONDS})",
    "image": "image of the sidecar",
    "log-level": f"debug, info, warning or error (default {defaults.LOG_LEVEL})",
}


def _variable(flag: str) -> str:
    return PREFIX + flag.upper().replace("-", "_")


_KNOWN: Final = frozenset(_variable(flag) for flag in _FLAGS if flag != "config") | VARIABLES.keys()


def documents(option: str, path: Path) -> list[Any]:
    """Read a file of YAML documents.

    Raises:
        ConfigError: it cannot be read as that; the message names the option.
    """
    try:
        return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except UNREAD as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{option} {path} cannot be read: {why}") from error


def _file(path: Path) -> Values:
    """Settings from a file; keys are flag names, values text, or what JSON would be written as."""
    content = documents("--config", path) or [{}]
    if len(content) > 1 or not isinstance(content[0], dict | None):
        raise ConfigError(f"--config {path} must contain a mapping of settings")
    values = {_variable(str(key)): value for key, value in (content[0] or {}).items() if value is not None}
    if unknown := sorted(set(values) - _KNOWN):
        keys = ", ".join(sorted(_key(name) for name in _KNOWN))
        raise ConfigError(f"--config {path}: unknown setting {_key(unknown[0])!r:.80}; write one of {keys}")
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def _key(variable: str) -> str:
    return variable.removeprefix(PREFIX).lower().replace("_", "-")


def _address(flag: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ConfigError(f"{flag} {text!r:.80} is not an address; write for example 0.0.0.0:10250")
    return host.strip("[]"), int(port)


def _clients(ca: str, name: str) -> Clients | None:
    if name and not ca:
        raise ConfigError("--client-name has no effect without --client-ca; add --client-ca FILE")
    return Clients(ca=Path(ca), name=name) if ca else None


def _seconds(flag: str, text: str) -> float:
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{flag} {text!r:.80} is not a number of seconds; write a whole number such as 300")
    return float(text)
