"""The options of ``gpu-share resize``."""

from typing import Any, Final

from gpushare_cli.options import add_cluster, namespace_name, seconds

ROLE: Final = "gpu-share-resize"


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Change the GPU memory quota of a running container, up to the memory that its pod reserved. "
        "The node's enforcer answers and enforces the new quota at once. The MPS limit changes when the container "
        f"restarts. Needs the ClusterRole {ROLE}, by a ClusterRoleBinding.",
    )
    parser.add_argument("pod", metavar="[NAMESPACE/]POD")
    parser.add_argument("container", metavar="CONTAINER")
    parser.add_argument("memory", metavar="MEMORY", help="such as 3Gi")
    what = "namespace of the pod (default: the namespace of the kubeconfig context)"
    parser.add_argument("-n", "--namespace", type=namespace_name, metavar="NS", help=what)
    what = "allow a quota below the container's current use; the container is then over quota"
    parser.add_argument("--force", action="store_true", help=what)
    parser.add_argument("--dry-run", action="store_true", help="show the change, but do not request it")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    what = "seconds to wait for the enforcer's answer (default: %(default)s)"
    parser.add_argument("--timeout", type=seconds, default=30.0, metavar="S", help=what)
    add_cluster(parser)
