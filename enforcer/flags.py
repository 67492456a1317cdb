"""The options of ``gpu-share enforcer``."""

import argparse
import os
from collections.abc import Sequence
from enum import StrEnum
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
from gpushare.errors import ConfigError
from gpushare.memory_fraction import parse_reserve
from gpushare.quantity import named, parse_overcommit
from gpushare.shared_memory import SharedMemory

SECONDS: Final = {
    "poll_seconds": (0.01, 60.0, 0.5),
    "termination_timeout": (0.0, 300.0, 10),
    "mps_check_seconds": (1.0, 300.0, 30),
    "limit_verification_seconds": (1.0, 3600.0, 30),
    "reclaim_notice_seconds": (1.0, 15.0, 10),
}
"""Least, most and an example. What is not a number in these bounds would spin, hang, or fail between a signal and its
record. Twice the longest notice, and the kill, end while Prepare waits for the memory (``enforcer.dra.driver``)."""
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
    for name, (least, most, example) in SECONDS.items():
        value = getattr(options, name)
        if not least <= value <= most:
            raise ConfigError(
                f"--{name.replace('_', '-')} {value:g} is out of range; write seconds from {least:g} to {most:g}, "
                f"such as {example}"
            )
    if options.max_kills_per_minute < 1:
        raise ConfigError(
            f"--max-kills-per-minute {options.max_kills_per_minute} allows no kill; write 1 or more, "
            "or use --no-enforce to warn only"
        )
    options.compute = named("--compute-overcommit", parse_overcommit, options.compute_overcommit)
    options.reserve = named("--memory-reserve", parse_reserve, options.memory_reserve)
    options.default_compute = named("--default-compute", parse_default_compute, options.default_compute)
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
    _value(parser, "--poll-seconds", float, "S", "seconds between samples")
    add("--kubeconfig", metavar="FILE", help="kubeconfig of the cluster (default in a pod: its service account)")
    add("--no-cluster", action="store_true", help="use no API server; read quotas only from the checkpoint")
    add("--no-enforce", action="store_true", help="only warn; kill no container")
    _choice(parser, "--mode", Mode, f"sharing mode of the GPUs if the node has no label {NODE_MODE}")
    add("--no-mps", action="store_true", help="run no MPS daemons; use time-slicing, whatever --mode and the label say")
    what = "run no DRA driver: prepare no claims; read quotas from the allocated ResourceClaims in the API server"
    add("--no-dra", action="store_true", help=what)
    add("--kubelet-root", type=Path, help="the kubelet's directory (%(default)s)")
    add("--cdi-root", type=Path, help="directory for CDI specs (%(default)s)")
    add("--driver-root", type=Path, default=HERE, help="root of the node's NVIDIA driver (%(default)s)")
    _choice(parser, "--health-taint", Effect, "effect of the taint on an unhealthy GPU")
    what = "seconds from one verification of all containers' limits to the next"
    _value(parser, "--limit-verification-seconds", float, "S", what)
    _choice(parser, "--limit-backend", RequestedBackend, "limit backend, if driver and sharing mode support it")
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


def _value(parser: argparse.ArgumentParser, option: str, kind: type, metavar: str, what: str) -> None:
    parser.add_argument(option, type=kind, metavar=metavar, help=f"{what} (%(default)s)")


def _choice(parser: argparse.ArgumentParser, option: str, kind: type[StrEnum], what: str) -> None:
    parser.add_argument(option, type=kind, choices=list(kind), help=f"{what} (%(default)s)")


def _add_mps(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _value(parser, "--mps-check-seconds", float, "S", "seconds between checks of MPS daemons")
    add("--mps-host", action="store_true", help="let `gpu-share mps` run the MPS daemons, so they outlive the enforcer")
    add(
        "--keep-compute-mode",
        action="store_true",
        help="share by MPS without setting the compute mode EXCLUSIVE_PROCESS",
    )
    what = "shared memory of MPS clients: of the node, their own, or by the driver"
    _choice(parser, "--mps-shared-memory", SharedMemory, what)


def _add_kill_rules(parser: argparse.ArgumentParser) -> None:
    what = "maximum number of containers killed per minute on this node; a namespace without budget does not count"
    _value(parser, "--max-kills-per-minute", int, "N", what)
    what = (
        "what happens to a container that exceeds its quota by GPU memory that NVML lists for no process: report it, "
        "or kill the container"
    )
    _choice(parser, "--unaccounted", Consequence, what)
    what = "claims of NVIDIA's DRA driver that share a GPU: ignore them, report their quotas, or enforce these"
    _choice(parser, "--foreign-claims", ForeignClaims, what)
    what = "device whose open files may hold GPU memory, MAJOR:MINOR; for tests: a simulator's folder"
    parser.add_argument("--control-device", default="195:255", metavar="DEVICE", help=f"{what} (%(default)s)")
    what = "seconds from the notice to give borrowed GPU memory back to the kill"
    _value(parser, "--reclaim-notice-seconds", float, "S", what)
    _value(parser, "--termination-timeout", float, "S", "seconds from SIGTERM to SIGKILL")


def _add_offers(parser: argparse.ArgumentParser) -> None:
    _choice(parser, "--within-node", Order, "which GPU of a node gets the next share")
    what = "factor by which shares may overcommit the compute of a GPU"
    _value(parser, "--compute-overcommit", str, "N", what)
    _value(
        parser, "--default-compute", str, "X", "compute of a share that requests none: none, memory, or a percentage"
    )
    add = parser.add_argument
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
        kept = f"{what} of the audit log to keep besides the current segment; 0: no limit"
        _value(parser, f"--audit-keep-{unit}", int, "N", kept)


def _retention(options: argparse.Namespace) -> Retention:
    for unit, most in MOST_KEPT.items():
        value = getattr(options, f"audit_keep_{unit}")
        if not 0 <= value <= most:
            raise ConfigError(f"--audit-keep-{unit} {value} is out of range; write 0 for no limit, or 1 to {most}")
    return Retention(mib=options.audit_keep_mib, segments=options.audit_keep_segments, days=options.audit_keep_days)


def _address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise ConfigError(f"--metrics {text!r:.80} is not an address; write HOST:PORT, such as 127.0.0.1:9402")
    return host.strip("[]"), int(port)
