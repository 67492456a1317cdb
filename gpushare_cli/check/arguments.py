"""The options of ``gpu-share check``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enforcer.nvml.driver_root import HERE
from gpushare import defaults
from gpushare_cli.options import STATE_DIRECTORY, add_cluster, duration, namespace_name

_WHOSE: Final = {
    "state": "enforcer's state", "kubelet": "kubelet's root", "cdi": "container devices'", "driver": "NVIDIA driver's",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """Where the enforcer, the kubelet and the container runtime meet on a node, and where the driver is."""

    state: Path = STATE_DIRECTORY
    kubelet: Path = Path(defaults.KUBELET_ROOT)
    cdi: Path = Path(defaults.CDI_ROOT)
    driver: Path = HERE
    any_pid_namespace: bool = False
    """Whether the enforcer may run in any pid namespace."""


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Check whether the cluster and this machine meet the requirements of gpu-share, and create a "
        "sharing pod by dry run. Exit code 1 if anything is wrong.",
    )
    add_cluster(parser)
    what = "namespace in which the dry run creates its sharing pod; this machine is then not checked"
    parser.add_argument("-n", "--namespace", type=namespace_name, metavar="NS", help=what)
    parser.add_argument("--cluster", action="store_true", help="check the cluster only")
    what = "check this machine only; a missing GPU, driver or enforcer is then an error, not a warning"
    parser.add_argument("--node", action="store_true", help=what)
    parser.add_argument("--pre", action="store_true", help="check the requirements before an installation of gpu-share")
    what = "repeat the check until nothing is wrong, for at most this time, for example 2m (default: check once)"
    parser.add_argument("--wait", type=duration, default=0.0, metavar="TIME", help=what)
    for name, whose in _WHOSE.items():
        option, folder = name if name == "state" else f"{name}-root", getattr(Folders(), name)
        what = f"the {whose} directory on this machine (default: the one that the enforcer uses, else {folder})"
        parser.add_argument(f"--{option}", type=Path, metavar="DIR", help=what)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
