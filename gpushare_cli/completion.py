"""``gpu-share completion``: a script that completes verbs and options, made from the parsers themselves."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpushare_cli import main as cli


def add_parser(subparsers: Any) -> None:
    """Add the verb to ``argparse``'s collection of subparsers."""
    parser = subparsers.add_parser(
        "completion",
        help="print a completion script for bash, zsh or fish",
        description="Print a completion script: source <(gpu-share completion bash)",
    )
    parser.add_argument("shell", choices=sorted(_SCRIPTS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(_SCRIPTS[args.shell](words()))
    return 0


def words() -> dict[str, list[str]]:
    """Return the options of every verb."""
    return {verb: _options(cli.build_parser(verb), verb) for verb in cli.VERBS} | {part: [] for part in cli.PARTS}


def _options(parser: argparse.ArgumentParser, verb: str) -> list[str]:
    subparsers = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001
    actions: Sequence[argparse.Action] = subparsers.choices[verb]._actions  # noqa: SLF001 - argparse has no public way
    options = [option for action in actions for option in action.option_strings]
    return options + [str(choice) for action in actions if not action.option_strings for choice in action.choices or ()]


def bash(verbs: Mapping[str, Sequence[str]]) -> str:
    """Return the script for bash."""
    cases = "\n".join(f'    {verb}) words="{" ".join(options)}" ;;' for verb, options in verbs.items())
    return f"""\
_gpu_share() {{
  local words
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  [ "$COMP_CWORD" -eq 1 ] && words="{" ".join(verbs)}"
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _gpu_share gpu-share"""


def zsh(verbs: Mapping[str, Sequence[str]]) -> str:
    """Return the script for zsh, which takes bash's."""
    return "autoload -U +X bashcompinit && bashcompinit\n" + bash(verbs)


def fish(verbs: Mapping[str, Sequence[str]]) -> str:
    """Return the script for fish."""
    lines = [f"complete -c gpu-share -n __fish_use_subcommand -a {verb}" for verb in verbs]
    for verb, options in verbs.items():
        lines += [f"complete -c gpu-share -n '__fish_seen_subcommand_from {verb}' -a '{option}'" for option in options]
    return "\n".join(lines)


_SCRIPTS: Final = {"bash": bash, "fish": fish, "zsh": zsh}
