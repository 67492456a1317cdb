"""What a benchmark found: a table on the screen, JSON under .build/bench, and the table in a document if asked."""

import argparse
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[3] / ".build" / "bench"
BEGIN: Final = "<!-- make bench: {} -->\n"
END: Final = "<!-- end -->\n"
LIBRARIES: Final = ("flask", "gunicorn", "httptools", "orjson")

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]
"""Heading of a column, and how it shows a row."""


def options(name: str, about: str | None, *, rounds: int, seconds: float) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks have."""
    parser = argparse.ArgumentParser(f"python -m tests.load.bench {name}".rstrip(), description=about)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"each visits everything (default {rounds})")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"length of one load (default {seconds:g})")
    with_page(parser)
    return parser


def with_page(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the document to write into."""
    parser.add_argument("--write", type=Path, metavar="PATH", help="document that gets the table between its marks")


def machine() -> dict[str, Any]:
    """Return what the figures depend on: the machine, its load before, and versions."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cores": os.cpu_count(),
        "processor": names[0].partition(": ")[2] if names else platform.machine(),
        "load_average": os.getloadavg()[0],
        "versions": {
            "Linux": platform.release(),
            "Python": platform.python_version(),
            **{each: version(each) for each in LIBRARIES},
            **({"Go": _go_version()} if shutil.which("go") else {}),
        },
    }


def _go_version() -> str:
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    return said.strip().removeprefix("go")


def result(name: str, asked: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Begin a result. To be called before the first load, as it takes the load average."""
    settings = {key: value for key, value in vars(asked).items() if key != "write"}
    when = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return {"bench": name, "when": when, "machine": machine(), "settings": settings, **more}


def publish(found: Mapping[str, Any], columns: Columns, page: Path | None) -> None:
    """Print the table, write the JSON file, and put the table into the page.

    Raises:
        SystemExit: the page has no marks for this table.
    """
    lines = [tuple(columns), *(tuple(show(row) for show in columns.values()) for row in found["rows"])]
    below = footer(found)
    print(f"{_aligned(lines)}\n{below}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{found['bench']}.json").write_text(json.dumps(found, indent=1) + "\n")
    if page is None:
        return
    begin = BEGIN.format(found["bench"])
    before, mark, rest = page.read_text().partition(begin)
    if not mark:
        raise SystemExit(f"{page} has no line {begin.strip()!r}; write it, and {END.strip()!r} below it")
    page.write_text(f"{before}{mark}{_markdown(lines)}\n\n{below}\n{END}{rest.partition(END)[2]}")


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(lines[0]), *rows])


def footer(found: Mapping[str, Any]) -> str:
    """Return a sentence on the machine, the versions, the way of measuring and what is missing."""
    made, settings = found["machine"], ", ".join(f"{key} {value:g}" for key, value in found["settings"].items())
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    where = f"{made['cores']} cores ({made['processor']}), load average {made['load_average']:.1f} before"
    left = "".join(f" {name} is left out: {why}." for name, why in found.get("left_out", {}).items())
    return f"{found['when'][:10]}, {where}; {versions}; {settings}.{left}"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
