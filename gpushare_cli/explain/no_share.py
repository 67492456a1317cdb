"""Why a pod or a workload that asks for a share gets none: its namespace, the webhook, or its own annotations."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from gpushare import contract, namespace_policy
from gpushare.errors import PolicyDenied, Problem
from gpushare.pod_claims import claim_names
from gpushare.raw_objects import Object, mapping
from gpushare_cli.explain.findings import Finding, FindingType
from gpushare_cli.explain.pod_record import PodRecord, shortened
from gpushare_cli.inject import rewrite
from gpushare_cli.inject.rewrite import Admit, Change
from gpushare_cli.inject.workloads import PodPlace
from gpushare_cli.words import some

KUBE_SYSTEM: Final = "kube-system"
TOO_LATE: Final = (
    "namespace {} has opted in, but the webhook did not rewrite the pod when it was created: the namespace opted in "
    "later, the annotation was added later, or the webhook was off"
)
BY_SETTINGS: Final = "gpu-share explain computed this with its own settings; the webhook's settings may differ"


def asks(annotations: Object) -> list[str]:
    """Return the annotations that ask for a share, rightly or wrongly, as the webhook counts them."""
    return [f"{shortened(key)}: {shortened(value)}" for key, value in annotations.items() if contract.is_ours(key)]


def is_excluded(name: str, release: str) -> bool:
    """Tell whether the webhook never sees a namespace, whatever its labels; ``release`` is that of gpu-share."""
    return name in {KUBE_SYSTEM, release}


def closed(namespace: Object | None, name: str, release: str) -> Iterator[tuple[str, str]]:
    """Yield why pods of a namespace get no share, and what to do; nothing where they do, or that is not known."""
    if is_excluded(name, release):
        yield f"namespace {name} is excluded: nothing there is shared", "create the pod in another namespace"
        return
    if namespace is None:
        return
    metadata = mapping(namespace, "metadata")
    if metadata.get("deletionTimestamp"):
        yield f"namespace {name} is being deleted: no pod is created there any more", "use another namespace"
    label = mapping(metadata, "labels").get(contract.NAMESPACE_LABEL)
    if label != "true":
        value = "" if label is None else f" ({contract.NAMESPACE_LABEL} is {shortened(label)!a}, not 'true')"
        overwrite = "" if label is None else " --overwrite"
        command = f"kubectl label namespace {name} {contract.NAMESPACE_LABEL}=true{overwrite}"
        yield f"namespace {name} has not opted in{value}", f"an operator runs {command}; then create the pod again"


def why(record: PodRecord, place: PodPlace | None, admit: Admit | None) -> Iterator[Finding]:
    """Yield why a pod that asks for a share has none.

    Args:
        record: the pod.
        place: the same pod as ``gpushare_cli.inject`` finds it.
        admit: the webhook's decision on pods of its namespace; ``None``: it is not computed.
    """
    reasons = list(closed(record.namespace, record.namespace_name, record.release))
    if missing := record.missing_claims:
        reasons += [(f"the pod's ResourceClaims do not exist: {some(missing)}", "create them, or create the pod again")]
    if contract.MIRROR in record.annotations:
        message = "the pod mirrors a static pod, which the webhook does not rewrite"
        reasons = [(message, "create it through the API server")]
    elif not reasons and record.namespace is None:
        yield not_readable(record.namespace_name)
    elif not reasons:
        reasons = [(TOO_LATE.format(record.namespace_name), "create the pod again")]
    yield from (Finding(type=FindingType.NO_SHARE, message=message, hint=hint) for message, hint in reasons)
    if place is not None and admit is not None and contract.MIRROR not in record.annotations:
        # Without what the scheduler wrote: the webhook refuses pods that choose a node themselves.
        spec = {key: value for key, value in mapping(place.pod, "spec").items() if key != "nodeName"}
        decision = decide(replace(place, pod={**place.pod, "spec": spec}), admit, record.namespace_name)
        yield from refusals(decision, place, "if created again, the pod would be refused: ")


def decide(place: PodPlace, admit: Admit, namespace: str) -> Change | PolicyDenied:
    """Return what the webhook would do with a pod or a pod template."""
    try:
        return rewrite.change_of(place, admit, namespace)
    except PolicyDenied as error:
        return error


def refusals(
    decision: Change | PolicyDenied,
    place: PodPlace,
    saying: str = "",
    kind: FindingType = FindingType.REFUSED,
    *,
    computed: bool = True,
) -> Iterator[Finding]:
    """Yield for what the webhook would refuse a pod; ``computed``: nothing but the computation says so."""
    problems = decision.problems if isinstance(decision, PolicyDenied) else ()
    for number, problem in enumerate(problems, 1):
        hint = BY_SETTINGS if computed and number == len(problems) else ""
        yield Finding(type=kind, reason=problem.reason, message=f"{saying}{_located(problem, place)}", hint=hint)


def warnings(decision: Change | PolicyDenied, kind: FindingType) -> Iterator[Finding]:
    """Yield what the webhook, or ``gpu-share inject``, would warn of."""
    for message in () if isinstance(decision, PolicyDenied) else decision.warnings:
        yield Finding(type=kind, message=message)


def not_readable(namespace: str) -> Finding:
    """Say that a namespace's opt-in and maximums are not known."""
    message = f"you may not read namespace {namespace}, so whether it has opted in is unknown; ask for the ClusterRole"
    return Finding(type=FindingType.UNKNOWN, message=f"{message} view there")


def is_unknown(record: PodRecord) -> bool:
    """Tell whether claims that the reader may not read may give a pod its share."""
    return record.claims is None and bool(claim_names(record.pod))


def nothing_asked(record: PodRecord) -> str:
    """Say of a pod that asks for nothing what was looked for."""
    if missing := record.missing_claims:
        return f"no annotation requests one, and the pod's ResourceClaims do not exist (any more): {some(missing)}"
    if is_unknown(record):
        return "no annotation requests one; you may not read the pod's ResourceClaims, which may request one"
    return "no annotation and no ResourceClaim of the pod requests one"


def _located(problem: Problem, place: PodPlace) -> Problem:
    if problem.field.startswith(namespace_policy.FIELD):
        return problem
    return replace(problem, field=".".join(filter(None, (place.field, problem.field))))
