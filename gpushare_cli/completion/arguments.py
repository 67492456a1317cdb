"""The options of ``gpu-share completion``."""

from typing import Any, Final

SHELLS: Final = ("bash", "fish", "zsh")


def add_parser(add: Any) -> None:
    """Make the parser of the verb with ``add``, and give it the verb's options."""
    parser = add(
        description='Print a completion script. bash: eval "$(gpu-share completion bash)"; zsh likewise; '
        "fish: gpu-share completion fish | source",
    )
    parser.add_argument("shell", choices=SHELLS)
