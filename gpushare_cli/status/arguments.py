"""The options of ``gpu-share status``."""

from pathlib import Path
from typing import Any

from gpushare.contract import SIDECAR, STATUS_PATH
from sidecar import pod_status


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description="Show GPU memory use and quota of this pod's containers, in MiB. Run this command in container "
        f"{SIDECAR}.",
    )
    what = f"where {pod_status.FILE} is (%(default)s)"
    parser.add_argument("--status", type=Path, default=Path(STATUS_PATH), metavar="DIR", help=what)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="json: the file as it is")
