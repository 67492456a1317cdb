"""Create a sharing pod by server-side dry run, and compare it with what the webhook of this release writes."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

from gpushare import contract, defaults
from gpushare.errors import ClusterError, GpuShareError, PolicyDenied
from gpushare.kube_client import ADMISSION_V1, CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare.namespace_policy import NamespacePolicy
from gpushare.patterns import Search
from gpushare.quantity import format_mib
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare_cli.check.installation import DEPLOYMENT, RESTORE, Installation, installation
from gpushare_cli.check.preinstall import PROBE, PROBE_DRIVER
from gpushare_cli.check.result import CheckResult, Level, failed, ok, warning
from gpushare_cli.check.workloads import namespaces, nodes, reports
from gpushare_cli.lookups import optional
from gpushare_cli.placement.placing import is_selected
from gpushare_cli.words import QUOTA, clean, counted, lacking, refusal_remedy, sentence, some, webhook_of_others
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.resourceclaims import template_for
from webhook.mutation.settings import Settings

Annotations = Mapping[str, str]
USUAL_MIB: Final = 1024
SECONDS: Final = 20.0
"""For all namespaces, where none is named: in any of them a LimitRange or a policy of others can refuse the pod."""
CALLS: Final = 8
"""For each replica: one of two that cannot be reached is missed once in 65,000 checks, one of three once in 17,000."""
NOT_TRIED: Final = "not tried: no namespace has opted in"
ANSWERS: Final = "the webhook answers, but the dry run created no sharing pod, because no namespace has opted in"
OPT_IN: Final = f"kubectl label namespace NAME {contract.NAMESPACE_LABEL}=true"
LIST: Final = f"kubectl get namespaces --selector {contract.NAMESPACE_LABEL}=true"
REFUSES: Final = "does not share GPUs"
"""The webhook's answer about a namespace that has not opted in."""
KILL: Final = "kill"
"""The policy of a namespace that enforcers follow unless ``enforcer.enforce`` is false."""
MAX_REFUSAL: Final = 4096
"""Characters that are read of a refusal."""
OUR_CERTIFICATE: Final = Search(
    r'failed calling webhook "[a-z]{1,9}\.gpu-share\.io".{0,1024}? x509: ([^"]{1,512})', MAX_REFUSAL
)
"""Why the API server does not trust the certificate that our webhook presents: name, dates or issuer."""
SERVING: Final = "gpu-share-webhook-tls"
"""The Secret with the serving certificate."""
RENEW: Final = (
    "{} renews the certificate, and the webhook uses it within two minutes: {}; if this error stays, compare the "
    "clocks of the API server and the nodes, then kubectl delete secret -n {} " + SERVING
)
REFUSED: Final = (
    "the message names what refused the pod; if it is the webhook, check its pods: "
    "kubectl get pods -A -l app.kubernetes.io/name=gpu-share-webhook"
)
UNREACHED: Final = (
    "the API server cannot call the webhook: see its pods, Service and NetworkPolicies: kubectl get "
    "pods,endpointslices,networkpolicies -n {}"
)
SET_BY_OTHERS: Final = (
    "see what sets it: kubectl get mutatingwebhookconfigurations,mutatingadmissionpolicies, and for a node selector "
    "the namespace's annotation scheduler.alpha.kubernetes.io/node-selector"
)
LOOK: Final = (
    "read the webhook's log, and list the webhooks that change pods: kubectl get mutatingwebhookconfigurations"
)
UNCALLED: Final = "failed calling webhook"
TEMPLATES: Final = "resourceclaimtemplates"
CLAIMS: Final = "resourceclaims"
CLAIM_MAKER: Final = "system:serviceaccount:kube-system:resource-claim-controller"
"""As whom kube-controller-manager makes claims."""
RESTRICTED: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Passes Pod Security ``restricted``."""


def _terms(policy: NamespacePolicy, annotations: Annotations, idle: Sequence[str]) -> str:
    """Describe which shares can be had in a namespace; ``idle`` are the nodes whose enforcers kill nothing."""
    default, most = policy.default_memory_mib, policy.max_memory_mib
    usual = f"default {format_mib(default)}" if default else f"no default (each pod must set {contract.MEMORY})"
    limit = f"at most {format_mib(most)}" if most else "no maximum"
    exceeding = annotations.get(contract.ON_EXCEED, defaults.ON_EXCEED)
    but = f" (not on {some(idle)}: enforcer.enforce is false)" if idle and exceeding == KILL else ""
    return f"GPU memory: {usual}, {limit}, over quota: {exceeding}{but}"


def trial(api: KubeClient, named: str | None) -> CheckResult:
    """Try the namespace that was named, or each that opted in; one that takes the pod shows that the release works."""
    if named is not None:
        return _named(api, named)
    found = installation(api)
    idle, until = _idle(api), time.monotonic() + SECONDS
    spaces = list(_opted_in(api, _closed(found)))
    results = [_tried(api, *each, found, idle) for each in spaces if time.monotonic() < until]
    answer = _of_all(results) or warning(ANSWERS if found.comparable else NOT_TRIED, OPT_IN)
    if found.comparable and answer.level is not Level.WRONG:
        called = optional(lambda: _called(api, found)) if results else _called(api, found)
        answer = called if called and not called.fine else answer
    left = len(spaces) - len(results)
    rest = f"; not tried within {SECONDS:.0f} s: {left} of {counted(len(spaces), 'namespace')}"
    return replace(answer, detail=answer.detail + (rest if left else ""))


def _of_all(results: Sequence[CheckResult]) -> CheckResult | None:
    """Put the answers of all namespaces together."""
    wrong, bad = ([each for each in results if each.level is Level.WRONG], [each for each in results if not each.fine])
    if not bad or len(bad) == len(results):
        return next(iter(wrong or results), None)
    first = next(iter(wrong or bad))
    return warning(f"{len(bad)} of {counted(len(results), 'namespace')}: {first.detail}", first.hint)


def _idle(api: KubeClient) -> list[str]:
    """Return the nodes whose enforcers say that they kill nothing; none where their reports may not be read."""
    found = optional(lambda: reports(api)) or {}
    return [node for node, report in found.items() if report and not report.enforcing]


def _called(api: KubeClient, found: Installation) -> CheckResult:
    """Try the release's own namespace, where no pod shares a GPU: the webhook has to refuse each dry run.

    It ends the connection of each, so that the next is a new one, which any replica may get.
    """
    for _ in range(CALLS * (found.replicas or 1)):
        try:
            api.create(path(CORE_V1, "pods", namespace=found.namespace), probe(USUAL_MIB), dryRun="All")
        except ClusterError as error:
            if REFUSES not in error.message or PROBE_DRIVER not in error.message:
                return _refused(api, error, found.namespace, found)
        else:
            return failed(
                f"the API server did not call the webhook for a dry run in namespace {found.namespace}", RESTORE
            )
    return ok()


def _named(api: KubeClient, name: str) -> CheckResult:
    """Try one namespace, also with no more rights than a tenant has."""
    found = known_release(api)
    if name in _closed(found):
        return failed(
            f"namespace {name} cannot opt in: gpu-share excludes kube-system and its own namespace",
            "try another: -n NAMESPACE",
        )
    try:
        metadata = mapping(api.get(path(CORE_V1, "namespaces", name)), "metadata")
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return failed(f"there is no namespace {name}", LIST)
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return _tried(api, name, None, found, ())
    if mapping(metadata, "labels").get(contract.NAMESPACE_LABEL) != "true":
        label = f"kubectl label namespace {name} {contract.NAMESPACE_LABEL}=true"
        return failed(f"namespace {name} has not opted in: annotations of {contract.GROUP} have no effect there", label)
    return _tried(api, name, mapping(metadata, "annotations"), found, _idle(api))


def _closed(found: Installation) -> set[str]:
    """Return the namespaces whose pods get no share, whatever their labels."""
    return {found.namespace, "kube-system"}


def known_release(api: KubeClient) -> Installation:
    """Find the release; of what a user may not see nothing is known."""
    return optional(lambda: installation(api)) or Installation()


def _opted_in(api: KubeClient, excluded: set[str]) -> Iterator[tuple[str, Annotations]]:
    found = [mapping(each, "metadata") for each in namespaces(api)]
    for metadata in sorted(found, key=lambda each: text(each, "name")):
        if text(metadata, "name") not in excluded and "deletionTimestamp" not in metadata:
            yield text(metadata, "name"), mapping(metadata, "annotations")


def _tried(
    api: KubeClient, namespace: str, annotations: Annotations | None, found: Installation, idle: Sequence[str]
) -> CheckResult:
    """Try a namespace; ``annotations`` are ``None`` where they may not be read."""
    begun, known = time.monotonic(), annotations is not None
    try:
        policy = NamespacePolicy.from_annotations(annotations or {})
        pod = probe(_memory(policy, found) if known else USUAL_MIB)
        made = api.create(path(CORE_V1, "pods", namespace=namespace), pod, dryRun="All")
        flaws = list(flaws_of(made, policy, exact=known and found.comparable))
    except GpuShareError as error:
        return _refused(api, error, namespace, found)
    if flaws:
        named = f"the test pod in namespace {namespace}"
        return failed(f"{named} differs from what the webhook writes: {'; '.join(flaws)}", LOOK)
    if hindered := _unmade(api, made, namespace, found) or _unplaced(api, made, namespace, found):
        return hindered
    took = f"{(time.monotonic() - begun) * 1000:.0f} ms"
    added = f"the webhook added a share to a test pod in namespace {namespace} (dry run, {took})"
    return ok(added if annotations is None else f"{added}; {_terms(policy, annotations, idle)}")


def _unmade(api: KubeClient, made: Object, namespace: str, found: Installation) -> CheckResult | None:
    """Try the test pod's claim template and claim as those who make them; ``None`` where they may, or it is not known.

    Only a user who may impersonate these accounts knows it. Full quotas have a line of their own.
    """
    template = template_for(made)
    if template is None:
        return None
    claim = {"metadata": {"generateName": PROBE}, "spec": template["spec"]["spec"]}
    webhook = f"system:serviceaccount:{found.namespace}:{DEPLOYMENT}"
    for user, plural, body in ((webhook, TEMPLATES, template), (CLAIM_MAKER, CLAIMS, claim)):
        try:
            api.acting_as(user).create(path(RESOURCE_V1, plural, namespace=namespace), body, dryRun="All")
        except ClusterError as error:
            no = error.status in {HTTPStatus.FORBIDDEN, HTTPStatus.UNPROCESSABLE_ENTITY} or UNCALLED in error.message
            hint = refusal_remedy(error.message) or RESTORE
            if no and hint != QUOTA and "cannot impersonate" not in error.message:
                return failed(clean(f"no share can start in namespace {namespace}: {error.message}"), hint)
    return None


def _unplaced(api: KubeClient, made: Object, namespace: str, found: Installation) -> CheckResult | None:
    """Say what others put into the test pod that keeps it from every sharing node; ``None`` where nothing does."""
    spec = mapping(made, "spec")
    scheduler = text(spec, "schedulerName")
    if found.environment and scheduler not in {"", *found.settings.scheduler_names}:
        detail = f"no share can start in namespace {namespace}: its pods get schedulerName {scheduler}, and only "
        return failed(clean(f"{detail}Kubernetes' own scheduler places shares"), SET_BY_OTHERS)
    there = optional(lambda: nodes(api))
    if not there or any(is_selected(each, made) for each in there):
        return None
    labels = [f"{key}={value}" for key, value in mapping(spec, "nodeSelector").items()]
    rule = f"the node selector {some(labels)}" if labels else "a required node affinity"
    detail = f"pods of namespace {namespace} get {rule}, which excludes each node that shares its GPUs"
    return warning(clean(detail), SET_BY_OTHERS)


def _refused(api: KubeClient, error: GpuShareError, namespace: str, found: Installation) -> CheckResult:
    """Describe why no sharing pod can be created. Raises the error where the user may not create pods."""
    if isinstance(error, ClusterError) and lacking(error) is not None:
        raise error
    detail = f"refused in namespace {namespace}: {sentence(error)}"
    if (why := OUR_CERTIFICATE.search(error.message[:MAX_REFUSAL])) is not None:
        where = f"Secret {found.namespace}/{SERVING}"
        detail = f"refused in namespace {namespace}: the API server does not accept the webhook's serving certificate"
        renewer = "cert-manager" if found.cert_manager else "gpu-share-certs"
        hint = RENEW.format(renewer, found.certificate_log, found.namespace)
        return failed(f"{detail} ({where}): {clean(why[1])}", hint)
    if hook := webhook_of_others(error.message):
        return failed(detail, _of_others(api, hook, error.message))
    if UNCALLED in error.message:
        return failed(detail, UNREACHED.format(found.namespace))
    forbidden = isinstance(error, ClusterError) and error.status == HTTPStatus.FORBIDDEN
    hint = refusal_remedy(error.message)
    return (warning if forbidden and hint == QUOTA else failed)(detail, hint or REFUSED)


def _of_others(api: KubeClient, name: str, refusal: str) -> str:
    """Say whose webhook refused a pod, whom the API server calls for it, and what its operator can do."""
    items = optional(lambda: api.list(path(ADMISSION_V1, "mutatingwebhookconfigurations"))[0]) or []
    for whose, hook in ((each["metadata"]["name"], hook) for each in items for hook in objects(each, "webhooks")):
        if text(hook, "name") == name:
            config = mapping(hook, "clientConfig")
            service, called = mapping(config, "service"), text(config, "url")
            if space := text(service, "namespace"):
                called = f"Service {space}/{text(service, 'name')} (kubectl get services,endpointslices -n {space})"
            remedy = refusal_remedy(refusal, f"mutatingwebhookconfigurations {whose}")
            return clean(f"MutatingWebhookConfiguration {whose} calls {called}; {remedy}")
    return refusal_remedy(refusal)


def _memory(policy: NamespacePolicy, found: Installation) -> int:
    """Return MiB that can be asked for there."""
    return policy.default_memory_mib or policy.max_memory_mib or max(USUAL_MIB, found.settings.min_memory_mib)


def probe(mib: int) -> dict[str, Any]:
    """Return a pod that asks for so much GPU memory."""
    metadata = {"generateName": PROBE, "annotations": {contract.MEMORY: f"{mib}Mi"}}
    container = {"name": "main", "image": "gpu-share-check", "securityContext": dict(RESTRICTED)}
    spec = {"containers": [container], "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def flaws_of(made: Mapping[str, Any], policy: NamespacePolicy, *, exact: bool) -> Iterator[str]:
    """Compare a pod with what the webhook of this release writes: rewriting it once more changes nothing.

    Args:
        made: the pod as the API server would store it.
        policy: of its namespace.
        exact: whether the webhook is of this release; else it is only known that it marks the pod.
    """
    managed = mapping(mapping(made, "metadata"), "labels").get(contract.MANAGED_LABEL) == "true"
    if not managed:
        yield "the webhook did not rewrite the pod"
    if not (managed and exact):
        return
    try:
        patch = mutate_pod(made, policy=policy, settings=_settings(made)).patch
    except PolicyDenied as error:
        yield error.message
        return
    yield from (f"{each['op']} {each['path']}" for each in patch)


def _settings(made: Mapping[str, Any]) -> Settings:
    """Take from the pod what the chart's values decide and nothing else does."""
    spec = mapping(made, "spec")
    variables = (each for one in objects(spec, "containers") for each in objects(one, "env"))
    share = contract.MPS_THREAD_PERCENTAGE
    compute = next((text(each, "value") for each in variables if each.get("name") == share), "")
    sidecar = next((each for each in objects(spec, "initContainers") if each.get("name") == contract.SIDECAR), {})
    resources = mapping(sidecar, "resources")
    return Settings(
        image=text(sidecar, "image"),
        image_pull_policy=text(sidecar, "imagePullPolicy"),
        default_compute=int(compute) if compute.isdecimal() else defaults.DEFAULT_COMPUTE,
        tolerations=tuple(dict(each) for each in objects(spec, "tolerations")),
        runtime_class=text(spec, "runtimeClassName") or None,
        sidecar_requests=dict(mapping(resources, "requests")),
        sidecar_limits=dict(mapping(resources, "limits")),
    )
