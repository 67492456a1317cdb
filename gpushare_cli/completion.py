"""``gpu-share completion``: print a script that completes verbs, options, their values and file names."""

import argparse
from pathlib import Path
from typing import Any, Final

import shtab

from gpushare_cli import main as cli

SHELLS: Final = ("bash", "fish", "zsh")
PROGRAM: Final = "gpu-share"
"""The scripts complete this name, however the program was called."""


def add_parser(subparsers: Any) -> None:
    """Add the verb to ``argparse``'s collection of subparsers."""
    parser = subparsers.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        description='Print a completion script. bash: eval "$(gpu-share completion bash)"; zsh likewise; '
        "fish: gpu-share completion fish | source",
    )
    parser.add_argument("shell", choices=SHELLS)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    parser = cli.build_parser(*cli.VERBS)
    parser.prog = PROGRAM
    _complete_files(parser)
    return shtab.complete(parser, shell)


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Mark the options whose values are names of files."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for each in action.choices.values():
                _complete_files(each)
        elif action.metavar == "FILE" or action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
