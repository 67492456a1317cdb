"""The commands of our documents, taken out of them so that tests run what people read.

A block stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and holds one ``sh`` fence. Lines of the form
``NAME=value`` are the reader's to fill in, and so the test's.
"""

import re
from collections.abc import Iterable, Mapping
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


def shown(name: str, document: Path) -> list[str]:
    """The lines that the document shows below a block as what it prints; ``...`` stands for lines left out."""
    fence = re.search(rf"<!-- {name}:end -->\n\n```console\n(.*?)```", document.read_text(), re.DOTALL)
    return [line for line in fence[1].splitlines() if line != "..."] if fence else []


def not_printed(shown: Iterable[str], printed: str) -> list[str]:
    """The shown lines that nothing printed, in this order. Numbers, times, ids and widths of columns may differ."""
    lines = iter([_shape(line) for line in printed.splitlines()])
    return [line for line in shown if _shape(line) not in lines]  # `in` goes on behind the line that it found


def _shape(line: str) -> str:
    words = re.sub(r"GPU-[0-9a-f-]+|sha256:[0-9a-f]+|\d[\d.:TZ-]*", "0", line)
    return " ".join(words.split())
