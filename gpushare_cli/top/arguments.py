"""The options of ``gpu-share top``."""

from typing import Any, Final

from gpushare_cli.options import add_cluster, add_enforcers, add_state, namespace_name, seconds


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Show this node's GPUs and the containers on them, in MiB, from the enforcer's last sample; those "
        "of all nodes (-A), for operators; or what the containers of a namespace use (-n), for its tenants.",
    )
    whose = parser.add_mutually_exclusive_group()
    add_state(whose)
    whose.add_argument(
        "-A", "--all-nodes", action="store_true", help="all nodes; runs a command in their enforcers (pods/exec)"
    )
    what = "the sharing pods of a namespace; runs a command in their sidecars, which the ClusterRole edit allows"
    whose.add_argument("-n", "--namespace", type=namespace_name, metavar="NS", help=what)
    add_enforcers(parser, "; with -A")
    add_cluster(parser)
    what = "the column to sort by, the largest number first"
    parser.add_argument("--sort", choices=SORT, metavar="COLUMN", default="", help=what)
    what = "json: every value; with --watch, one line for each sample"
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help=what)
    parser.add_argument("-w", "--watch", action="store_true", help="repeat until interrupted")
    what = "seconds between samples of --watch, at least 0.1 (default 1)"
    parser.add_argument("--interval", type=seconds, default=1.0, metavar="SECONDS", help=what)
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


NODE_GPUS: Final = ("GPU", "MODEL", "MODE", "MEM-USED/LIMIT/TOTAL", "UNACCOUNTED", "CLIENTS")
NODE_CONTAINERS: Final = ("GPU", "NAMESPACE/POD", "CONTAINER", "PID", "MEM/QUOTA", "BORROWED", "STATE")
ALL_GPUS: Final = ("NODE", "GPU", "MODEL", "MODE", "UTIL", "USED", "RESERVED", "TOTAL", "SHARES", "STATE")
ALL_CONTAINERS: Final = (
    "NODE", "GPU", "NAMESPACE/POD", "CONTAINER", "UTIL", "USED", "QUOTA", "RESERVED", "KILL-IN", "STATE",
)  # fmt: skip
OF_NAMESPACE: Final = ("POD", "CONTAINER", "GPU", "USED", "PEAK", "QUOTA", "BORROWED", "KILLS", "RESTARTS", "STATE")
SORT: Final = tuple(
    dict.fromkeys(name.lower() for name in (*NODE_GPUS, *NODE_CONTAINERS, *ALL_GPUS, *ALL_CONTAINERS, *OF_NAMESPACE))
)
