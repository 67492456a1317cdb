"""The README's commands, taken out of it so that tests run what people read.

A block stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``; of its ``console`` fences the lines after
``$ `` are commands, the rest is what they print.
"""

import re
from pathlib import Path
from typing import Final

README: Final = Path(__file__).parents[2] / "README.md"


def commands(name: str, text: str | None = None) -> list[str]:
    """The commands of one block, in order; a line that ends in a backslash goes on in the next.

    Raises:
        LookupError: there is no such block, or it holds no command.
    """
    content = README.read_text() if text is None else text
    block = re.search(rf"<!-- {name}:begin -->(.*?)<!-- {name}:end -->", content, re.DOTALL)
    if block is None:
        raise LookupError(f"the README has no block {name!r}")
    fences = re.findall(r"```console\n(.*?)```", block[1], re.DOTALL)
    found = [line for fence in fences for line in _commands(fence)]
    if not found:
        raise LookupError(f"the README's block {name!r} holds no command")
    return found


def _commands(fence: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", fence)
    return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]
