"""Print a completion script. ``gpushare_cli.completion`` completes for kubectl."""

import argparse
from typing import Final

import shtab

from gpushare_cli import main as cli
from gpushare_cli.completion import is_file

PROGRAM: Final = "gpu-share"
"""The scripts complete this name, however the program was called."""


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
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no public way
            for each in action.choices.values():
                _complete_files(each)
        elif is_file(action):
            action.complete = shtab.FILE  # type: ignore[attr-defined] # an attribute of shtab's own, unknown to argparse
