"""Every page: short sentences, lists that both renderers read, commands that parse, YAML that is admitted."""

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from typing import Any, Final

import pytest
import yaml

from gpushare import contract
from gpushare.namespace_policy import NamespacePolicy
from tests.e2e import readme
from tests.support import command_line, helm, pages, site, values
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

P90: Final = 28
LONGEST: Final = 90
CLICKS: Final = 3
OF_OTHERS: Final = {
    "ResourceClaim": "tests/integration/controlplane/policies/test_amounts.py",
    "ResourceQuota": "tests/integration/controlplane/policies/test_amounts.py",
    "ClusterRole": "tests/integration/controlplane/policies/test_resize.py",
    "AdmissionConfiguration": "tests/integration/controlplane/test_client_certificates.py",
    "Config": "tests/integration/controlplane/test_client_certificates.py",
    "KubeSchedulerConfiguration": "tests/integration/controlplane/test_recipes.py",
    "Configuration": "tests/unit/test_recipes.py",
    "ignoreDifferences": "tests/unit/test_recipes.py",
    "InferenceService": "tests/unit/test_integrations.py",
    "RayCluster": "tests/unit/test_integrations.py",
    "singleuser": "tests/unit/test_integrations.py",
}
"""Kinds, or first keys, of YAML that other programs read, and the test that uses the block."""
HELM: Final = re.compile(r"^(?:\w+=\S+ )*helm (?:install|upgrade)\b.*deploy/helm/gpu-share")
VALUE_OPTIONS: Final = ("--set", "--set-string", "-f", "--values")


def too_long(page: str) -> str:
    """What is wrong with the page's prose, or nothing."""
    parts = list(pages.paragraphs(pages.read(page)))
    lengths = sorted(map(pages.words, chain.from_iterable(map(pages.sentences, parts))))
    p90 = lengths[len(lengths) * 9 // 10] if lengths else 0
    longest = max(parts, key=pages.words, default="")
    problems = [f"90 % of the sentences have up to {p90} words, not {P90}"] if p90 > P90 else []
    if pages.words(longest) > LONGEST:
        problems.append(f"a paragraph has {pages.words(longest)} words, not {LONGEST}: {longest[:60]}")
    return "; ".join(problems)


@pytest.mark.parametrize("page", pages.PAGES)
def test_sentences_and_paragraphs_are_short(page: str) -> None:
    assert too_long(page) == ""


def test_what_is_too_long_is_found() -> None:
    text = "# Head\n\nOne two. `a b` three\nfour!\n\n- item\n- next\n\n| a |\n|---|\n\n```sh\nx y\n```\n"
    assert list(pages.paragraphs(text)) == ["One two. `a b` three four!", "- item", "- next"]
    assert [pages.words(each) for each in pages.sentences("One two. `a b` three four!")] == [2, 3]


@pytest.mark.parametrize("page", pages.PAGES)
def test_lists_are_lists_for_github_and_for_the_site(page: str) -> None:
    text = pages.FENCE.sub("", pages.read(page))
    assert re.findall(r"^(?![-#|<\s]|\d+\. ).*\S\n(?:-|\d+\.) .*", text, re.MULTILINE) == [], "a blank line is missing"
    assert re.findall(r"^ {1,3}(?:[-*]|\d+\.) .*", text, re.MULTILINE) == [], "indent inner lists by four spaces"


def listed(entries: list[Any], depth: int = 1) -> Iterator[tuple[int, str, str]]:
    """Yield each page of the navigation: how many clicks away, its label or nothing, its path in the site."""
    for entry in entries:
        label, inner = ("", entry) if isinstance(entry, str) else next(iter(entry.items()))
        yield from [(depth, label, inner)] if isinstance(inner, str) else listed(inner, depth + 1)


def test_every_page_is_within_three_clicks_under_a_name_that_its_title_has() -> None:
    found = list(listed(yaml.safe_load(pages.read("mkdocs.yml"))["nav"]))
    assert len(found) > 40
    assert [page for depth, _, page in found if depth > CLICKS] == []
    files = {page: f"docs/{page}" if (pages.DOCS / page).exists() else page for _, _, page in found}
    titles = {page: pages.read(file).partition("# ")[2].partition("\n")[0] for page, file in files.items()}
    assert [(label, titles[page]) for _, label, page in found if label.lower() not in titles[page].lower()] == []
    assert len(set(titles.values())) == len(titles)


def test_generated_pages_are_what_the_code_says() -> None:
    assert command_line.page() == command_line.PAGE.read_text(), "run make golden"
    assert values.page() == values.PAGE.read_text(), "run make golden"


def test_every_value_has_a_comment() -> None:
    described = {".".join(path) for path, _ in values.described()}

    def bare(found: Any, path: str) -> list[str]:
        if path in described:
            return []
        if not isinstance(found, dict):
            return [path]
        return [*chain.from_iterable(bare(each, f"{path}.{key}".lstrip(".")) for key, each in found.items())]

    assert bare(yaml.safe_load(values.VALUES.read_text()), "") == []


def test_every_shell_block_has_a_name_by_which_a_test_runs_it() -> None:
    unnamed = []
    for page in pages.PAGES:
        names = readme.blocks(pages.ROOT / page)
        assert len(set(names)) == len(names), page
        unnamed += [page] if pages.read(page).count("```sh\n") != len(names) else []
    assert unnamed == [], "write a block that cannot run on a test's cluster as ```console"
    assert {name for _, name in readme.everywhere()} >= readme.ELSEWHERE.keys()


@cache
def chart_options() -> list[tuple[str, tuple[str, ...]]]:
    """Page and chart options of each ``helm install`` and ``helm upgrade`` in a document."""
    found = []
    for block in pages.blocks("sh", "console"):
        for command in filter(HELM.match, pages.commands(block)):
            words = shlex.split(command.replace("REGISTRY", "registry.example.org"), comments=True)
            pairs = pairwise(words)
            found.append((block.page, tuple(chain.from_iterable(pair for pair in pairs if pair[0] in VALUE_OPTIONS))))
    return found


@pytest.mark.parametrize(
    ("page", "target", "there"),
    [
        ("start/faq.md", "../../SECURITY.md", "../SECURITY.md"),
        ("start/faq.md", "glossary.md", "glossary.md"),
        ("examples/README.md", "../docs/tenants/ask.md", "../tenants/ask.md"),
        ("CONTRIBUTING.md", "docs/start/glossary.md", "start/glossary.md"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(page: str, target: str, there: str) -> None:
    assert site.in_site(target, page) == there


def test_every_helm_command_renders() -> None:
    helm.need()
    assert len(chart_options()) > 3
    for options in sorted({options for _, options in chart_options()}):
        assert "kind: DaemonSet" in helm.template(*options), options


@pytest.mark.parametrize("page", sorted({block.page for block in pages.blocks("yaml")}))
def test_every_yaml_is_admitted_or_used_by_a_test(page: str) -> None:
    found = [block.text for block in pages.blocks("yaml") if block.page == page]
    for document in chain.from_iterable(map(yaml.safe_load_all, found)):
        kind = document.get("kind") or next(iter(document))
        if kind in OF_OTHERS:
            assert (pages.ROOT / OF_OTHERS[kind]).exists()
        elif kind == "Namespace":
            NamespacePolicy.from_annotations(document["metadata"].get("annotations", {}))
        elif kind in yaml.safe_load(values.VALUES.read_text()):
            helm.need()
            helm.template("--set-json", f"{kind}={json.dumps(document[kind])}")
        else:
            assert admitted(document), f"a {kind} that no test knows"


def admitted(document: dict[str, Any]) -> bool:
    """Whether the webhook gives the pod, or the pod template, a share."""
    spec = document.get("spec") or {"containers": [{"name": "main", "image": "main"}]}  # the README's five lines
    pod = {**document, "spec": spec} if document["kind"] == "Pod" else spec["template"]
    decision = mutate_pod(pod, policy=NamespacePolicy(max_memory_limit_mib=81_920), settings=Settings())
    return bool(decision.pod["metadata"]["labels"][contract.MANAGED_LABEL] == "true")
