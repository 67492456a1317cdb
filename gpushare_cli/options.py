"""Options and arguments that several verbs have."""

import argparse
import math
import os
from pathlib import Path
from typing import Final

from gpushare import defaults
from gpushare.errors import ConfigError, QuantityError
from gpushare.patterns import Pattern
from gpushare.quantity import parse_duration, quoted

STATE_DIRECTORY: Final = Path(defaults.STATE_DIRECTORY)
PROMETHEUS_ADDRESS: Final = "GPU_SHARE_PROMETHEUS_URL"
PROMETHEUS_TOKEN: Final = "GPU_SHARE_PROMETHEUS_TOKEN"  # noqa: S105 - the variable's name
LEAST_SECONDS, MOST_SECONDS = 0.1, 3600.0

_NAMESPACE: Final = Pattern(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", 63)


def namespace_name(text: str) -> str:
    """Read the name of a namespace.

    Raises:
        argparse.ArgumentTypeError: no namespace can have that name.
    """
    if _NAMESPACE.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is not the name of a namespace; write for example team-a")
    return text


def duration(text: str) -> float:
    """Read a time such as 30s or 2m, in seconds. Raises ``argparse.ArgumentTypeError``."""
    try:
        return parse_duration(text)
    except QuantityError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def seconds(text: str, least: float = LEAST_SECONDS) -> float:
    """Read a number of seconds of this command. Raises ``argparse.ArgumentTypeError``."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not least <= found <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not a number of seconds from {least:g} to {MOST_SECONDS:.0f}; write for example 1"
        )
    return found


def add_state(parser: argparse.ArgumentParser) -> None:
    """Add where the enforcer keeps its state."""
    what = "the enforcer's state directory (%(default)s)"
    parser.add_argument("--state", type=Path, default=STATE_DIRECTORY, metavar="DIR", help=what)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add how to reach the cluster."""
    parser.add_argument("--kubeconfig", metavar="FILE", help="how to reach the cluster")
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig")


def add_manifests(parser: argparse.ArgumentParser) -> None:
    """Add which manifests are read."""
    what = "YAML or JSON manifest, or a folder of manifests; - reads standard input; may be repeated"
    parser.add_argument("-f", "--filename", required=True, action="append", metavar="FILE", help=what)
    parser.add_argument("-R", "--recursive", action="store_true", help="also read the files in subfolders")


def add_enforcers(parser: argparse.ArgumentParser, when: str = "") -> None:
    """Add the namespace of the enforcers; ``when`` names the options that use it."""
    text = f"namespace of the enforcer DaemonSet{when} (default: search all namespaces)"
    parser.add_argument("--enforcer-namespace", metavar="NAMESPACE", help=text)


def add_prometheus(parser: argparse.ArgumentParser, what: str) -> None:
    """Add how to reach Prometheus; ``what`` says what it is used for."""
    text = f"address of Prometheus{what} (default: ${PROMETHEUS_ADDRESS})"
    parser.add_argument("--prometheus", default=os.environ.get(PROMETHEUS_ADDRESS), metavar="URL", help=text)
    text = f"file with the bearer token for Prometheus (default: ${PROMETHEUS_TOKEN})"
    parser.add_argument("--prometheus-token-file", type=Path, metavar="FILE", help=text)
    text = "CA of Prometheus' certificate (default: $SSL_CERT_FILE, else the system's)"
    parser.add_argument("--prometheus-ca", type=Path, metavar="FILE", help=text)
    text = "use only series with this label, such as cluster=a where Prometheus has several clusters; repeatable"
    parser.add_argument("--prometheus-label", action="append", default=[], metavar="NAME=VALUE", help=text)


def pod_name(pod: str, namespace: str | None) -> tuple[str, str]:
    """Read ``POD`` or ``NAMESPACE/POD``; the namespace is empty where none is given.

    Raises:
        ConfigError: it is neither, or two namespaces are given.
    """
    before, slash, name = pod.rpartition("/")
    if not name or "/" in before or (slash and not before):
        raise ConfigError(f"{pod!r:.200} is not a pod; write POD or NAMESPACE/POD")
    if before and namespace and before != namespace:
        raise ConfigError(f"{pod} names namespace {before}, but -n names {namespace}; give only one of the two")
    return before or namespace or "", name
