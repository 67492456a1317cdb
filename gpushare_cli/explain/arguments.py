"""The options of ``gpu-share explain``."""

from pathlib import Path
from typing import Any

from gpushare_cli.inject.arguments import add_policy_options
from gpushare_cli.options import STATE_DIRECTORY, add_cluster


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Show what a pod of the cluster requested, what it was allocated and what gpu-share did to it; "
        "which pods a workload has, and why not more; what gpu-share would do to the pods of a manifest (-f); or, on "
        "a node, what its enforcer knows of a pod (--state).",
    )
    what = "a pod of the cluster (with --state: of this node), or a workload: deploy, sts, ds, rs, rc, job or cj"
    parser.add_argument("pod", nargs="?", metavar="[NAMESPACE/]POD|KIND/NAME", help=what)
    parser.add_argument("-f", "--filename", metavar="FILE", help="a manifest; - is stdin")
    add_cluster(parser)
    what = "json: for pods and workloads of the cluster only"
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help=what)
    what = f"read the status of this node's enforcer; DIR is its state directory ({STATE_DIRECTORY})"
    parser.add_argument("--state", type=Path, metavar="DIR", help=what)
    add_policy_options(parser)
