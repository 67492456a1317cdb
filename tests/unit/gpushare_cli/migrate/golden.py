"""``python -m tests.unit.gpushare_cli.migrate.golden``: writes what ``migrate`` makes of the manifests anew.

``manifests/NAME.yaml`` has the options in its first line. ``NAME.new.yaml`` comes out, ``NAME.txt`` is said.
"""

import contextlib
import io
from pathlib import Path

from gpushare_cli.main import main

FOLDER = Path(__file__).parent / "manifests"
NEW, SAID = ".new.yaml", ".txt"


def sources() -> list[Path]:
    return sorted(each for each in FOLDER.glob("*.yaml") if not each.name.endswith(NEW))


def answer(source: Path) -> tuple[str, str]:
    """Return what is written and what is said."""
    first = source.read_text(encoding="utf-8").partition("\n")[0]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main(["migrate", "-f", str(source), *first.removeprefix("# migrate").split()])
    return out.getvalue(), err.getvalue()


if __name__ == "__main__":
    for file in sources():
        for suffix, text in zip((NEW, SAID), answer(file), strict=True):
            file.with_name(file.stem + suffix).write_text(text, encoding="utf-8")
