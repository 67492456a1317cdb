"""``gpu-share certs``: bring authority, serving pair and published bundle into order, once or again and again."""

import argparse
import ipaddress
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from certs import kube_store, rotation_plan
from certs.rotation import CertificateRotator
from certs.store import DirectoryStore, locked
from gpushare import defaults
from gpushare.errors import ConfigError, GpuShareError
from gpushare.kube_client import KubeClient
from gpushare.patterns import Pattern
from gpushare.reasons import Reason
from gpushare.signals import stopped_by_signal

ABOUT: Final = (
    "Create, renew and rotate the CA and the serving certificate, write the CA bundle into the webhook configurations, "
    "and exit. It is safe to repeat the command and to run it twice at once. "
    "Exit codes: 0 the certificates are current, or a rotation waits for its next step; 1 the API server or the folder "
    "failed; 2 an option is wrong."
)
FINE: Final = 0
NOT_FINE: Final = 1
WRONG_USE: Final = 2
MIN_LEAF_DAYS: Final = 3
"""Certificates begin a day before they are made; a shorter life would be over at once."""
AUTHORITY_SUFFIX: Final = "-ca"
AUTHORITY_FOLDER: Final = "ca"
DNS: Final = Pattern(r"(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", 253)

log = structlog.get_logger()


def main(argv: Sequence[str]) -> int:
    """Run ``gpu-share certs`` and return its exit code."""
    _log_to_stderr()
    try:
        options = parse(argv)
        run = partial(_run, options, build(options))
        return watch(run, stopped_by_signal(), options.interval) if options.watch else run()
    except ConfigError as error:
        sys.stderr.write(f"gpu-share certs: {error.message}\n")
        return WRONG_USE
    except GpuShareError as error:
        return _failed(error)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the options; argparse itself exits with 2 on unknown ones.

    Raises:
        ConfigError: a value cannot be used.
    """
    options = _parser().parse_args(argv)
    if bool(options.dir) == bool(options.secret):
        raise ConfigError("write one of --dir DIR and --secret NAMESPACE/NAME")
    if options.secret:
        kube_store.secret_name(options.secret)
    if not MIN_LEAF_DAYS <= options.leaf_days <= rotation_plan.MAX_LEAF_DAYS:
        raise ConfigError(
            f"--leaf-days {options.leaf_days} is out of range; "
            f"write days from {MIN_LEAF_DAYS} to {rotation_plan.MAX_LEAF_DAYS}, or leave the option out"
        )
    if not 2 * options.leaf_days <= options.ca_days <= rotation_plan.MAX_CA_DAYS:
        raise ConfigError(
            f"--ca-days {options.ca_days} is out of range; write days from {2 * options.leaf_days} (twice --leaf-days) "
            f"to {rotation_plan.MAX_CA_DAYS}, or leave the option out"
        )
    options.wanted = rotation_plan.DesiredCertificates(
        names=_names(options.dns, options.ip),
        ca_days=options.ca_days,
        leaf_days=options.leaf_days,
        settle=timedelta(seconds=options.settle),
    )
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-share certs", description=ABOUT, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--dir",
        type=Path,
        help="write the serving certificate (tls.crt), its key (tls.key) and the CA bundle (ca.crt) to this folder, "
        "the CA's key to DIR/ca",
    )
    add(
        "--secret",
        metavar="NS/NAME",
        help="write the serving certificate, its key and the CA bundle to this Secret, the CA's key to Secret NAME-ca",
    )
    add(
        "--webhook-configuration",
        action="append",
        default=[],
        metavar="NAME",
        help="write the CA bundle to the caBundle of this webhook configuration; repeatable",
    )
    add("--dns", default="", metavar="A,B", help="DNS names (SANs) in the webhook's serving certificate")
    add("--ip", default="", metavar="X,Y", help="IP addresses (SANs) in the webhook's serving certificate")
    add("--ca-days", type=int, default=defaults.CA_DAYS, metavar="N", help="days the CA is valid (%(default)s)")
    add(
        "--leaf-days",
        type=int,
        default=defaults.LEAF_DAYS,
        metavar="N",
        help="days the serving certificate is valid (%(default)s)",
    )
    add(
        "--settle",
        type=_seconds,
        default=300.0,
        metavar="S",
        help="seconds between publishing a new CA in the bundle and signing serving certificates with it (300)",
    )
    add("--kubeconfig", metavar="FILE", help="kubeconfig of the cluster (default in a pod: its service account)")
    add("--watch", action="store_true", help="do not exit; check the certificates every --interval seconds")
    add("--ready-file", type=Path, metavar="FILE", help="touch this file after each check that ended without an error")
    add("--interval", type=_seconds, default=10.0, metavar="S", help="seconds between checks with --watch (10)")
    return parser


def _run(options: argparse.Namespace, rotator: CertificateRotator) -> int:
    try:
        with locked(options.dir) if options.dir else nullcontext():
            rotator.reconcile()
        if options.ready_file:
            options.ready_file.touch()
    except ConfigError:
        raise
    except (GpuShareError, OSError) as error:
        return _failed(error)
    return FINE


def _failed(error: Exception) -> int:
    reason = error.reason if isinstance(error, GpuShareError) else Reason.INTERNAL
    log.error("certificates not reconciled", reason=reason, detail=str(error))
    return NOT_FINE


def build(options: argparse.Namespace) -> CertificateRotator:
    """Put the rotator together from parsed options."""
    connection = KubeClient.connect(options.kubeconfig) if options.secret or options.webhook_configuration else None
    publish = None
    if connection is not None and options.webhook_configuration:
        publish = partial(kube_store.publish, connection, options.webhook_configuration)
    if options.dir:
        private = DirectoryStore(options.dir / AUTHORITY_FOLDER, mode=0o700)
        return CertificateRotator(private, DirectoryStore(options.dir), options.wanted, publish=publish)
    assert connection is not None
    namespace, name = kube_store.secret_name(options.secret)
    authority = kube_store.SecretStore(connection, namespace, name + AUTHORITY_SUFFIX, kube_store.OPAQUE)
    serving = kube_store.SecretStore(connection, namespace, name, kube_store.TLS)
    return CertificateRotator(authority, serving, options.wanted, publish=publish)


def watch(run: Callable[[], int], stopping: threading.Event, interval: float) -> int:
    """Run now and every ``interval`` seconds until ``stopping`` is set; return the last run's exit code."""
    code = run()
    while not stopping.wait(interval):
        code = run()
    return code


def _names(dns: str, ip: str) -> frozenset[str]:
    wanted = {f"DNS:{_dns(n)}" for n in dns.split(",") if n.strip()} | {
        f"IP:{_ip(a)}" for a in ip.split(",") if a.strip()
    }
    if not wanted:
        raise ConfigError(
            "--dns and --ip are empty: clients reject a certificate without a name; write at least one DNS name or "
            "IP address"
        )
    return frozenset(wanted)


def _dns(text: str) -> str:
    if not DNS.fullmatch(text.strip()):
        raise ConfigError(
            f"--dns {text.strip()!r:.80} is not a DNS name; write for example webhook.gpu-share-system.svc"
        )
    return text.strip()


def _ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError as error:
        raise ConfigError(f"--ip {text.strip()!r:.80} is not an IP address; write for example 127.0.0.1") from error


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 7 * 86400:  # also refuses NaN
        raise argparse.ArgumentTypeError(f"{text} is out of range; write seconds from 0 to {7 * 86400}")
    return value


def _log_to_stderr() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),  # whatever it is by then
    )
