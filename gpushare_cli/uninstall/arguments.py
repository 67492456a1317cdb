"""The options of ``gpu-share uninstall``."""

from functools import partial
from pathlib import Path
from typing import Any, Final

from gpushare import defaults
from gpushare_cli.options import seconds

PLACES: Final = {
    "--state": ("state", defaults.STATE_DIRECTORY),
    "--run": ("run_folder", defaults.RUN_DIRECTORY),
    "--kubelet-root": ("kubelet_root", defaults.KUBELET_ROOT),
    "--cdi-root": ("cdi_root", defaults.CDI_ROOT),
}


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(description="The chart's hooks run this command before and after helm uninstall removes the release.")
    what = "before or after the release is removed; node: remove the files of a node"
    parser.add_argument("when", choices=("before", "after", "node"), help=what)
    what = "namespace of gpu-share (default: %(default)s)"
    parser.add_argument("--namespace", default=defaults.SYSTEM_NAMESPACE, metavar="NS", help=what)
    wait = {"type": partial(seconds, least=0.0), "default": defaults.UNINSTALL_SECONDS}
    parser.add_argument("--timeout", metavar="S", help="longest wait (default: %(default)s)", **wait)
    what = "before: Helm release and revision, to print the rollback command"
    parser.add_argument("--release", default="", metavar="NAME/REVISION", help=what)
    what = "continue although claims of gpu-share device classes exist"
    parser.add_argument("--ignore-claims", action="store_true", help=what)
    what = "kubeconfig of the cluster (default in a pod: the service account)"
    parser.add_argument("--kubeconfig", metavar="FILE", help=what)
    what = "node: the same folder as in the enforcer's flag of this name"
    for option, (name, default) in PLACES.items():
        parser.add_argument(option, dest=name, type=Path, default=Path(default), metavar="DIR", help=what)
    what = "node: also remove the audit log and the checkpoint"
    parser.add_argument("--remove-state", action="store_true", help=what)
