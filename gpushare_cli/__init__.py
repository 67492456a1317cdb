"""The ``gpu-share`` command line: one module or folder for each verb.

This is the only import package that a wheel installs. The wheel holds the packages that are beside this one in a checkout in
``gpushare_cli/parts``, because other projects on PyPI install packages named ``certs``, ``gpushare`` and ``sidecar``: pip
would overwrite the files of one project with those of the other.
"""

import os
import sys
from typing import Final

_PARTS: Final = os.path.join(os.path.dirname(__file__), "parts")  # noqa: PTH118, PTH120 - pathlib is not in the sidecar

if os.path.isdir(_PARTS):  # noqa: PTH112 - pathlib is not in the sidecar
    sys.path.insert(0, _PARTS)
