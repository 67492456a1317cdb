"""The options of ``gpu-share enforcer``."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from enforcer.attribution.descriptors import control_files
from enforcer.audit.retention import Retention
from enforcer.detection.hidden_memory import Consequence
from enforcer.detection.types import DetectorConfig
from enforcer.limits.backend import RequestedBackend
from enforcer.nvml.device_health import Effect
from enforcer.nvml.driver_root import HERE
from enforcer.quota.types import ForeignClaims, Mode
from enforcer.resourceslices.devices import InventoryPolicy, Order
from gpushare import defaults
from gpushare.annotation_values import parse_default_compute
from gpushare.contract import NODE_MODE
from gpushare.errors import ConfigError, QuantityError
from gpushare.memory_fraction import Reserve, parse_reserve
from gpushare.quantity import parse_overcommit
from gpushare.shared_memory import SharedMemory

MIN_POLL: Final = 0.01
MAX_POLL: Final = 60.0
MAX_TERM_WAIT: Final = 300.0
"""Seconds. What is not a number in these bounds would spin, hang, or fail between a signal and its record."""
MIN_MPS_SECONDS: Final = 1.0
MIN_PROOF, MAX_PROOF = 1.0, 3600.0
MIN_NOTICE, MAX_NOTICE = 1.0, 15.0
"""Twice the longest, and the kill, end while Prepare waits for the memory (``enforcer.dra.driver``)."""
MOST_KEPT: Final = {"mib": 1024 * 1024, "segments": 100_000, "days": 36_500}
LEVELS: Final = ("debug", "info", "warning", "error")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the options; argparse itself exits with 2 on unknown ones.

    Raises:
        ConfigError: a value cannot be used.
    """
    options = _parser().parse_args(argv)
    if not options.node:
        raise ConfigError("--node is missing; write the name of this node, or set NODE_NAME")
    if not MIN_POLL <= options.poll_seconds <= MAX_POLL:
        raise ConfigError(
            f"--poll-seconds {options.poll_seconds} is out of range; write seconds from {MIN_POLL} to {MAX_POLL}, "
            "such as 0.5"
        )
    if not 0 <= options.termination_timeout <= MAX_TERM_WAIT:
        raise ConfigError(
            f"--termination-timeout {options.termination_timeout} is out of range; "
            f"write seconds from 0 to {MAX_TERM_WAIT}"
        )
    if not MIN_MPS_SECONDS <= options.mps_check_seconds <= MAX_TERM_WAIT:
        raise ConfigError(
            f"--mps-check-seconds {options.mps_check_seconds} is out of range; "
            f"write seconds from {MIN_MPS_SECONDS:g} to {MAX_TERM_WAIT:g}, such as 30"
        )
    if not MIN_PROOF <= options.limit_verification_seconds <= MAX_PROOF:
        message = (
            f"--limit-verification-seconds {options.limit_verification_seconds} is out of range; "
            f"write seconds from {MIN_PROOF:g} to {MAX_PROOF:g}, such as 30"
        )
        raise ConfigError(message)
    if options.max_kills_per_minute < 1:
        raise ConfigError(
            f"--max-kills-per-minute {options.max_kills_per_minute} allows no kill; write 1 or more, "
            "or use --no-enforce to warn only"
        )
    if not MIN_NOTICE <= options.reclaim_notice_seconds <= MAX_NOTICE:
        raise ConfigError(
            f"--reclaim-notice-seconds {options.reclaim_notice_seconds:g} is out of range; "
            f"write seconds from {MIN_NOTICE:g} to {MAX_NOTICE:g}, such as 10"
        )
    options.compute = _compute(options.compute_overcommit)
    options.reserve = _reserve(options.memory_reserve)
    options.default_compute = _default_compute(options.default_compute)
    options.control_files = control_files(options.control_device)
    options.address = _address(options.metrics)
    options.retention = _retention(options)
    return options


def policy_of(options: argparse.Namespace) -> InventoryPolicy:
    """Return what the operator decided about publishing GPUs."""
    return InventoryPolicy(
        order=options.within_node, mode=options.mode, health_taint=options.health_taint, compute=options.compute
    )


def rules_of(options: argparse.Namespace) -> DetectorConfig:
    """Return what the operator decided about detection."""
    max_gap = max(DetectorConfig().max_gap, 4 * options.poll_seconds)
    return DetectorConfig(
        kills=options.max_kills_per_minute, max_gap=max_gap, first=options.poll_seconds,
        notice=options.reclaim_notice_seconds,
    )  # fmt: skip


def setup_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the node's status has for ``gpu-share check --node``."""
    roots = {"driverRoot": options.driver_root, "kubeletRoot": options.kubelet_root, "cdiRoot": options.cdi_root}
    return {**{name: str(root) for name, root in roots.items()}, "anyPidNamespace": options.allow_any_pid_namespace}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-share enforcer",
        description="Watch the GPUs of this node and enforce the GPU memory quota of each container.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--node", default=os.environ.get("NODE_NAME", ""), help="name of this node ($NODE_NAME)")
    add("--state", type=Path, help="directory of checkpoint, status files and audit log (%(default)s)")
    add("--run", type=Path, help="directory of MPS pipes and logs (%(default)s)")
    add("--poll-seconds", type=float, metavar="S", help="seconds between samples (%(default)s)")
    add("--kubeconfig", metavar="FILE", help="kubeconfig of the cluster (default in a pod: its service account)")
    add("--no-cluster", action="store_true", help="use no API server; read quotas only from the checkpoint")
    add("--no-enforce", action="store_true", help="only warn; kill no container")
    add(
        "--mode", type=Mode, choices=list(Mode),
        help=f"sharing mode of the GPUs if the node has no label {NODE_MODE} (%(default)s)",
    )  # fmt: skip
    add("--no-mps", action="store_true", help="run no MPS daemons; use time-slicing, whatever --mode and the label say")
    what = "run no DRA driver: prepare no claims; read quotas from the allocated ResourceClaims in the API server"
    add("--no-dra", action="store_true", help=what)
    add("--kubelet-root", type=Path, help="the kubelet's directory (%(default)s)")
    add("--cdi-root", type=Path, help="directory for CDI specs (%(default)s)")
    add("--driver-root", type=Path, default=HERE, help="root of the node's NVIDIA driver (%(default)s)")
    add(
        "--health-taint", type=Effect, choices=list(Effect),
        help="effect of the taint on an unhealthy GPU (%(default)s)",
    )  # fmt: skip
    add(
        "--limit-verification-seconds", type=float, metavar="S",
        help="seconds from one verification of all containers' limits to the next (%(default)s)",
    )  # fmt: skip
    add(
        "--limit-backend", type=RequestedBackend, choices=list(RequestedBackend),
        help="limit backend, if driver and sharing mode support it (%(default)s)",
    )  # fmt: skip
    add("--no-publish", action="store_true", help="publish no ResourceSlices")
    add("--drop-capabilities", action="store_true", help="drop capabilities that the enforcer no longer needs")
    add("--tenant-host-network", action="store_true", help="prepare claims of pods that use hostNetwork")
    what = "for tests: take the pids of NVML as pids of the enforcer's own pid namespace"
    add("--allow-any-pid-namespace", action="store_true", help=what)
    _add_mps(parser)
    _add_kill_rules(parser)
    _add_offers(parser)
    _add_outlets(parser)
    _add_keeping(parser)
    parser.set_defaults(**defaults.ENFORCER)
    return parser


def _add_mps(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--mps-check-seconds", type=float, metavar="S", help="seconds between checks of MPS daemons (%(default)s)")
    add("--mps-host", action="store_true", help="let `gpu-share mps` run the MPS daemons, so they outlive the enforcer")
    add(
        "--keep-compute-mode",
        action="store_true",
        help="share by MPS without setting the compute mode EXCLUSIVE_PROCESS",
    )
    add(
        "--mps-shared-memory", type=SharedMemory, choices=list(SharedMemory),
        help="shared memory of MPS clients: of the node, their own, or by the driver (%(default)s)",
    )  # fmt: skip


def _add_kill_rules(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--max-kills-per-minute",
        type=int,
        metavar="N",
        help="maximum number of containers killed per minute on this node; a namespace without budget does not count "
        "(%(default)s)",
    )
    add(
        "--unaccounted", type=Consequence, choices=list(Consequence),
        help="what happens to a container that exceeds its quota by GPU memory that NVML lists for no process: report "
        "it, or kill the container (%(default)s)",
    )  # fmt: skip
    add(
        "--foreign-claims", type=ForeignClaims, choices=list(ForeignClaims),
        help="claims of NVIDIA's DRA driver that share a GPU: ignore them, report their quotas, or enforce these "
        "(%(default)s)",
    )  # fmt: skip
    what = "device whose open files may hold GPU memory, MAJOR:MINOR; for tests: a simulator's folder (%(default)s)"
    add("--control-device", default="195:255", metavar="DEVICE", help=what)
    what = "seconds from the notice to give borrowed GPU memory back to the kill (%(default)s)"
    add("--reclaim-notice-seconds", type=float, metavar="S", help=what)
    add("--termination-timeout", type=float, metavar="S", help="seconds from SIGTERM to SIGKILL (%(default)s)")


def _add_offers(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--within-node", type=Order, choices=list(Order), help="which GPU of a node gets the next share (%(default)s)")
    add(
        "--compute-overcommit",
        metavar="N",
        help="factor by which shares may overcommit the compute of a GPU (%(default)s)",
    )
    add(
        "--default-compute", metavar="X",
        help="compute of a share that requests none: none, memory, or a percentage (%(default)s)",
    )  # fmt: skip
    add(
        "--memory-reserve", default="", metavar="X",
        help="what frameworks leave unused of a limit, such as 1Gi or 6%% (default: a CUDA context and 150Mi, or 4%%)",
    )  # fmt: skip
    add(
        "--no-framework-variables",
        action="store_true",
        help="set no environment variables for frameworks in containers",
    )


def _add_outlets(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--metrics", default="", metavar="HOST:PORT", help="address of the metrics endpoint (default: no endpoint)")
    add("--log-level", choices=LEVELS, help="lowest level of log lines (%(default)s)")
    add(
        "--audit-to", choices=["stdout", "none"], default="stdout",
        help="where the enforcer copies each audit record, for a log collector (%(default)s)",
    )  # fmt: skip


def _add_keeping(parser: argparse.ArgumentParser) -> None:
    for unit, what in (("mib", "MiB"), ("segments", "segments of 4 MiB"), ("days", "days")):
        parser.add_argument(
            f"--audit-keep-{unit}", type=int, metavar="N",
            help=f"{what} of the audit log to keep besides the current segment; 0: no limit (%(default)s)",
        )  # fmt: skip


def _retention(options: argparse.Namespace) -> Retention:
    for unit, most in MOST_KEPT.items():
        value = getattr(options, f"audit_keep_{unit}")
        if not 0 <= value <= most:
            raise ConfigError(f"--audit-keep-{unit} {value} is out of range; write 0 for no limit, or 1 to {most}")
    return Retention(mib=options.audit_keep_mib, segments=options.audit_keep_segments, days=options.audit_keep_days)


def _compute(overcommit: str) -> int:
    try:
        return parse_overcommit(overcommit)
    except QuantityError as error:
        raise ConfigError(f"--compute-overcommit: {error.message}") from error


def _default_compute(text: str) -> int | str:
    try:
        return parse_default_compute(text)
    except QuantityError as error:
        raise ConfigError(f"--default-compute: {error.message}") from error


def _reserve(text: str) -> Reserve:
    try:
        return parse_reserve(text)
    except QuantityError as error:
        raise ConfigError(f"--memory-reserve: {error.message}") from error


def _address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ConfigError(f"--metrics {text!r:.80} is not an address; write HOST:PORT, such as 127.0.0.1:9402")
    return host.strip("[]"), int(port)
