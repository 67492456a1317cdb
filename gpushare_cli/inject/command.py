"""``gpu-share inject``: the webhook's rewriting offline, on any manifest, by the webhook's own function."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from gpushare import contract
from gpushare.errors import ConfigError, Problem, RequestError
from gpushare.findings import Findings, collect
from gpushare.namespace_policy import NamespacePolicy
from gpushare.raw_objects import mapping
from gpushare.reasons import Reason
from gpushare_cli.inject import manifest, rewrite, workloads
from gpushare_cli.inject.kube_yaml import dump
from gpushare_cli.inject.manifest import Document, split
from gpushare_cli.inject.rewrite import Admit, Result
from gpushare_cli.inject.workloads import CLAIM, CLAIM_TEMPLATE, DEFAULT_NAMESPACE, NAMESPACE, Steps, objects
from gpushare_cli.terminal import Colour, Terminal, diff
from webhook.claim_templates.references import is_of_other_gpus, is_own
from webhook.mutation.mutate import Mutation, mutate_pod
from webhook.mutation.settings import Settings

Annotations = Mapping[str, Any]
Claims = Mapping[str, frozenset[str]]
Counts = Callable[..., bool]
"""Tells whether a claim, or with ``template`` a claim template, is of a kind."""


def run(args: argparse.Namespace) -> int:
    """Read, rewrite, write. Returns 0; errors leave as exceptions before anything is written."""
    texts = manifest.texts(manifest.found(args.filename, recursive=args.recursive))
    results = rewritten(manifest.documents(texts), args)
    later = list(made_later(results, paths(args)))
    for line in (*warnings(results), *unmatched(results, args), *later, *(() if later else _nothing_asks(results))):
        print(line, file=sys.stderr)
    if args.templates:
        results = list(rewrite.with_templates(results))
    else:
        results = [replace(result, templates=()) for result in results]
    sys.stdout.write(_WRITERS[args.output](results, args) if args.output else as_it_came(texts, results))
    return 0


def rewritten(documents: Sequence[Document], args: argparse.Namespace) -> list[Result]:
    """Rewrite documents with the options of ``add_policy_options``. Raises ``PolicyDenied`` and ``RequestError``."""
    values = _around(args) + rewrite.readable(documents)
    return rewrite.rewrite(documents, admit_for(values, args), args.namespace, no_strings(values), paths(args))


def paths(args: argparse.Namespace) -> list[Steps]:
    """Return where objects of other APIs have pods. Raises ``ConfigError``."""
    return [workloads.parse_path(path) for path in args.pod_at]


def known_values(documents: Sequence[Document], args: argparse.Namespace) -> list[Any]:
    """Return the objects of a stream, and those of the options' files, that decide on pods or are pods."""
    return _around(args) + _values(documents)


def _around(args: argparse.Namespace) -> list[Any]:
    """Return the objects of the files of Namespaces. Raises ``ConfigError``."""
    return [value for file in args.namespaces for value in _namespaces_of(file)]


def _namespaces_of(file: str) -> list[Any]:
    values = [value for value in _values(split(manifest.source(file))) if value is not None]
    if not values or not all(map(_holds_namespaces, values)):
        raise ConfigError(f"--namespaces {file:.200} must contain Namespaces with names and nothing else")
    return values


def _holds_namespaces(value: Any) -> bool:
    """Whether a document is a Namespace with a name, or a list of such."""
    found = list(objects(value, NAMESPACE))
    items = value.get("items") if isinstance(value, dict) else None
    number = len(items) if isinstance(items, list) else 1
    return len(found) == number and all(isinstance(mapping(each, "metadata").get("name"), str) for each in found)


def admit_for(values: Sequence[Any], args: argparse.Namespace) -> Admit:
    """Return what decides on the pods of a stream: its own Namespaces and claims, and the webhook's settings."""
    own, others = (_claims(values, args.namespace or DEFAULT_NAMESPACE, of) for of in (is_own, is_of_other_gpus))
    return admit(_policies(values), own, others, settings(), _closed(values))


def admit(
    policies: Mapping[str, Annotations],
    own: Claims,
    others: Claims,
    chosen: Settings,
    closed: frozenset[str] = frozenset(),
) -> Admit:
    """Return the webhook's decision.

    Args:
        policies: annotations of namespaces, by name.
        own: claims and claim templates of our classes, by namespace.
        others: those of other GPU drivers, by namespace.
        chosen: the settings of the cluster.
        closed: namespaces where the webhook is never called; of shares there is a warning.
    """

    def decided(pod: Mapping[str, Any], namespace: str) -> Mutation:
        decision = collect(_decided, pod, namespace)
        if namespace not in closed or decision.reason not in rewrite.SHARES:
            return decision
        lack = f'namespace {namespace} lacks the label {contract.NAMESPACE_LABEL}: "true"'
        return replace(decision, warnings=(*decision.warnings, f"{lack}, so the webhook gives its pods no shares"))

    def _decided(findings: Findings, pod: Mapping[str, Any], namespace: str) -> Mutation:
        policy = NamespacePolicy.read(findings, policies.get(namespace, {}))
        mine, theirs = (each.get(namespace, frozenset()) for each in (own, others))
        return mutate_pod(pod, policy=policy, settings=chosen, own_claims=mine, other_claims=theirs)

    return decided


def settings() -> Settings:
    """Return the operator's settings, by the webhook's variables in the environment."""
    return Settings.from_environment(os.environ)


def warnings(results: Iterable[Result]) -> list[str]:
    """Return one line per warning, with the object it is about."""
    changes = [change for result in results for change in result.changes]
    found = [f"warning: {each.place.label}: {warning}" for each in changes for warning in each.warnings]
    return list(dict.fromkeys(found))


def unmatched(results: Iterable[Result], args: argparse.Namespace) -> Iterator[str]:
    """Yield one line for each ``--pod-at`` that leads to no pod template."""
    places = [change.place for result in results for change in result.changes]
    found = [place.path[len(place.owner_path) :] for place in places]
    for path, steps in zip(args.pod_at, paths(args), strict=True):
        if not any(workloads.matches(steps, each) for each in found):
            yield f"warning: --pod-at {path}: no object with a share request has a pod template at this path"


def made_later(results: Iterable[Result], at: Sequence[Steps] = ()) -> Iterator[str]:
    """Yield one line for each object that asks for shares and whose pods do not exist yet."""
    for result in results:
        if contract.GROUP in result.document.text:
            try:
                value = rewrite.load(result.document, result.number, any_kind=True)
            except RequestError:  # an object of another kind, which only its own controller has to be able to read
                continue
            yield from workloads.notes(value, at)


def _nothing_asks(results: Iterable[Result]) -> Iterator[str]:
    """Warn that there was nothing to rewrite: mostly a mistake of the caller."""
    if all(change.reason is Reason.NO_SHARE for result in results for change in result.changes):
        what = f"no Pod and no pod template of a known workload has {contract.MEMORY} or another share annotation"
        yield f"nothing to rewrite: {what}"


def _values(documents: Sequence[Document]) -> list[Any]:
    return [rewrite.load(document, number) for number, document in rewrite.numbered(documents)]


def _policies(values: Sequence[Any]) -> dict[str, Annotations]:
    """Return the annotations of every Namespace that are strings, by name; a later document wins."""
    found = {name: mapping(metadata, "annotations") for name, metadata in _namespaces(values)}
    return {name: {key: value for key, value in each.items() if isinstance(value, str)} for name, each in found.items()}


def no_strings(values: Sequence[Any]) -> Iterator[Problem]:
    """Find annotations of ours, of Namespaces, that YAML did not read as strings."""
    for name, metadata in _namespaces(values):
        for key, value in mapping(metadata, "annotations").items():
            if contract.is_ours(key) and not isinstance(value, str):
                field = f"Namespace {name}: metadata.annotations[{key}]"
                yield Problem(field, rewrite.no_string(key, value), Reason.INVALID_NAMESPACE)


def _closed(values: Sequence[Any]) -> frozenset[str]:
    """Return the Namespaces that did not opt in."""
    labels = {name: mapping(metadata, "labels") for name, metadata in _namespaces(values)}
    return frozenset(name for name, given in labels.items() if given.get(contract.NAMESPACE_LABEL) != "true")


def _namespaces(values: Sequence[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for item in (item for value in values for item in objects(value, NAMESPACE)):
        metadata = mapping(item, "metadata")
        yield str(metadata.get("name")), metadata


def _claims(values: Sequence[Any], namespace: str, of: Counts) -> dict[str, frozenset[str]]:
    """Return the claims and claim templates that count in the stream, by namespace, as ``mutate_pod`` wants them."""
    found: dict[str, frozenset[str]] = {}
    for prefix, kind in (("claim", CLAIM), ("template", CLAIM_TEMPLATE)):
        for item in (item for value in values for item in objects(value, kind)):
            metadata = mapping(item, "metadata")
            with suppress(AttributeError, TypeError):  # shaped as no claim is: the API server will refuse it
                if of(item, template=kind == CLAIM_TEMPLATE):
                    where = str(metadata.get("namespace") or namespace)
                    found[where] = found.get(where, frozenset()) | {f"{prefix}/{metadata.get('name')}"}
    return found


def as_it_came(texts: Sequence[tuple[str, str]], results: Sequence[Result]) -> str:
    """Return all documents in one stream, each in its own format."""
    return (manifest.BOM if texts[0][1].startswith(manifest.BOM) else "") + rewrite.stream(results)


def _yaml(results: Sequence[Result], _args: argparse.Namespace) -> str:
    return rewrite.stream([_without_json(result) for result in results])


def _without_json(result: Result) -> Result:
    """Turn a JSON document into a YAML one, so that a stream of both can be read as YAML."""
    document = result.document
    if not document.json:
        return result
    text = rewrite.SEPARATOR + dump(result.after if result.rewritten else document.value)
    return replace(result, document=replace(document, json=False, text=text), changes=())


def _json(results: Sequence[Result], _args: argparse.Namespace) -> str:
    values: list[Any] = []
    for result in results:
        values += result.templates
        values.append(result.after if result.rewritten else rewrite.load(result.document, result.number, any_kind=True))
    return "".join(json.dumps(value, indent=2, ensure_ascii=False) + "\n" for value in values if value is not None)


def _patch(results: Sequence[Result], _args: argparse.Namespace) -> str:
    patches = [
        {
            **({"file": result.document.file} if result.document.file else {}), "document": result.number,
            "kind": each.place.kind, "namespace": each.place.named, "name": each.place.name, "reason": each.reason,
            "patch": list(each.patch),
        }
        for result in results for each in result.changes
    ]  # fmt: skip
    return json.dumps(patches, indent=2, ensure_ascii=False) + "\n"


def _diff(results: Sequence[Result], args: argparse.Namespace) -> str:
    terminal = Terminal.of(colour=args.color)
    lines: list[str] = []
    for result in results:
        for template in result.templates:
            name = f"ResourceClaimTemplate {template['metadata']['name']}"
            lines += diff("", dump(dict(template)), ("/dev/null", name), terminal)
        if result.rewritten:
            label = ", ".join(change.place.label for change in result.changes if change.patch)
            lines.append(terminal.paint(f"{result.document.place(result.number)}: {label}", Colour.BOLD))
            lines += diff(dump(result.before), dump(result.after), ("before", "after"), terminal)
    return "".join(line + "\n" for line in lines)


_WRITERS: Final = {"yaml": _yaml, "json": _json, "patch": _patch, "diff": _diff}
