"""The options of ``gpu-share advise``."""

from typing import Any, Final

from gpushare_cli.options import add_cluster, add_enforcers, add_prometheus, duration, namespace_name

LEAST_AGE: Final = 24 * 3600.0
"""Seconds that a pod of a workload has to have run before less is advised."""


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Compare what workloads reserve with the most GPU memory that their containers used since they "
        "started, and print the annotation to write for each. A workload that was killed for its memory, or refused "
        "some, is never advised less than it has.",
    )
    whose = parser.add_mutually_exclusive_group()
    what = "all namespaces; runs commands in the enforcers (pods/exec), and reads the kills of their audit logs"
    whose.add_argument("-A", "--all-namespaces", action="store_true", help=what)
    what = "one namespace (default: the context's); runs commands in the sidecars of its pods, as the role edit may"
    whose.add_argument("-n", "--namespace", type=namespace_name, metavar="NS", help=what)
    what = "advise less only to workloads with a pod that has run for this time (default 24h)"
    parser.add_argument("--min-age", type=duration, default=LEAST_AGE, metavar="TIME", help=what)
    add_enforcers(parser, "; with -A")
    add_cluster(parser)
    add_prometheus(parser, ", for the peaks of the last two weeks, also of earlier pods")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
