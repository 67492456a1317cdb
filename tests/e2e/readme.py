"""The commands of our documents, taken out of them so that tests run what people read.

A block stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and holds one ``sh`` fence. Lines of the form
``NAME=value`` are the reader's to fill in, and so the test's.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support import pages

ROOT: Final = pages.ROOT
README: Final = ROOT / "README.md"
UPGRADES: Final = ROOT / "docs" / "operators" / "upgrades.md"
NIGHT: Final = ROOT / "docs" / "operators" / "runbook.md"
QUICKSTART: Final = ROOT / "docs" / "start" / "quickstart.md"
UNINSTALL: Final = ROOT / "docs" / "operators" / "uninstall.md"
ELSEWHERE: Final = {
    "install": "fixtures", "verify": "fixtures", "uninstall": "test_upgrade_and_uninstall",
    "upgrade": "test_upgrade_and_uninstall", "rescue": "test_upgrade_and_uninstall",
    "refused": "test_upgrade_and_uninstall",
    "quickshare": "test_kill", "quickkill": "test_kill", "quickaudit": "test_kill", "quickend": "test_kill",
}  # fmt: skip
"""Blocks that tests of their own run, and which; one test runs all others on one node."""


def blocks(document: Path) -> list[str]:
    """The names of a document's blocks, in their order."""
    return re.findall(r"^<!-- ([a-z]+):begin -->\n```sh$", document.read_text(), re.MULTILINE)


def everywhere() -> list[tuple[Path, str]]:
    """Document and name of each block that there is."""
    return [(ROOT / page, name) for page in pages.PAGES for name in blocks(ROOT / page)]


def script(name: str, values: Mapping[str, str], document: Path = README) -> str:
    """The script of one block with the reader's values in it.

    Raises:
        LookupError: there is no such block.
    """
    block = re.search(rf"<!-- {name}:begin -->\n```sh\n(.*?)```\n<!-- {name}:end -->", document.read_text(), re.DOTALL)
    if block is None:
        raise LookupError(f"{document.name} has no block {name!r}")
    return "set -eu\n" + re.sub(
        r"^([A-Z]+)=\S*.*$", lambda line: f"{line[1]}='{values[line[1]]}'" if line[1] in values else line[0], block[1],
        flags=re.MULTILINE,
    )  # fmt: skip
