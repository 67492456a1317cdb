"""What the documents name is there and spelled like that: commands, options, values, metrics, reasons, files, links."""

import argparse
import ast
import errno
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpushare.reasons import Reason
from gpushare_cli.main import PARTS, VERBS, build_parser
from tests.support import pages

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENTS: Final = pages.PAGES
OURS: Final = tuple(page for page in DOCUMENTS if page != "docs/tenants/frameworks.md")
"""Pages that name no options and classes of other programs."""
PRODUCT: Final = ("gpushare", "gpushare_cli", "enforcer", "webhook", "sidecar", "certs")
FOREIGN: Final = frozenset(
    {
        "--admission-control-config-file", "--annotations", "--clusterrole", "--command", "--from-file", "--group",
        "--local", "--no-deps", "--no-hooks", "--overwrite", "--reuse-values", "--set", "--strict", "--target",
        "--wait", "--all-namespaces", "--field-selector", "--ignore-case", "--selector", "--show-labels", "--tail",
        "--restart", "--container", "--install", "--take-ownership", "--ignore-daemonsets", "--delete-emptydir-data",
        "--force-conflicts", "--server-side",
    }
)  # fmt: skip
"""Options of kube-apiserver, kubectl, helm, pip, mypy and grep."""
KUBERNETES: Final = frozenset(
    {
        "OnDelete", "FailedResourceClaimCreation", "CrossNamespacePodAffinity", "WaitForPodsReady",
        "ResourceHealthStatus", "ResourceHealthStatusMessage", "ContainerCreating", "ImagePullBackOff",
    }
)  # fmt: skip
OF_OTHERS: Final = frozenset(
    {"CUDA_ERROR_MPS_CLIENT_TERMINATED", "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "CUDA_MPS_CLIENT_PRIORITY"}
)
MADE_LATER: Final = frozenset({"tests/gpu/results"})


@cache
def text(document: str) -> str:
    return (ROOT / document).read_text()


@cache
def code(document: str) -> tuple[str, ...]:
    """Everything in a document that is set as code, blocks line by line."""
    blocks = re.findall(r"```\w*\n(.*?)```", text(document), re.DOTALL)
    indented = re.findall(r"^    (.+)$", text(document), re.MULTILINE)
    return (
        *re.findall(r"`([^`\n]+)`", text(document)),
        *indented,
        *(line for block in blocks for line in block.splitlines()),
    )


@cache
def sources(*folders: str) -> str:
    return "\n".join(file.read_text() for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))


@cache
def chart() -> str:
    kinds = {".yaml", ".tpl", ".json", ".txt"}
    return "\n".join(file.read_text() for file in sorted((ROOT / "deploy").rglob("*")) if file.suffix in kinds)


def values(found: dict[str, Any], before: str = "") -> Iterator[str]:
    for key, value in found.items():
        yield before + key
        yield from values(value, f"{before}{key}.") if isinstance(value, dict) else ()


def parsers(verb: str) -> dict[str, argparse.ArgumentParser]:
    """The parser of a verb under the empty name, and those of its actions by theirs."""
    subparsers = next(each for each in build_parser(verb)._actions if each.dest == "verb")
    own: argparse.ArgumentParser = subparsers.choices[verb]  # type: ignore[index]
    actions = next((each.choices for each in own._actions if each.dest == "action"), None) or {}
    return {"": own, **dict(actions)}


def commands(lines: Iterable[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Every call of a verb of the command line: the verb, its action where it has several, and the options."""
    for line in lines:
        for verb, rest in re.findall(r"(?:^|[\s/])gpu-share ([a-z]+)\b([^|;#]*)", line):
            if verb in VERBS:
                words = rest.split()
                action = words[0] if words and words[0] in parsers(verb) else ""
                yield verb, action, [word.partition("=")[0].strip("[],") for word in words if word.startswith("--")]


def links(document: str) -> Iterator[tuple[str, str]]:
    for target in re.findall(r"\]\(([^)\s]+)\)", text(document)):
        if "://" not in target:
            file, _, anchor = target.partition("#")
            yield str((ROOT / document).parent / file) if file else str(ROOT / document), anchor


def anchors(file: str) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", Path(file).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", OURS)
def test_every_option_is_an_option_of_ours(document: str) -> None:
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text(document))) - FOREIGN
    known = sources(*PRODUCT, "tests") + chart()
    assert {option for option in named if f'"{option}"' not in known and f"- {option}" not in known} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_command_is_one_and_takes_the_options_it_is_shown_with(document: str) -> None:
    called = {word for line in code(document) for word in re.findall(r"^(?:\$ )?gpu-share ([a-z]+)", line)}
    assert called <= {*VERBS, *PARTS}
    for verb, action, options in commands(code(document)):
        known = {option for each in parsers(verb)[action]._actions for option in each.option_strings}
        assert set(options) <= known, f"gpu-share {verb} {action}"


def test_commands_are_found_in_the_documents() -> None:
    found = {(verb, action) for document in DOCUMENTS for verb, action, _ in commands(code(document))}
    assert {("explain", ""), ("audit", "verify"), ("breaker", ""), ("resize", "")} <= found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_target_of_make_is_one(document: str) -> None:
    there = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {each for line in code(document) for each in re.findall(r"^(?:\$ )?make ([a-z0-9-]+)", line)} <= there


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_value_of_the_chart_is_one(document: str) -> None:
    there = yaml.safe_load((ROOT / "deploy/helm/gpu-share/values.yaml").read_text())
    first = "|".join(key for key, value in there.items() if isinstance(value, dict))
    named = re.findall(rf"`((?:{first})\.[A-Za-z.]*[A-Za-z])[`=]", text(document))
    named += re.findall(r"--set ([A-Za-z.]+)=", text(document))
    assert set(named) <= set(values(there))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_metric_is_one(document: str) -> None:
    named = {each.removesuffix("_total") for each in re.findall(r"\bgpu_share_[a-z_]+[a-z]", text(document))}
    there = sources(*PRODUCT)
    assert {
        each for each in named if each not in there and f'"{each.removeprefix("gpu_share_")}"' not in there
    } == set()


def test_every_alert_has_a_section_of_the_page_for_the_night() -> None:
    alerts = re.findall(r"alert: (\w+)", (ROOT / "deploy/helm/gpu-share/templates/alerts.yaml").read_text())
    heads = " ".join(re.findall(r"^## (.*)$", text("docs/operators/runbook.md"), re.MULTILINE))
    assert alerts
    assert [each for each in alerts if each not in heads] == []


OF_OTHER_PROGRAMS: Final = {os.strerror(errno.ENOSPC), os.strerror(errno.EROFS), "cannot allocate all claims"}
"""Messages of the kernel and of the scheduler."""


def texts(tree: ast.AST) -> Iterator[str]:
    """The strings of a program; a value that is filled in is a line's end, so that no quote crosses it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\n" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_every_message_that_the_page_for_the_night_quotes_is_printed() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", text("docs/operators/runbook.md"), re.MULTILINE)
    quoted = {quote for row in rows for quote in re.findall(r"`([^`]+ [^`]+)`", row)} - OF_OTHER_PROGRAMS
    files = (file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py"))
    printed = "\n".join(chain.from_iterable(texts(ast.parse(file.read_text())) for file in files))
    assert len(quoted) > 5
    assert {quote for quote in quoted if quote not in printed} == set()


def test_every_alert_is_of_a_metric_there_is_and_an_open_breaker_is_one() -> None:
    rules = text("deploy/helm/gpu-share/templates/alerts.yaml")
    named = {each.removesuffix("_bucket") for each in re.findall(r"(?<!:)\bgpu_share_[a-z_]+[a-z]", rules)}
    assert {"gpu_share_breaker_open", "gpu_share_enforcer_problem"} <= named
    named |= {*re.findall(r"record: (\S+)", rules)}
    metrics = text("docs/reference/metrics.md")
    assert {each for each in named if f"`{each}`" not in metrics and f"`{each}{{" not in metrics} == set()


@pytest.mark.parametrize("document", OURS)
def test_every_word_in_upper_camel_case_is_a_reason_a_state_or_kubernetes_own(document: str) -> None:
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", text(document))) - KUBERNETES - {*map(str, Reason)}
    assert {each for each in named if f'"{each}"' not in sources(*PRODUCT)} == set()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_variable_and_key_is_ours_or_nvidias(document: str) -> None:
    there = sources(*PRODUCT)
    variables = set(re.findall(r"\b(?:GPU_SHARE|CUDA|NVIDIA)_[A-Z0-9_]*[A-Z0-9]", text(document))) - OF_OTHERS
    assert {each for each in variables if f'"{each}"' not in there} == set()
    keys = set(re.findall(r"(?<![/\w.-])((?:[a-z-]+\.)?gpu-share\.io/[a-z][a-z-]*[a-z])", text(document)))
    prefixes = {*re.findall(r'"([a-z-]+\.)?\{GROUP\}/([a-z-]*)"', there)}
    assert {each for each in keys if not _known(each, prefixes) and each not in chart()} == set()


def _known(key: str, spelled: set[tuple[str, str]]) -> bool:
    before, _, name = key.partition("gpu-share.io/")
    return (before, name) in spelled or (bool(before) and (before, "") in spelled)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_and_link_is_there(document: str) -> None:
    folders = "|".join((*PRODUCT, "tests", "deploy", "docs", "examples"))
    files = set(re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w)(?![\w<])", text(document))) - MADE_LATER
    assert {each for each in files if not (ROOT / each).exists()} == set()
    for file, anchor in links(document):
        assert Path(file).exists(), file
        assert not anchor or anchor in anchors(file), f"{file}#{anchor}"


def test_no_source_names_a_document_that_is_not_there() -> None:
    kinds = {".py", ".yaml", ".tpl", ".txt", ".json", ".toml", ".yml", ""}
    folders = [ROOT / each for each in (*PRODUCT, "tests", "deploy", "examples")]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and file.suffix in kinds]
    files += [file for file in ROOT.iterdir() if file.is_file() and file.suffix in kinds]
    named = {(each, file) for file in files for each in DOCUMENT.findall(file.read_text(errors="replace"))}
    assert len(named) > 20
    assert sorted(f"{file}: {each}" for each, file in named if not (ROOT / each).exists()) == []


DOCUMENT: Final = re.compile(r"(?<![\w./-])((?:docs|deploy|examples)/[\w./-]*\w\.md)\b")
INSTALLED: Final = frozenset(
    {
        "ValidatingAdmissionPolicy", "DeviceClass", "ClusterRole", "Deployment", "DaemonSet",
        "MutatingWebhookConfiguration",
    }
)  # fmt: skip


def test_what_the_chart_installs_is_named_where_that_is_listed() -> None:
    section = text("docs/operators/security.md").partition("## What is installed\n")[2]
    manifests = yaml.safe_load_all((ROOT / "deploy/manifests/install.yaml").read_text())
    objects = {(each["kind"], each["metadata"]["name"]) for each in manifests if each and each["kind"] in INSTALLED}
    assert {kind for kind, _ in objects} == INSTALLED
    assert {name for _, name in objects if f"`{name}`" not in section} == set()
