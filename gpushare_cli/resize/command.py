"""``gpu-share resize``: another quota for a container that runs, within what its pod reserved.

The request is written on the pod, as an annotation that policies watch. The enforcer of the pod's node answers in the
claim's status. What can be known here is refused before anything is written.
"""

import argparse
import json
import secrets
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from enforcer.dra.prepared_claim import ContainerLimit, PreparedClaim
from enforcer.dra.resize import ResizeBounds, check_known, gpus_of, limit_of, resized
from gpushare import contract
from gpushare.errors import ClusterError, ConfigError, GpuShareError, QuantityError, ResizeRefused
from gpushare.kube_client import CORE_V1, MERGE_PATCH, RESOURCE_V1, KubeClient, Object, find, namespace_of, path
from gpushare.pod_claims import claim_names
from gpushare.quantity import format_mib, parse_memory
from gpushare.raw_objects import mapping, objects
from gpushare.reasons import Reason
from gpushare.resize_annotation import ResizeRequest, format_request
from gpushare_cli.explain.pod import POD, claims_of, named, target
from gpushare_cli.prepared import prepared_of
from gpushare_cli.resize.arguments import ROLE
from gpushare_cli.terminal import FINE, NOT_FINE

LOOK_SECONDS: Final = 0.3
MARK_BYTES: Final = 6
ASK: Final = (
    f"ask a cluster operator for a ClusterRoleBinding to the ClusterRole {ROLE}, or to one for only this namespace"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A container that runs: its pod, the claim by which it shares a GPU, and that claim as its node prepared it."""

    namespace: str
    pod: Object
    container: str
    claim: PreparedClaim

    @property
    def name(self) -> str:
        """How it is called in what is printed."""
        return f"{self.namespace}/{self.pod['metadata']['name']} {self.container}"

    @property
    def where(self) -> str:
        """The pod's path on the API server."""
        return path(CORE_V1, "pods", self.pod["metadata"]["name"], self.namespace)

    @property
    def limit(self) -> ContainerLimit:
        """What it has now."""
        return limit_of(self.claim, self.container)

    @property
    def reserved_mib(self) -> int:
        """What its pod reserved of that GPU, for all its containers there; of several, of the least reserved."""
        return min(map(self.claim.mib_on, gpus_of(self.claim, self.limit)))


def run(args: argparse.Namespace) -> int:
    """Change it. Returns 1 when it is refused, or nobody answers."""
    request = ResizeRequest(_memory(args.memory), args.force)
    namespace, name = _pod(args.pod, args.namespace)
    api = KubeClient.connect(args.kubeconfig, args.context)
    namespace = namespace or namespace_of(args.kubeconfig, args.context)
    target = found(api, namespace, name, args.container)
    try:
        answer = _asked(api, target, request, args)
    except ResizeRefused as error:
        answer = _answer(target, done=False, reason=str(error.reason), note=error.message)
    _print(target, answer, request, args)
    return FINE if answer["done"] else NOT_FINE


def found(api: KubeClient, namespace: str, name: str, container: str) -> Target:
    """Find a container that has a share, as its node prepared it.

    Raises:
        GpuShareError: there is no such pod, or it may not be read, or it does not run.
        ResizeRefused: it has no such container, or that has no share.
    """
    pod = named(api, POD, name, namespace)
    _check_running(pod, f"{namespace}/{name}")
    try:
        claims = claims_of(api, namespace, claim_names(pod))
    except ClusterError as error:
        if error.status == HTTPStatus.FORBIDDEN:
            raise GpuShareError(f"you may not read ResourceClaims in namespace {namespace}; {ASK}") from None
        raise
    prepared = [kept for claim in claims.values() if (kept := prepared_of(claim, pod)) is not None]
    for each in prepared:
        if any(limit.container == container for limit in each.limits):
            return Target(namespace=namespace, pod=pod, container=container, claim=each)
    for each in prepared:
        check_known(each, pod, container)
    message = f"pod {namespace}/{name} has no prepared share; run gpu-share explain for the cause"
    raise ResizeRefused(f"{message} {namespace}/{name}", Reason.CLAIM_UNKNOWN)


def _pod(words: str, namespace: str | None) -> tuple[str, str]:
    kind, namespace, name = target(words, namespace)
    if kind is not POD:
        raise ConfigError(
            f"resize changes one running pod, and {words} is a {kind.name}: gpu-share explain {words} names its pods; "
            f"pods that it makes later get what {contract.MEMORY} in its pod template says"
        )
    return namespace, name


def _memory(text: str) -> int:
    try:
        return parse_memory(text)
    except QuantityError as error:
        raise ConfigError(error.message) from None


def _check_running(pod: Object, name: str) -> None:
    phase = (pod.get("status") or {}).get("phase")
    if "deletionTimestamp" in pod["metadata"]:
        raise GpuShareError(f"pod {name} is being deleted")
    if phase != "Running":
        hint = "change the pod's annotations and create the pod again" if phase != "Pending" else "wait until it runs"
        raise GpuShareError(f"pod {name} is not running (phase {phase}); {hint}")


def _asked(api: KubeClient, target: Target, request: ResizeRequest, args: argparse.Namespace) -> Object:
    """Write the request and wait for what comes of it; of a dry run, say what would.

    Raises:
        ResizeRefused: it is known here already that it cannot be.
        GpuShareError: the user may not, or nobody answers.
    """
    # The node knows more: the namespace's ceiling, and what the container holds. This saves hopeless requests.
    resized(target.claim, target.pod, target.container, request.memory_mib, ResizeBounds())
    asked = format_request(request, secrets.token_hex(MARK_BYTES))
    _write(api, target, asked, dry=args.dry_run)
    if args.dry_run:
        return _answer(target, done=True, reason=str(Reason.RESIZED), note="")
    return _awaited(api, target, asked, args.timeout)


def _write(api: KubeClient, target: Target, asked: str, *, dry: bool) -> None:
    body = {"metadata": {"uid": target.claim.pod_uid, "annotations": {contract.RESIZE_OF + target.container: asked}}}
    try:
        api.patch(target.where, body, MERGE_PATCH, **({"dryRun": "All"} if dry else {}))
    except ClusterError as error:
        if error.status == HTTPStatus.FORBIDDEN and (ROLE in error.message or "cannot patch" in error.message):
            raise GpuShareError(f"you may not change quotas in namespace {target.namespace}; {ASK}") from None
        raise


def _awaited(api: KubeClient, target: Target, asked: str, seconds: float) -> Object:
    where = path(RESOURCE_V1, "resourceclaims", target.claim.name, target.namespace)
    ends = time.monotonic() + seconds
    while True:
        if (claim := find(api, where)) is None:
            raise GpuShareError(f"{target.name}: the pod was deleted, and its share with it")
        data = [mapping(each, "data") for each in objects(mapping(claim, "status"), "devices")]
        answers = [one for each in data for one in objects(each, "resizes") if one.get("asked") == asked]
        if answers:
            return dict(answers[0])
        if time.monotonic() >= ends:
            node = (target.pod.get("spec") or {}).get("nodeName")
            message = f"the enforcer of node {node} has not answered within {seconds:g} s"
            raise GpuShareError(f"{message}; the resize request stays on the pod, so the enforcer may still apply it")
        time.sleep(LOOK_SECONDS)


def _answer(target: Target, *, done: bool, reason: str, note: str) -> Object:
    return {"done": done, "reason": reason, "note": note, "beforeMiB": target.limit.memory_mib, "effect": ""}


def _print(target: Target, answer: Object, request: ResizeRequest, args: argparse.Namespace) -> None:
    after = request.memory_mib if answer["done"] else answer["beforeMiB"]
    if args.output == "json":
        shown = {key: answer[key] for key in ("done", "reason", "note", "effect", "beforeMiB")}
        place = {"namespace": target.namespace, "pod": target.claim.pod, "container": target.container}
        amounts = {"afterMiB": after, "reservedMiB": target.reserved_mib}
        print(json.dumps(place | shown | amounts | {"dryRun": args.dry_run}, indent=2))
        return
    if not answer["done"]:
        raise ResizeRefused(f"{target.name} keeps {format_mib(after)}: {answer['note']}")
    would = "would go " if args.dry_run else ""
    print(f"{target.name}: {would}{format_mib(answer['beforeMiB'])} -> {format_mib(after)} "
          f"(reserved {format_mib(target.reserved_mib)})")  # fmt: skip
    if answer["note"]:
        print(f"  {answer['note']}")
    if args.dry_run:
        print("  dry run: no change was requested; the node's enforcer can still refuse it")
