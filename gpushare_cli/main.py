"""The program ``gpu-share``: finds the verb, loads only what that verb needs, and turns errors into sentences.

Processes (``webhook``, ``enforcer``, ``sidecar``, ``certs``) get the rest of the line untouched and answer for
themselves; nothing of the people's side is imported for them.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from io import TextIOWrapper
from types import ModuleType
from typing import Final, NoReturn

from gpushare.errors import ConfigError, GpuShareError
from gpushare.suggestion import nearest
from gpushare_cli import extras, words
from gpushare_cli.terminal import FINE, INTERRUPTED, NOT_FINE, WRONG_USE

PARTS: Final = {
    "webhook": "run the webhook: answer admission reviews and create claim templates",
    "enforcer": "run the enforcer: watch this node's GPUs and kill containers over quota",
    "mps": "run the MPS pod: start MPS daemons for the enforcer; they survive its restart",
    "sidecar": "run the sidecar: report the share of its pod in logs and metrics",
    "certs": "create and rotate the CA and the webhook's serving certificate",
}
_MODULES: Final = {"mps": "enforcer.mps.host"}
"""Where a process is not the ``main`` of a part of its name."""
VERBS: Final = {
    "inject": "rewrite pods in manifests as the webhook does, without a cluster",
    "migrate": "rewrite what pods in manifests ask of other GPU systems, without a cluster",
    "check": "check whether this node and the cluster are ready for gpu-share",
    "top": "show GPUs, the containers on them, and their use against quota",
    "advise": "show how much memory workloads should ask for, by the most that they used",
    "report": "show the GPU memory of each namespace in a month, and its kills, from Prometheus",
    "ui": "open a read-only web view of fleet, shares and kills on this machine",
    "status": "inside a sidecar: show GPU memory use and quota of the pod's containers",
    "explain": "explain what gpu-share did or would do with a pod, and why",
    "resize": "change the GPU memory quota of a running container, up to the memory that its pod reserved",
    "audit": "show the audit log and verify its hash chain",
    "breaker": "show the circuit breakers of all nodes, or close that of one node",
    "bundle": "write one archive for support, without Secrets and environment values",
    "annotations": "print every annotation and label: its values, its default, and the components that read it",
    "reasons": "print the meaning and the remedy of each Reason in refusals, Events, records and logs",
    "uninstall": (
        "wait until the last share ends, then remove the objects and files of gpu-share (run by the chart's hooks)"
    ),
    "completion": "print a completion script for bash, zsh or fish",
    "version": "print the version",
}


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one sentence on stderr."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to read more; exit code 2."""
        self.exit(WRONG_USE, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Args:
        argv: the arguments without the program's name; ``None`` takes the process's own.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        arguments = ["version"]
    if arguments and arguments[0] in PARTS:
        return _process(arguments[0], arguments[1:])
    return _guarded(lambda: _verb(arguments))


def program() -> str:
    """Return the name the program was called by, as usage lines show it."""
    return "kubectl gpu-share" if sys.argv[0].rpartition("/")[2] == "kubectl-gpu_share" else "gpu-share"


def build_parser(*full: str) -> Parser:
    """Build the parser with the options of these verbs; the others are there for the list only."""
    parser = Parser(
        prog=program(),
        description="Share one GPU between several pods, with enforced memory limits and an audit log of kills.",
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "processes:\n" + "\n".join(f"  {name:<18}  {what}" for name, what in PARTS.items())
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs", required=True)
    for name, what in VERBS.items():
        if name in full:
            _load(name, "arguments").add_parser(partial(verbs.add_parser, name, help=what))
        else:
            verbs.add_parser(name, help=what)
    return parser


def _verb(arguments: list[str]) -> int:
    asked = next((word for word in arguments if not word.startswith("-")), None)
    _ready_output(asked)
    parser = build_parser(*[asked] if asked else [])
    if asked and asked not in VERBS and (near := nearest(asked, VERBS)):
        parser.error(f"there is no verb {asked!r:.80}; did you mean {near}?")
    args = parser.parse_args(arguments)
    code: int = _load(args.verb, "command").run(args)
    sys.stdout.flush()
    return code


def _load(verb: str, part: str) -> ModuleType:
    """Return a verb's module, or of its package this part: options are loaded alone, for the rest takes a while."""
    module = importlib.import_module(f"gpushare_cli.{verb}")
    return importlib.import_module(f"{module.__name__}.{part}") if hasattr(module, "__path__") else module


def _ready_output(verb: str | None) -> None:
    """Standard output may have been closed: then the exit code is all that is wanted. Or it knows few letters."""
    if (stream := getattr(sys, "stdout", None)) is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    elif verb not in ("inject", "migrate") and isinstance(stream, TextIOWrapper):  # in a manifest no letter may change
        stream.reconfigure(errors="backslashreplace")


def _process(part: str, arguments: list[str]) -> int:
    if part in extras.OF_PARTS and (lack := extras.missing(extras.OF_PARTS[part])):
        print(f"{program()} {part}: {lack}", file=sys.stderr)
        return NOT_FINE
    code: int = importlib.import_module(_MODULES.get(part, f"{part}.main")).main(arguments)
    return code


def _guarded(call: Callable[[], int]) -> int:
    try:
        return call()
    except SystemExit as exit_:  # argparse leaves this way
        return exit_.code if isinstance(exit_.code, int) else WRONG_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has seen enough
        _write_no_more()
        return FINE
    except OSError as error:
        _write_no_more()
        what = "cannot write to standard output" if error.filename is None else error.filename
        print(f"{program()}: {what}: {error.strerror}", file=sys.stderr)
        return NOT_FINE
    except GpuShareError as error:
        print(f"{program()}: {words.sentence(error)}", file=sys.stderr)
        return WRONG_USE if isinstance(error, ConfigError) else NOT_FINE


def _write_no_more() -> None:
    """Let what is still buffered go nowhere, or the interpreter complains of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
