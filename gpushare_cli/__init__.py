"""The ``gpu-share`` command line: one module or folder for each verb. Pure.

This is the only import package that a wheel installs. The wheel holds the packages that are beside this one in a
checkout in ``gpushare_cli/parts``, because other projects on PyPI install packages named ``certs``, ``gpushare``
and ``sidecar``: pip would overwrite the files of one project with those of the other. A checkout has no such
folder.
"""

import sys

sys.path.insert(0, f"{__path__[0]}/parts")
