"""``gpu-share migrate``: what pods ask of other GPU systems, as annotations of gpu-share; the manifest stays itself."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import jsonpatch

from gpushare.errors import PolicyDenied
from gpushare.raw_objects import mapping, text
from gpushare.reasons import Reason
from gpushare_cli.inject import command as inject
from gpushare_cli.inject import manifest, rewrite
from gpushare_cli.inject.manifest import Document
from gpushare_cli.inject.rewrite import Result
from gpushare_cli.inject.workloads import Steps, concerns, follow
from gpushare_cli.migrate.convert import Conversion, Known, convert
from gpushare_cli.migrate.dialects import UNKNOWN, keys
from gpushare_cli.terminal import FINE, NOT_FINE, Terminal, diff
from webhook.mutation.mutate import Mutation
from webhook.mutation.settings import Settings

_KEYS: Final = sorted(keys() | UNKNOWN.keys())
_AROUND: Final = ((" ", ":"), ("{", ":"), ('"', '"'), ("'", "'"))
"""What stands around a key."""


def run(args: argparse.Namespace) -> int:
    """Read, convert, write. Returns 1 where ``--check`` finds something to convert.

    Raises:
        PolicyDenied: pods cannot be converted; nothing was written.
    """
    names = manifest.found(args.filename, recursive=args.recursive)
    texts = manifest.texts(names)
    known = Known(card=args.card, units=dict(args.unit), replicas=dict(args.replicas), mps=args.mps)
    results = migrated(manifest.documents(texts), known, inject.paths(args))
    for line in (*report(results), *_left(results)):
        print(line, file=sys.stderr)
    if args.check:
        return NOT_FINE if any(result.rewritten for result in results) else FINE
    sys.stdout.write(_diff(names, texts, results, args.color) if args.diff else inject.as_it_came(texts, results))
    return FINE


def migrated(documents: Sequence[Document], known: Known, at: Sequence[Steps] = ()) -> list[Result]:
    """Convert the pods of documents, or none; the report stands in the warnings. Raises ``PolicyDenied``."""
    decide = inject.admit({}, {}, {}, Settings())

    def admit(pod: Mapping[str, Any], namespace: str) -> Mutation:
        if (found := convert(pod, known)) is None:
            return Mutation(reason=Reason.NO_SHARE, pod=pod)
        after = jsonpatch.apply_patch(pod, found.patch)
        lines = (*_done(found), *_answer(decide, after, namespace))
        return Mutation(reason=Reason.NO_SHARE, pod=after, patch=[*found.patch], warnings=lines)

    return rewrite.rewrite(documents, admit, at=at, marks=_KEYS)


def report(results: Sequence[Result]) -> Iterator[str]:
    """Yield what was done with each pod that asked another system for a share."""
    for result in results:
        for change in result.changes:
            if change.patch:
                yield f"{result.document.place(result.number)}: {change.place.label}"
                yield from (f"  {line}" for line in change.warnings)


def _done(found: Conversion) -> Iterator[str]:
    yield f"from           {found.dialect}"
    yield from (f"read           {each}" for each in found.read)
    yield from (f"written        {key}: {value}" for key, value in found.written.items())
    yield from (f"removed        {each}" for each in found.removed)
    yield from (f"has no effect  {each}" for each in found.stays)
    yield from (f"no equivalent  {each}" for each in found.lost)


def _answer(decide: rewrite.Admit, pod: Mapping[str, Any], namespace: str) -> Iterator[str]:
    """Yield what the webhook will say of the new pod, as it is by default."""
    try:
        yield from (f"webhook warns  {each}" for each in decide(pod, namespace).warnings)
    except PolicyDenied as error:
        yield from (f"still refused  {each}" for each in error.problems)


def _left(results: Sequence[Result]) -> Iterator[str]:
    """Yield what a person has to look at: comments, objects whose pods were not found, schedulers of objects."""
    for result in results:
        document, what = result.document, list[str]()
        if result.rewritten and document.node and not result.spliced:
            what.append("written without its comments")
        if not result.changes and not concerns(document.top("apiVersion"), document.top("kind")):
            named = [key for key in _KEYS if any(start + key + end in document.text for start, end in _AROUND)]
            what += [f"has {key}, but no known pod template; name it by --pod-at PATH" for key in named[:1]]
        for place in [change.place for change in result.changes if change.patch and change.place.field]:
            for _, owner in follow(result.after, place.owner_path):
                if scheduler := text(mapping(owner, "spec"), "schedulerName"):
                    what.append(f"gives its pods schedulerName {scheduler}; remove it")
        yield from (f"{document.place(result.number)}: {document.top('kind')}: {each}" for each in what)


def _diff(names: Sequence[str], texts: Sequence[tuple[str, str]], results: Sequence[Result], colour: str) -> str:
    """Return a unified diff of the files, as ``git apply`` and ``patch -p1`` read it."""
    terminal, lines = Terminal.of(colour=colour), list[str]()
    for name, (file, before) in zip(names, texts, strict=True):
        mine = [result for result in results if result.document.file == file]
        labels = [f"{side}/{name.removeprefix('/')}" for side in "ab"]
        lines += diff(before.removeprefix(manifest.BOM), rewrite.stream(mine), (labels[0], labels[1]), terminal)
    return "".join(line + "\n" for line in lines)
