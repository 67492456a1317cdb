"""The core of ``gpu-share inject``: documents in, documents rewritten by the webhook's own function out. No I/O."""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import jsonpatch

from gpushare import contract, namespace_policy
from gpushare.annotation_table import OF_NAMESPACES, of_pod
from gpushare.errors import PolicyDenied, Problem, RequestError
from gpushare.raw_objects import mapping
from gpushare.reasons import Reason
from gpushare_cli.inject.kube_yaml import Misplaced, dump
from gpushare_cli.inject.manifest import Document
from gpushare_cli.inject.workloads import DEFAULT_NAMESPACE, PodPlace, Steps, concerns, pods
from webhook.mutation.annotation_keys import field_of
from webhook.mutation.mutate import Mutation
from webhook.mutation.resourceclaims import template_for

Admit = Callable[[Mapping[str, Any], str], Mutation]
"""Decide on a pod in the namespace of that name; raises ``PolicyDenied``."""

SEPARATOR: Final = "---\n"
SHARES: Final = frozenset({Reason.APPLIED, Reason.UNCHANGED})
"""Decisions about pods that hold a share of ours."""
_OF_VALUES: Final = frozenset({Reason.INVALID_QUANTITY, Reason.INVALID_VALUE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened to one pod: where it stands, the decision, and the patch with paths from its document."""

    place: PodPlace
    pod: Mapping[str, Any]
    reason: Reason
    patch: tuple[Mapping[str, Any], ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One document and what became of it. ``before`` and ``after`` are ``None`` where it is no business of ours."""

    number: int
    document: Document
    before: Any = None
    after: Any = None
    changes: tuple[Change, ...] = ()
    templates: tuple[Mapping[str, Any], ...] = ()

    @property
    def rewritten(self) -> bool:
        """Tell whether any pod of the document was changed."""
        return bool(self.operations)

    @property
    def operations(self) -> list[dict[str, Any]]:
        """Return the patch of the whole document."""
        return _operations(self.changes)

    @property
    def spliced(self) -> bool:
        """Tell whether the changes can be made in the text of a YAML document; else its comments are lost."""
        return self.document.spliced(self.operations, self.after) is not None

    @property
    def text(self) -> str:
        """Return the document as it goes out: its own bytes when nothing changed."""
        return self.document.render(self.operations, self.after) if self.rewritten else self.document.text


def rewrite(
    documents: Sequence[Document],
    admit: Admit,
    namespace: str | None = None,
    known: Iterable[Problem] = (),
    at: Sequence[Steps] = (),
    marks: Collection[str] = (contract.GROUP,),
) -> list[Result]:
    """Rewrite every document, or none.

    Args:
        documents: a stream, in order.
        admit: what decides on one pod.
        namespace: the namespace of pods that name none; ``default`` when absent.
        known: problems of the stream that are reported before those of its pods.
        at: where objects of unknown kinds have pods.
        marks: texts of which such an object has one, if its pods may have to be changed.

    Raises:
        PolicyDenied: pods are refused, or documents cannot be read; of each problem, document and field are named.
    """
    results: list[Result] = []
    problems, complete = list(known), True
    for number, document in numbered(documents):
        try:
            here = at if any(mark in document.text for mark in marks) else ()
            results.append(_rewrite(document, number, admit, namespace or DEFAULT_NAMESPACE, here))
        except PolicyDenied as error:
            problems += error.problems
            complete &= error.complete
        except RequestError as error:
            where, _, message = error.message.partition(": ")
            problems.append(Problem(where, message, error.reason))
    if problems:
        raise PolicyDenied.of(list(dict.fromkeys(problems)), complete=complete, room=sys.maxsize)
    return results


def numbered(documents: Sequence[Document]) -> Iterator[tuple[int, Document]]:
    """Count the documents of each file as a person does: from 1, and what is empty between two separators is none."""
    number, file = 1, None
    for document in documents:
        number, file = (number if document.file == file else 1), document.file
        yield number, document
        number += document.node is not None or bool(document.json)


def readable(documents: Sequence[Document]) -> list[Any]:
    """Return the values of the documents that can be read; ``rewrite`` reports the others."""
    values: list[Any] = []
    for number, document in numbered(documents):
        with suppress(RequestError):
            values.append(load(document, number))
    return values


def load(document: Document, number: int, *, any_kind: bool = False) -> Any:
    """Return a document's value if it may hold pods or changes what is decided about them, else ``None``.

    Raises:
        RequestError: it cannot be read, with its line.
    """
    if not any_kind and not concerns(document.top("apiVersion"), document.top("kind")):
        return None
    try:
        return document.load()
    except Misplaced as error:
        start = document.line - (document.node.start_mark.line if document.node is not None else 0)
        raise RequestError(f"{document.place(number)}, line {start + error.line}: {error.message}") from None


def _rewrite(document: Document, number: int, admit: Admit, namespace: str, at: Sequence[Steps]) -> Result:
    before = load(document, number, any_kind=bool(at))
    changes, problems, complete = list[Change](), list[Problem](), True
    for place in pods(before, at):
        try:
            changes.append(change_of(place, admit, place.named or namespace))
        except PolicyDenied as error:
            problems += _located(error, document, number, place, place.named or namespace)
            complete &= error.complete
    if problems:
        raise PolicyDenied.of(problems, complete=complete)
    # All at once: each application copies the whole document.
    operations = _operations(changes)
    after = jsonpatch.apply_patch(before, operations) if operations else before
    shares = {change.place.path for change in changes if change.reason in SHARES}
    templates = tuple(template for place in pods(after, at) if place.path in shares for template in _template(place))
    return Result(
        number=number, document=document, before=before, after=after, changes=tuple(changes), templates=templates
    )


def _operations(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [dict(op) for change in changes for op in change.patch]


def change_of(place: PodPlace, admit: Admit, namespace: str) -> Change:
    """Decide on one pod. Raises ``PolicyDenied`` with fields inside the pod."""
    no_strings = {problem.field: problem for problem in _no_strings(place.pod)}
    try:
        decision = admit(place.pod, namespace)
    except PolicyDenied as error:
        # The value itself is not a string: what to write instead is already known, and better.
        others = [each for each in error.problems if each.field not in no_strings or each.reason not in _OF_VALUES]
        raise PolicyDenied.of([*no_strings.values(), *others], complete=error.complete) from None
    if no_strings:
        raise PolicyDenied.of([*no_strings.values()])
    pointer, paths = place.pointer, {"path", "from"}
    patch = tuple({key: pointer + v if key in paths else v for key, v in op.items()} for op in decision.patch)
    warnings = (*decision.warnings, *_misplaced(place))
    return Change(place=place, pod=decision.pod, reason=decision.reason, patch=patch, warnings=warnings)


def _located(
    error: PolicyDenied, document: Document, number: int, place: PodPlace, namespace: str
) -> Iterator[Problem]:
    """Yield the problems of a pod with their place in the stream; those of its namespace have none."""
    where = f"{document.place(number)} ({place.label}, line {document.line})"
    for problem in error.problems:
        field = f"{where}: {place.field_of(problem)}"
        if problem.field.startswith(namespace_policy.FIELD):
            field = f"Namespace {namespace}: {problem.field.removeprefix(namespace_policy.FIELD)}"
        yield replace(problem, field=field)


def _no_strings(pod: Mapping[str, Any]) -> Iterator[Problem]:
    """Find annotations of ours that YAML did not read as strings: the API server would refuse the whole pod."""
    for key, value in _annotations(pod).items():
        if contract.is_ours(key) and not isinstance(value, str):
            yield Problem(field_of(key), no_string(key, value), Reason.INVALID_VALUE)


def no_string(key: str, value: object) -> str:
    """Say what to write instead of an annotation, of a pod or a namespace, that YAML did not read as a string."""
    row = of_pod(key) or OF_NAMESPACES.get(key)
    # An unknown key is refused next, by a message that lists the known ones.
    advice = "write one, in quotes" if row is None else f"write for example {_examples(row.type.examples)}"
    return f"{json.dumps(value):.40} is not a string, and annotations are strings; {advice}"


def _examples(words: tuple[str, ...]) -> str:
    """Write examples as YAML needs them: a number or a boolean in quotes."""
    if any(word.isdigit() or word in {"true", "false"} for word in words):
        return " or ".join(f'"{word}"' for word in words) + ", in quotes"
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _annotations(pod: Mapping[str, Any], kind: str = "annotations") -> Mapping[str, Any]:
    return mapping(mapping(pod, "metadata"), kind)


def _misplaced(place: PodPlace) -> Iterator[str]:
    """Warn about labels that should be annotations, and annotations on the workload that belong to its pods."""
    for key in _annotations(place.pod, "labels"):
        if contract.is_ours(key) and key != contract.MANAGED_LABEL:
            field = f"{place.field}.metadata.labels".removeprefix(".")
            asks = of_pod(key) is not None
            fix = "make it an annotation" if asks else "remove it"
            yield f"{field}[{key}] has no effect as a label of a pod; {fix}"
    if place.path == place.owner_path:
        return
    where = f"{place.field}.metadata.annotations"
    for key in place.annotations:
        if contract.is_ours(key) and key not in _annotations(place.pod):
            yield f"{key} has no effect on the {place.kind} itself; move it to {where}"


def _template(place: PodPlace) -> Iterator[Mapping[str, Any]]:
    """Yield the claim template that a rewritten pod names, with the namespace written there."""
    template = template_for(place.pod)
    if template is not None:
        named = {"namespace": place.named} if place.named else {}
        yield template | {"metadata": {"name": template["metadata"]["name"]} | named | template["metadata"]}


def with_templates(results: Sequence[Result]) -> Iterator[Result]:
    """Keep each claim template once per namespace and name, and none that the stream already holds."""
    kind = "ResourceClaimTemplate"
    seen = {_identity(result.document.load()) for result in results if result.document.top("kind") == kind}
    for result in results:
        fresh = {_identity(each): each for each in result.templates if _identity(each) not in seen}
        seen |= fresh.keys()
        yield replace(result, templates=tuple(fresh.values()))


def _identity(template: Any) -> tuple[str, str]:
    metadata = mapping(template, "metadata")
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def stream(results: Sequence[Result]) -> str:
    """Join the documents again, each claim template before the document that names it, and files apart."""
    pieces: list[str] = []
    after_json, file = False, None
    for result in results:
        like = result.document
        apart, file = bool(result.templates) or file not in (None, like.file), like.file
        for text in (*(_written(each, like=like) for each in result.templates), result.text):
            pieces.append(_apart(pieces, text, json_pair=after_json and like.json) if apart else text)
            after_json = like.json
    return "".join(pieces)


def _written(template: Mapping[str, Any], *, like: Document) -> str:
    if like.json:
        return json.dumps(template, indent=2, ensure_ascii=False) + "\n"
    return SEPARATOR + dump(dict(template))


def _apart(before: Sequence[str], text: str, *, json_pair: bool) -> str:
    """Return a piece so that it starts a document of its own; one JSON document may follow another as it is."""
    if not "".join(before).strip():
        return text
    line_end = "" if before[-1].endswith("\n") else "\n"
    starts = json_pair or text.startswith(SEPARATOR.strip())
    return line_end + ("" if starts else SEPARATOR) + text
