"""The actions and options of ``gpu-share audit``."""

from pathlib import Path
from typing import Any, Final

from gpushare_cli.options import add_cluster, add_enforcers, add_state

ABOUT: Final = (
    "Read the audit logs of this node or of all nodes, and verify that nobody changed them. Exit codes: 0 the logs "
    "verify; 1 a log does not verify or cannot be read in whole; 2 wrong use, or no audit log exists."
)


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's actions."""
    parser = add(description=ABOUT)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_show(actions.add_parser("show", help="list the records"))
    _add_export(actions.add_parser("export", help="write the records as JSON"))
    _add_verify(actions.add_parser("verify", help="verify every record and the hash chain"))
    what = "print the anchors (record number and hash) that the API server stores for each node's log; save them for "
    add_cluster(actions.add_parser("anchors", help=f"{what}`audit verify --anchor`"))


def _add_show(parser: Any) -> None:
    _add_log(parser)
    _add_everywhere(parser)
    _add_wanted(parser)
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="(%(default)s)")


def _add_export(parser: Any) -> None:
    _add_log(parser)
    _add_everywhere(parser)
    _add_wanted(parser)
    parser.add_argument(
        "--format", choices=["json", "raw"], default="json",
        help="json: one record on each line, unchanged; raw: every line of the log, also lines that are not records "
        "(default: %(default)s)",
    )  # fmt: skip


def _add_verify(parser: Any) -> None:
    _add_log(parser)
    parser.add_argument(
        "--node", help="node of this log, to select its anchors (default: $NODE_NAME, else the node that the log names)"
    )
    parser.add_argument(
        "--anchor", metavar="ANCHOR", action="append", default=[],
        help="anchor that the log must still contain: SEQ:HASH from `audit anchors`, a file with its output, or the "
        "word cluster (the anchors in the ResourceSlices); may be repeated (default with -A: cluster)",
    )  # fmt: skip
    _add_everywhere(parser)


def _add_log(parser: Any) -> None:
    add_state(parser)
    parser.add_argument(
        "--log", type=Path, help="a folder of log segments, or one segment, copied from another machine"
    )


def _add_everywhere(parser: Any) -> None:
    parser.add_argument(
        "--all-nodes", "-A", action="store_true",
        help="read the logs of all nodes through the API server (needs create on pods/exec)",
    )  # fmt: skip
    add_enforcers(parser, "; with -A")
    add_cluster(parser)


def _add_wanted(parser: Any) -> None:
    parser.add_argument("--namespace", "-n", help="only records of pods in this namespace")
    parser.add_argument("--pod", metavar="[NAMESPACE/]POD", help="only records of pods of this name")
    parser.add_argument("--node", help="only records of this node")
    parser.add_argument(
        "--since", metavar="TIME", help="only records newer than an age such as 2h or 7d, or than a time in UTC"
    )
