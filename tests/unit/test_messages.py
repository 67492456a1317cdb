"""What messages and hints advise is there: commands that parse, options, values of the chart, names of its objects."""

import argparse
import ast
import contextlib
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any, Final

import yaml

from gpushare import contract
from gpushare_cli.main import VERBS, build_parser
from tests.support.command_line import PROCESSES
from tests.support.messages import FILLED, PRODUCT, ROOT, messages

COMMAND: Final = re.compile(rf"gpu-share ({'|'.join(VERBS)})\b([^|\n]*)")
ADVICE: Final = re.compile(r"\b(?:[Rr]uns?|[Uu]se|[Ss]ee|with|by|kubectl exec .* --) ['`]?gpu-share ([a-z]+)")
END: Final = re.compile(r"[;,:.)'\"`]*$")
"""After a command's last word."""
VALUE: Final = re.compile(rf"[A-Z/_]*[A-Z]{{2}}[A-Z/_]*|.*{FILLED}.*")
"""A word for which the reader writes something."""
KUBECTL: Final = {
    "annotate": {"--overwrite"},
    "apply": {"-f"},
    "debug": {"--profile"},
    "delete": {"-n"},
    "describe": {"-A", "-l", "-n"},
    "drain": {"--delete-emptydir-data", "--ignore-daemonsets"},
    "exec": {"-c"},
    "get": {"-A", "-l", "-n", "-o", "--field-selector", "--output", "--selector"},
    "label": {"--overwrite"},
    "logs": {"-l", "-n"},
    "port-forward": set[str](),
    "rollout": {"-n"},
    "scale": {"--replicas", "-n"},
    "uncordon": set[str](),
    "version": set[str](),
}
"""Verbs of kubectl 1.37, and options that they have."""
OF_OTHERS: Final = (
    "gpushare/fractions.py", "gpushare_cli/migrate/dialects.py", "webhook/mutation/",
)  # fmt: skip
"""Texts that name options of other programs."""
UNCLEAR: Final = re.compile(
    r"(?<!there )\b(?:is|are) no (?!longer\b|more\b)\w|\b(?:stands|speaks)\b|\b(?:not|is) well\b| alone(?=$|[;,])"
)
"""Words that readers had to guess at: 'X is no Y', and what acts, named last."""
QUOTED: Final = frozenset(map(ord, "ra"))
CUT: Final = {"shortened"}
"""Functions that return a short text."""
ELSEWHERE: Final = {contract.NO_TOKEN_VOLUME, "gpu-share-bundle", f"gpu-share-{FILLED}"}
"""Names that are not of the chart: a volume of pods, a file, and what a program fills in."""
OF_KUBELET_AND_HELM: Final = {"--create-namespace", "--root-dir", "--set"}
OF_KUBERNETES: Final = {"view", "edit", "admin"}


@cache
def parser(verb: str) -> argparse.ArgumentParser:
    verbs = next(each for each in build_parser(verb)._actions if each.dest == "verb")
    found: argparse.ArgumentParser = verbs.choices[verb]  # type: ignore[index] # argparse declares no mapping
    return found


def inner(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a verb's actions."""
    found = next((each.choices for each in of._actions if isinstance(each.choices, dict)), None)
    return dict(found or {})


def options(of: argparse.ArgumentParser) -> set[str]:
    return {*of._option_string_actions, *chain.from_iterable(map(options, inner(of).values()))}


def words(verb: str, rest: str) -> list[str]:
    """Return the arguments that follow a verb in a sentence: options with values, actions, and words to fill in."""
    found: list[str] = []
    of, waits = parser(verb), False
    for word in rest.split():
        bare = END.sub("", word)
        action = of._option_string_actions.get(bare.partition("=")[0])
        chosen = any(bare in (each.choices or ()) for each in of._actions if not each.option_strings)
        if not (bare and (waits or action or bare.startswith("-") or chosen or VALUE.fullmatch(bare))):
            break
        waits = bool(action and action.nargs != 0 and "=" not in bare)
        of = inner(of).get(bare, of)
        found.append(bare if bare.startswith("-") else bare.lower() if VALUE.fullmatch(bare) else bare)
        if bare != word:
            break
    return found


def commands() -> Iterator[tuple[str, str, list[str]]]:
    for message in messages():
        for verb, rest in COMMAND.findall(message.text):
            yield f"{message.path}:{message.line}", verb, words(verb, rest)


def parses(verb: str, arguments: list[str]) -> bool:
    """Whether the program takes these arguments; a sentence that names options alone leaves out what stands before."""
    for missing in range(4):
        with contextlib.suppress(SystemExit):
            build_parser(verb).parse_args([verb, *arguments, *["xx"] * missing])
            return True
    return False


def test_every_command_of_ours_parses() -> None:
    found = list(commands())
    assert {("breaker", "--reset"), ("audit", "verify"), ("resize", FILLED)} <= {
        (verb, each) for _, verb, arguments in found for each in arguments
    }
    assert [each for each in found if not parses(each[1], each[2])] == []


def test_what_does_not_parse_is_found() -> None:
    assert words("breaker", "--node NODE --reset, then wait") == ["--node", "node", "--reset"]
    assert not parses("breaker", ["--close"])
    assert not parses("audit", ["--all"])


def test_every_verb_that_is_advised_is_one() -> None:
    advised = {(each.path, verb) for each in messages() for verb in ADVICE.findall(each.text)}
    assert len(advised) > 10
    assert [each for each in advised if each[1] not in {*VERBS, *PROCESSES}] == []


@cache
def own(part: str, second: str) -> set[str]:
    """Return the options of the program that prints the texts of a file."""
    if part == "enforcer":
        return options(PROCESSES["enforcer"]()) | options(PROCESSES["mps"]())
    if part in PROCESSES:
        return options(PROCESSES[part]())
    if second in VERBS:
        return options(parser(second))
    return set(chain.from_iterable(options(parser(verb)) for verb in VERBS))


def test_every_option_is_one_of_the_program_that_names_it() -> None:
    wrong, seen = [], 0
    for message in messages():
        if not message.path.startswith(OF_OTHERS):
            text = re.sub(r"(?:kubectl|helm|gpu-share) [a-z][^;]*", "", message.text)
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![a-z-])", text)) - OF_KUBELET_AND_HELM
            seen += len(named)
            known = own(*message.path.split("/")[:2])
            wrong += [(message.path, each) for each in named - known if not each.endswith(FILLED)]
    assert seen > 50
    assert wrong == []


def others(program: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of another program in a message: where, and its words."""
    for message in messages():
        for command in re.findall(rf"\b{program} [a-z-][^;|,)\n]*", message.text):
            yield f"{message.path}:{message.line}", command.split()[1:]


def test_every_command_of_kubectl_has_a_verb_and_options_of_kubectl() -> None:
    wrong, found = [], list(others("kubectl"))
    for where, arguments in found:
        ours = arguments[: arguments.index("--")] if "--" in arguments else arguments
        verb = next((each for each in ours if END.sub("", each) in KUBECTL), "")
        named = {END.sub("", each).partition("=")[0] for each in ours if each.startswith("-")} - {"-"}
        if not verb or not named <= KUBECTL[END.sub("", verb)] | {"-n", "--namespace"}:
            wrong.append((where, arguments))
    assert len(found) > 30
    assert wrong == []


def keys(found: Any, before: str = "") -> Iterator[str]:
    for key, value in found.items() if isinstance(found, dict) else ():
        yield before + key
        yield from keys(value, f"{before}{key}.")


def test_every_value_of_the_chart_is_one() -> None:
    chart = yaml.safe_load((ROOT / "deploy/helm/gpu-share/values.yaml").read_text(encoding="utf-8"))
    first = "|".join(key for key, value in chart.items() if isinstance(value, dict) and key != "namespace")
    named = re.compile(
        rf"(?<![\w./-])(?:{first})\.[a-zA-Z.]*[a-zA-Z](?![\w-])|(?<=chart value )\w+|(?<=chart's value )\w+"
    )
    found = {(message.path, each) for message in messages() for each in named.findall(message.text)}
    assert len(found) > 10
    assert {each for each in found if each[1] not in {*keys(chart)}} == set()


def test_every_object_of_ours_is_one() -> None:
    chart = "\n".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "deploy").rglob("*") if file.suffix in {".yaml", ".tpl"}
    )
    found = {
        (message.path, each)
        for message in messages()
        for each in re.findall(r"(?<![\w./$-])gpu-share-[a-z][a-z-]*[a-z](?![a-z-])", message.text)
    }
    assert len(found) > 10
    assert {each for each in found if each[1] not in chart and each[1] not in ELSEWHERE} == set()


def test_every_cluster_role_is_one() -> None:
    people = (ROOT / "deploy/helm/gpu-share/templates/rbac-people.yaml").read_text(encoding="utf-8")
    named = set(re.findall(r"ClusterRole ([a-z-]+-[a-z]+|view|edit|admin)", " ".join(each.text for each in messages())))
    assert {"gpu-share-operator", "gpu-share-resize", "gpu-share-view"} <= named
    assert {each for each in named - OF_KUBERNETES if f"name: {each}\n" not in people} == set()


def test_messages_are_in_plain_english() -> None:
    assert UNCLEAR.search("the file is no list")
    assert [(each.path, each.text) for each in messages() if UNCLEAR.search(each.text)] == []


def test_every_quoted_value_has_a_bound() -> None:
    """A value from outside, in quotes, is cut: ``{text!r:.80}``, ``quoted(text)``, or a slice."""
    unbounded = []
    for part in PRODUCT:
        for file in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FormattedValue) and node.conversion in QUOTED and node.format_spec is None:
                    unbounded += [f"{file.relative_to(ROOT)}:{node.lineno}"] if open_ended(node.value) else []
    assert unbounded == []


def open_ended(value: ast.expr) -> bool:
    """Whether a value is neither a constant nor a slice, nor what a function returns that cuts it."""
    if isinstance(value, ast.Subscript):
        return not isinstance(value.slice, ast.Slice)
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) not in CUT
    return not (isinstance(value, ast.Name | ast.Attribute) and ast.unparse(value).rpartition(".")[2].isupper())
