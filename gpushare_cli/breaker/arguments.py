"""The options of ``gpu-share breaker``."""

from pathlib import Path
from typing import Any

from gpushare_cli.options import STATE_DIRECTORY, add_cluster, add_enforcers


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Show whether the circuit breaker is open: an operator opens it with a file, and closes it with "
        "--reset. While it is open, no container of that node is killed. On a node with an enforcer: of this node; "
        "elsewhere: of all nodes.",
    )
    whose = parser.add_mutually_exclusive_group()
    what = f"show the breaker of this node; DIR is the enforcer's state directory ({STATE_DIRECTORY})"
    whose.add_argument("--state", type=Path, metavar="DIR", help=what)
    whose.add_argument("--node", metavar="NODE", help="show the breaker of node NODE, through the API server")
    what = (
        "close the breaker; each container then has a full budget. Through the API server: "
        "needs --node and the permission create on pods/exec"
    )
    parser.add_argument("--reset", action="store_true", help=what)
    add_enforcers(parser, "; with --node and --reset")
    add_cluster(parser)
    what = "json: only through the API server, not with --state"
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help=what)
