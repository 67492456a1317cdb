"""``NOTICE``: the libraries that the image holds, with the licence that each declares.

``make golden`` writes it as ``python -m tests.support.notice``, from ``requirements.txt`` and the installed metadata.
"""

import re
from importlib.metadata import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "NOTICE"
LOCKED: Final = ROOT / "requirements.txt"
HEAD: Final = """\
gpu-share
Copyright the gpu-share authors

The image holds the libraries below, each under the licence that it declares. The texts of the licences are in
the image, in /opt/gpu-share/lib/python3*/site-packages/NAME-VERSION.dist-info; that of nvidia-ml-py is at the
top of pynvml.py. PyPI has the sources under the same names. The base image brings Python and the packages of
its distribution, with licences of their own. The wheel holds no library.

"""


def locked() -> list[str]:
    """Return the names of the libraries in ``requirements.txt``, which are those in the image."""
    return re.findall(r"^([a-z0-9][a-z0-9.-]*)==", LOCKED.read_text(), re.MULTILINE)


def licence(name: str) -> str:
    """Return the licence that a library's metadata declares; the newest field that has one counts."""
    about = metadata(name)
    classifiers = [
        each.split(" :: ")[-1] for each in about.get_all("Classifier") or () if each.startswith("License ::")
    ]
    fields = [*(about[key] for key in ("License-Expression", "License") if key in about), " and ".join(classifiers)]
    return next(text for text in fields if text)


def notice() -> str:
    """Return what ``NOTICE`` has to be."""
    return HEAD + "".join(f"{name}: {licence(name)}\n" for name in locked())


def main() -> int:
    """Write the file."""
    FILE.write_text(notice())
    print(f"wrote {FILE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
