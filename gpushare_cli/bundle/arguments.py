"""The options of ``gpu-share bundle``."""

from pathlib import Path
from typing import Any, Final

from gpushare_cli.options import add_cluster, duration

TIMEOUT: Final = "2m"
INDEX: Final = "index.jsonl"


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description=(
            "Write a tar.gz with versions, the result of gpu-share check, ResourceSlices, claims, sharing pods, "
            "Events, policies, the workloads of the release and their logs, and the node status. It contains no "
            f"Secret, no value of an environment variable and no annotation except those of gpu-share. {INDEX} lists "
            "the parts that could not be read."
        ),
    )
    parser.add_argument("--to", type=Path, metavar="FILE", help="the archive (gpu-share-bundle-TIME.tar.gz)")
    what = "start reading no further file of the archive after this time, for example 30s or 2m (%(default)s)"
    parser.add_argument("--timeout", type=duration, default=TIMEOUT, metavar="TIME", help=what)
    add_cluster(parser)
