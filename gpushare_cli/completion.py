"""``gpu-share completion``: print a script that completes verbs, options, their values and file names.

kubectl asks for the same words by running ``kubectl_complete-gpu_share``, which is ``complete`` here.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import shtab

from gpushare_cli import main as cli

SHELLS: Final = ("bash", "fish", "zsh")
PROGRAM: Final = "gpu-share"
"""The scripts complete this name, however the program was called."""
FILES: Final = ":0"
NO_FILES: Final = ":4"
"""What kubectl completes besides the words that it is given: names of files, or nothing."""


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
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


def complete(argv: Sequence[str] | None = None) -> int:
    """Print what may follow, a word a line, and last whether names of files may.

    Args:
        argv: the words after ``kubectl gpu-share``, the last one to be completed; ``None`` takes the process's own.
    """
    words = list(sys.argv[1:] if argv is None else argv) or [""]
    parser: argparse.ArgumentParser = cli.build_parser(*cli.VERBS)
    for word in words[:-1]:
        parser = _verbs(parser).get(word, parser)
    print("\n".join(_following(parser, words[-2] if words[1:] else "", words[-1])))
    return 0


def _following(parser: argparse.ArgumentParser, before: str, word: str) -> Iterator[str]:
    """Yield the words that may stand for ``word``, and what else kubectl completes."""
    option, equals, begun = word.partition("=")
    if equals and word.startswith("--"):
        yield from _values(parser, option, begun, f"{option}=")
    elif word.startswith("-"):
        yield from _begun(parser._option_string_actions, word)  # noqa: SLF001 - argparse has no public way
        yield NO_FILES
    else:
        yield from _values(parser, before, word)


def _values(parser: argparse.ArgumentParser, option: str, begun: str, lead: str = "") -> Iterator[str]:
    """Yield the values of an option, or of what stands without one where this option takes no value."""
    action = parser._option_string_actions.get(option)  # noqa: SLF001 - argparse has no public way
    if action is None or action.nargs == 0:
        yield from _begun(_verbs(parser) or _positional(parser), begun)
        yield NO_FILES
        return
    yield from (lead + value for value in _begun(map(str, action.choices or ()), begun))
    yield FILES if _is_file(action) else NO_FILES


def _begun(words: Iterable[str], begun: str) -> Iterator[str]:
    return (word for word in words if word.startswith(begun))


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]  # noqa: SLF001 - argparse has no public way
    return {name: each for action in actions for name, each in action.choices.items()}


def _positional(parser: argparse.ArgumentParser) -> list[str]:
    actions = parser._get_positional_actions()  # noqa: SLF001 - argparse has no public way
    return [str(choice) for action in actions for choice in action.choices or ()]


def _is_file(action: argparse.Action) -> bool:
    return action.metavar == "FILE" or action.type is Path


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Mark the options whose values are names of files."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - argparse has no public way
            for each in action.choices.values():
                _complete_files(each)
        elif _is_file(action):
            action.complete = shtab.FILE  # type: ignore[attr-defined] # an attribute of shtab's own, unknown to argparse
