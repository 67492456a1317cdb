"""``python -m tests.support.command_line`` writes docs/reference/command-line.md from the parsers of ``gpu-share``."""

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import certs.main
import enforcer.flags
import enforcer.mps.host
import sidecar.main
import webhook.flags
from gpushare_cli.main import PARTS, VERBS, build_parser

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
HEAD: Final = """# Command line

<!-- python -m tests.support.command_line -->

`gpu-share VERB --help` prints the same. With the file name `kubectl-gpu_share` on `PATH` the program is also a plugin:
`kubectl gpu-share VERB`. The verbs are for people. The processes are started by the chart.
"""
PROCESSES: Final[dict[str, Callable[[], argparse.ArgumentParser]]] = {
    "webhook": webhook.flags._parser,
    "enforcer": enforcer.flags._parser,
    "mps": enforcer.mps.host._parser,
    "sidecar": sidecar.main._parser,
    "certs": certs.main._parser,
}


def page() -> str:
    """Return docs/reference/command-line.md."""
    verbs = _choices(build_parser(*VERBS), "verb")
    lines = [HEAD, "## Verbs", ""]
    for name, about in VERBS.items():
        lines += _section(f"gpu-share {name}", verbs[name], about)
    lines += ["## Processes", ""]
    for name, about in PARTS.items():
        lines += _section(f"gpu-share {name}", PROCESSES[name](), about)
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, parser: argparse.ArgumentParser, about: str, level: int = 3) -> Iterator[str]:
    yield from (f"{'#' * level} {name}", "", *_description(parser.description or about))
    rows = [row for action in parser._actions if (row := _row(action))]
    if rows:
        yield from ("| argument | meaning |", "|---|---|", *rows, "")
    actions = _choices(parser, "action")
    helps = {each.dest: each.help for action in parser._actions for each in getattr(action, "_choices_actions", [])}
    for each, inner in actions.items():
        yield from _section(f"{name} {each}", inner, helps.get(each) or "", level + 1)


def _description(text: str) -> Iterator[str]:
    """Paragraphs, with a full stop; examples are indented in the parsers, and a block here."""
    for part in text.strip("\n").split("\n\n"):
        if part.startswith(" "):
            yield from ("```console", *(line.strip() for line in part.splitlines()), "```", "")
        else:
            end = "" if part.rstrip().endswith((".", ":")) else "."
            yield from (_cell(part[:1].upper() + part[1:]) + end, "")


def _choices(parser: argparse.ArgumentParser, dest: str) -> dict[str, argparse.ArgumentParser]:
    found = next((each for each in parser._actions if each.dest == dest), None)
    return dict(found.choices or {}) if isinstance(found, argparse._SubParsersAction) else {}


def _row(action: argparse.Action) -> str | None:
    if action.help == argparse.SUPPRESS or action.dest == "help" or isinstance(action, argparse._SubParsersAction):
        return None
    name = ", ".join(action.option_strings) + _operand(action)
    about = (action.help or "") % {"default": action.default, "dest": action.dest}
    return f"| `{name.strip()}` | {_cell(about)} |"


def _operand(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    shown = action.metavar or choices or (action.dest.upper() if action.option_strings else action.dest)
    return f" {' '.join(shown) if isinstance(shown, tuple) else shown}"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


if __name__ == "__main__":
    PAGE.write_text(page())
