"""The commands of our documents, taken out of them so that tests run what people read.

A block stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` and holds one ``sh`` fence. Lines of the form
``NAME=value`` are the reader's to fill in, and so the test's.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"
DEPLOY: Final = ROOT / "deploy" / "README.md"
NIGHT: Final = ROOT / "docs" / "3am.md"


def blocks(document: Path) -> list[str]:
    """The names of a document's blocks, in their order."""
    return re.findall(r"^<!-- ([a-z]+):begin -->$", document.read_text(), re.MULTILINE)


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
