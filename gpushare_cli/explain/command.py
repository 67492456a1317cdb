"""``gpu-share explain``: what was or would be done to a pod, and why."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from enforcer.attribution.unaccounted import TOLERANCE_MIB
from enforcer.quota.from_claims import parse_mib
from gpushare import contract
from gpushare.errors import ClusterError, ConfigError, PolicyDenied
from gpushare.kube_client import KubeClient, namespace_of
from gpushare.quantity import format_mib
from gpushare.raw_objects import Object
from gpushare.reasons import Reason
from gpushare_cli import node_status
from gpushare_cli.explain import pod, workload_state
from gpushare_cli.explain.cluster_state import PodExplanation, WorkloadExplanation, explain
from gpushare_cli.explain.pod import POD, target
from gpushare_cli.explain.pod_record import NO_USAGE
from gpushare_cli.explain.workload_state import explain_workload
from gpushare_cli.inject import command, manifest, rewrite
from gpushare_cli.inject.manifest import Document, split
from gpushare_cli.inject.rewrite import Admit
from gpushare_cli.inject.workloads import DEFAULT_NAMESPACE, PodPlace, pods
from gpushare_cli.node_status import GpuUse, Use, stale
from gpushare_cli.options import pod_name
from gpushare_cli.terminal import NOT_AVAILABLE, show, table, warn
from gpushare_cli.words import some
from webhook.mutation.podview import read_pod
from webhook.mutation.resourceclaims import template_for

SENTENCES: Final = {
    Reason.APPLIED: "will be rewritten into a share of a GPU when it is created",
    Reason.UNCHANGED: "is rewritten already; nothing would change",
    Reason.NO_SHARE: "has no annotation that requests a share; the webhook would not change it",
    Reason.OWN_CLAIM: "has its own ResourceClaim; the webhook would not change it",
    Reason.MIRROR_POD: "mirrors a static pod; the webhook would not change it",
}
FINE: Final = frozenset({node_status.OK, "near", "starting"})
NAMED: Final = 20
"""So many processes of a container are named."""
SHARES: Final = ("CONTAINER", "MEMORY", "COMPUTE", "REQUEST")


def run(args: argparse.Namespace) -> int:
    """Explain. Returns 1 when a pod would be refused, is hindered, was ended, is over its quota, or nobody knows."""
    if bool(args.pod) == bool(args.filename):
        raise ConfigError("name a pod or a workload, or a manifest with -f FILE; one of the two")
    if args.output == "json" and (args.filename or args.state):
        raise ConfigError("-o json is for pods and workloads of the cluster; leave out -f and --state")
    if args.filename:
        return _manifest(args)
    return _on_node(args) if args.state else _in_cluster(args)


def _in_cluster(args: argparse.Namespace) -> int:
    kind, namespace, name = target(args.pod, args.namespace)
    namespace = namespace or namespace_of(args.kubeconfig, args.context)
    try:
        api = KubeClient.connect(args.kubeconfig, args.context)
    except ClusterError as error:
        raise ClusterError(f"{error.message}; on a GPU node, --state DIR reads the enforcer's status instead") from None
    if kind is POD:
        found: PodExplanation | WorkloadExplanation = of_pod(api, namespace, name, args)
    else:
        record = workload_state.recorded(api, kind, namespace, name)
        pods = [replace(each, schedulers=command.settings().scheduler_names) for each in record.pods]
        known = _policy(record.namespace, record.claims, args)
        found = explain_workload(replace(record, pods=pods), known)
    show(args.output, found.json(), found.lines)
    return 0 if found.fine else 1


def of_pod(api: KubeClient, namespace: str, name: str, args: argparse.Namespace) -> PodExplanation:
    """Explain a pod of the cluster; ``args`` has the options of ``add_policy_options``.

    Raises:
        GpuShareError: there is no such pod, or the user may not read it.
        ClusterError: the API server cannot be asked.
    """
    found = pod.recorded(api, namespace, name)
    usage = pod.usage_of(api, found.pod) if found.has_share else NO_USAGE
    schedulers = command.settings().scheduler_names
    admit = _policy(found.namespace, list((found.claims or {}).values()), args)
    return explain(replace(found, usage=usage, schedulers=schedulers), admit)


def _policy(namespace: Object | None, claims: Sequence[Object], args: argparse.Namespace) -> Admit:
    """Return the webhook's decision in a namespace of the cluster, by the settings that the options name."""
    return command.admit_for([*([] if namespace is None else [namespace]), *claims], args)


def _manifest(args: argparse.Namespace) -> int:
    documents = split(manifest.source(args.filename).removeprefix(manifest.BOM))
    values = command.known_values(documents, args)
    if wrong := list(command.no_strings(values)):
        raise PolicyDenied.of(wrong)
    admit = command.admit_for(values, args)
    answers = [
        answer
        for number, document in rewrite.numbered(documents)
        for answer in _document(document, number, admit, args)
    ]
    print("\n".join(text for _, text in answers) if answers else "no pod in this manifest")
    return 0 if all(good for good, _ in answers) else 1


def _document(document: Document, number: int, admit: Admit, args: argparse.Namespace) -> Iterator[tuple[bool, str]]:
    """Yield, for each pod, whether it would be admitted, and the text about it."""
    for place in pods(rewrite.load(document, number)):
        try:
            yield True, "\n".join(_admitted(place, admit, place.named or args.namespace or DEFAULT_NAMESPACE))
        except PolicyDenied as error:
            field = f"{place.field}." if place.field else ""
            problems = "".join(f"\n  {field}{problem}" for problem in error.problems)
            yield False, f"{place.label}: {error.reason}: would be refused{problems}"


def _admitted(place: PodPlace, admit: Admit, namespace: str) -> Iterator[str]:
    change = rewrite.change_of(place, admit, namespace)
    yield f"{place.label}: {change.reason}: {SENTENCES.get(change.reason, 'would be admitted')}"
    if change.reason in rewrite.SHARES:
        yield from (f"  {line}" for line in table(SHARES, shares(change.pod)))
    yield from (f"  warning: {warning}" for warning in change.warnings)


def shares(pod: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return what each container of a rewritten pod gets: name, memory, compute, request of the claim.

    Beside a request that reserves another amount, for an init container that uses it too, stands that amount.
    """
    reserved = _reserved(pod)
    found: list[tuple[object, ...]] = []
    for container in read_pod(pod).containers:
        if container.name != contract.SIDECAR:
            memory, compute = _amounts({one["name"]: one.get("value") for one in container.reserved})
            request = _request(container.raw)
            amount = reserved.get(request or "", memory)
            beside = f"{request} ({amount} reserved)" if amount != memory else request
            found.append((container.name, memory, compute, beside))
    return found


def _reserved(pod: Mapping[str, Any]) -> dict[str, str]:
    """What each request of a rewritten pod's claim reserves."""
    template = template_for(pod)
    requests = [] if template is None else template["spec"]["spec"]["devices"]["requests"]
    amounts = {each["name"]: each.get("exactly", {}).get("capacity", {}).get("requests", {}) for each in requests}
    mib = {name: parse_mib(amount.get(contract.CAPACITY_MEMORY)) for name, amount in amounts.items()}
    return {name: format_mib(amount) for name, amount in mib.items() if amount}


def _amounts(values: Mapping[str, Any]) -> tuple[str, str]:
    memory, compute = values.get(contract.MEMORY_MIB), values.get(contract.MPS_THREAD_PERCENTAGE)
    if not memory:
        return "no GPU", NOT_AVAILABLE
    return format_mib(int(memory)), f"{compute}%" if compute else "no cap"


def _request(container: Mapping[str, Any]) -> str | None:
    claims = (container.get("resources") or {}).get("claims") or []
    return next((claim.get("request") for claim in claims if claim.get("name") == contract.CLAIM), None)


def _on_node(args: argparse.Namespace) -> int:
    status = node_status.load(args.state)
    if old := stale(status):
        warn(old)
    namespace, name = pod_name(args.pod, args.namespace)
    uses = [(gpu, use) for gpu in status.gpus for use in gpu.uses]
    found = [(gpu, use) for gpu, use in uses if use.pod == name and namespace in {"", use.namespace}]
    if not found:
        known = ", ".join(dict.fromkeys(f"{use.namespace}/{use.pod}" for _, use in uses)) or "no pod"
        print(f"{args.pod}: the enforcer of this node does not know this pod; it knows: {known}")
        # What the enforcer complains of that names the pod: one that was given nothing is in no other list.
        print("".join(f"  {each}\n" for each in status.problems if f"{namespace}/{name} " in each), end="")
        return 1
    for gpu, use in found:
        print("\n".join(_use(gpu, use)))
    return 1 if old or any(use.shown not in FINE for _, use in found) else 0


def _use(gpu: GpuUse, use: Use) -> Iterator[str]:
    used, quota = (NOT_AVAILABLE if mib is None else format_mib(mib) for mib in (use.used_mib, use.quota_mib))
    how = f"exceeded its quota {use.killed}" if use.shown == node_status.KILLED else use.sentence or use.state
    yield f"{use.namespace}/{use.pod} container {use.container}: {use.shown}: {how}"
    if use.reserved:
        quota += f" ({format_mib(use.reserved)} reserved)"
    yield f"  uses {used} of its quota of {quota} on GPU {gpu.index} ({gpu.model}, {gpu.uuid})"
    if use.limit:
        yield f"  limit {use.limit}"
    if use.processes:
        each = [f"pid {pid} {NOT_AVAILABLE if mib is None else format_mib(mib)}" for pid, mib in use.processes]
        yield f"  processes: {len(each)}, the largest first: {some(each, NAMED)}"
    yield from (f"  {each}" for each in use.failed[-1:])
    if (unaccounted := gpu.unaccounted_mib or 0) > TOLERANCE_MIB:
        yield f"  GPU {gpu.index}: {format_mib(unaccounted)} of its memory are in use and counted for nobody"
