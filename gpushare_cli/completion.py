"""``gpu-share completion``: print a script that completes verbs, options, their values and file names.

kubectl asks for the same words by running ``kubectl_complete-gpu_share``, which is ``complete`` here. It also names
pods, namespaces and nodes of the cluster.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gpushare.errors import GpuShareError
from gpushare_cli import main as cli

SHELLS: Final = ("bash", "fish", "zsh")
PROGRAM: Final = "gpu-share"
"""The scripts complete this name, however the program was called."""
FILES: Final = ":0"
NO_FILES: Final = ":4"
"""What kubectl completes besides the words that it is given: names of files, or nothing."""
OBJECTS: Final = {
    "NS": "namespaces", "NAMESPACE": "namespaces", "NODE": "nodes", "[NAMESPACE/]POD": "pods",
    "[NAMESPACE/]POD|KIND/NAME": "pods",
}  # fmt: skip
"""What options and arguments take, by their names in help texts."""
SECONDS: Final = 2.0
"""For an answer of the API server: somebody waits for it at a prompt."""


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
    import shtab  # noqa: PLC0415 - kubectl asks at a prompt, and needs no script

    parser = cli.build_parser(*cli.VERBS)
    parser.prog = PROGRAM
    _complete_files(parser, shtab.FILE)
    return shtab.complete(parser, shell)


def _complete_files(parser: argparse.ArgumentParser, how: Any) -> None:
    """Mark the options whose values are names of files."""
    for each in _verbs(parser).values():
        _complete_files(each, how)
    for action in filter(_is_file, parser._actions):  # noqa: SLF001 - argparse has no public way
        action.complete = how  # type: ignore[attr-defined] # an attribute of shtab's own, unknown to argparse


def complete(argv: Sequence[str] | None = None) -> int:
    """Print what may follow, a word a line, and last whether names of files may.

    Args:
        argv: the words after ``kubectl gpu-share``, the last one to be completed; ``None`` takes the process's own.
    """
    words = list(sys.argv[1:] if argv is None else argv) or [""]
    parser: argparse.ArgumentParser = cli.build_parser(words[0])
    while words[1:] and words[0] in _verbs(parser):
        parser = _verbs(parser)[words.pop(0)]
    print("\n".join(_following(parser, words[:-1], words[-1])))
    return 0


def _following(parser: argparse.ArgumentParser, before: Sequence[str], word: str) -> Iterator[str]:
    """Yield the words that may stand for ``word``, and what else kubectl completes."""
    option, equals, begun = word.partition("=")
    if equals and word.startswith("--"):
        action, lead = parser._option_string_actions.get(option), f"{option}="  # noqa: SLF001 - argparse has no public way
    elif word.startswith("-"):
        yield from _begun(parser._option_string_actions, word)  # noqa: SLF001 - argparse has no public way
        yield NO_FILES
        return
    else:
        action, lead, begun = _next(parser, before)[0], "", word
    if action is None:
        yield from _begun(_verbs(parser), begun)
    else:
        choices = map(str, action.choices or _names(parser, action, before, begun))
        yield from (lead + value for value in _begun(choices, begun))
    yield FILES if action is not None and _is_file(action) else NO_FILES


def _next(parser: argparse.ArgumentParser, before: Sequence[str]) -> tuple[argparse.Action | None, dict[str, str]]:
    """Return what the next word is a value of, if of anything, and the values of options so far."""
    waiting, given = list(parser._get_positional_actions()), dict[str, str]()  # noqa: SLF001 - argparse has no public way
    option: argparse.Action | None = None
    for word in before:
        if option is not None:
            given[option.dest], option = word, None
        elif word.startswith("-"):
            found = parser._option_string_actions.get(word)  # noqa: SLF001 - argparse has no public way
            option = found if found is not None and found.nargs != 0 else None
        elif waiting:
            waiting.pop(0)
    return option or next(iter(waiting), None), given


def _names(
    parser: argparse.ArgumentParser, action: argparse.Action, before: Sequence[str], begun: str
) -> Iterator[str]:
    """Yield names of objects of the cluster that an option or argument takes; none where it cannot be asked."""
    if (kind := OBJECTS.get(str(action.metavar))) is None:
        return
    from gpushare.kube_client import CORE_V1, GARBAGE, KubeClient, namespace_of, path  # noqa: PLC0415 - as above

    given = _next(parser, before)[1]
    connection = given.get("kubeconfig"), given.get("context")
    home, slash, _ = begun.rpartition("/")
    with suppress(GpuShareError, *GARBAGE):
        namespace = home or given.get("namespace") or namespace_of(*connection) if kind == "pods" else ""
        where = path(CORE_V1, kind, namespace=namespace)
        for item in KubeClient.connect(*connection).get(where, timeout=SECONDS, limit="500")["items"]:
            yield f"{home}{slash}{item['metadata']['name']}"


def _begun(words: Iterable[str], begun: str) -> Iterator[str]:
    return (word for word in words if word.startswith(begun))


def _verbs(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]  # noqa: SLF001 - argparse has no public way
    return {name: each for action in actions for name, each in action.choices.items()}


def _is_file(action: argparse.Action) -> bool:
    return action.metavar == "FILE" or action.type is Path
