"""``python -m tests.support.values`` writes docs/reference/values.md from the comments of the chart's values.yaml."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "values.md"
VALUES: Final = ROOT / "deploy" / "helm" / "gpu-share" / "values.yaml"
HEAD: Final = """# Values of the chart

<!-- python -m tests.support.values -->

Helm refuses a key that is not in this table. `helm show values deploy/helm/gpu-share` prints the same text.

| value | default | meaning |
|---|---|---|
"""
KEY: Final = re.compile(r"^( *)(\w+):")
ABOUT: Final = "# -- "


def page() -> str:
    """Return docs/reference/values.md."""
    defaults = yaml.safe_load(VALUES.read_text())
    return HEAD + "".join(
        f"| `{'.'.join(path)}` | {_shown(_value(defaults, path))} | {about} |\n" for path, about in described()
    )


def described() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each value that has a comment, and the comment on one line."""
    path: list[str] = []
    about: list[str] = []
    for line in VALUES.read_text().splitlines():
        text = line.strip()
        if text.startswith(ABOUT):
            about = [text.removeprefix(ABOUT)]
        elif text.startswith("# ") and about:
            about.append(text.removeprefix("# "))
        elif key := KEY.match(line):
            path = [*path[: len(key[1]) // 2], key[2]]
            if about:
                yield tuple(path), " ".join(about).replace("|", "\\|")
            about = []
        else:
            about = []


def _value(values: dict[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = values
    for each in path:
        found = found[each]
    return found


def _shown(value: Any) -> str:
    return "empty" if value in ("", [], {}, None) else f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page())
