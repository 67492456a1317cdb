"""Questions to the cluster: is it new enough, and is what the product needs installed, unmodified and valid?"""

import base64
import binascii
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from enforcer.quota.sharing_mode import CHANGES
from enforcer.resourceslices.contention import UNKNOWN, device_names
from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import ADMISSION_V1, CORE_V1, RESOURCE_V1, KubeClient, find, path
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.raw_objects import moment as time_of
from gpushare.reason_table import BY_REASON
from gpushare.reasons import Reason
from gpushare_cli.check import installation, preinstall, startable, workloads
from gpushare_cli.check.connection import Ask
from gpushare_cli.check.installation import RESTORE, as_shipped
from gpushare_cli.check.result import CheckResult, Level, failed, ok, warning
from gpushare_cli.check.startable import host_needs
from gpushare_cli.check.trial import SERVING, trial
from gpushare_cli.lookups import CONFIGURATION, release_namespace
from gpushare_cli.words import clean, counted, moment, some

SOON: Final = timedelta(days=3)
OURS: Final = CONFIGURATION.rpartition("/")[2]
"""The release's webhook configuration."""
DELETE: Final = "kubectl delete mutatingwebhookconfiguration"
OTHERS: Final = f"the node annotation {contract.NODE_GPUS}"
ADVICE: Final[Mapping[str, str]] = {
    UNKNOWN: "wait: the enforcer does not know yet whether another driver publishes that GPU",
    Reason.CONTENDED: f"remove the GPU from the other driver, or list only the GPUs for gpu-share in {OTHERS}",
    CHANGES: "wait: a GPU that changes its sharing mode is published again once its last claim is unprepared",
    contract.NODE_MODE: f"correct the node's label {contract.NODE_MODE}",
}
"""Words of an enforcer's reasons, and what to do; the first that are there count."""
POD_SECURITY: Final = "pod-security.kubernetes.io/enforce"
STRICT: Final = ("baseline", "restricted")
UNFIT: Final = f"the enforcer does not offer these GPUs; if they should stay out, list only the other GPUs in {OTHERS}"
UNPUBLISHED: Final = "the lines GPUs left out, enforcers, enforcer reports and nodes that share their GPUs say why"
FAILS: Final = "each call of the webhook fails, and the API server refuses the pod"
UNRENEWED: Final = (
    "gpu-share-certs should have renewed it days before: read its pod's log, and the line certificate renewal"
)
WRITER: Final = (
    "the Deployment gpu-share-certs should write the caBundle within ten seconds; if it does not, read its pod's log"
)


def questions(namespace: str | None) -> list[tuple[str, Ask]]:
    """Return the questions about an installation; a sharing pod is tried in ``namespace``, else in an opted-in one."""
    return [*preinstall.GATES, *_INSTALLED, *_running(namespace)]


_INSTALLED: Final[tuple[tuple[str, Ask], ...]] = (
    ("DeviceClasses", partial(as_shipped, kinds=installation.CLASSES)),
    ("policies and their bindings", partial(as_shipped, kinds=installation.POLICIES)),
    ("webhook configuration and Service", partial(as_shipped, kinds=installation.WEBHOOK)),
    ("accounts, roles and their bindings", partial(as_shipped, kinds=installation.ROLES)),
)


def _running(namespace: str | None) -> tuple[tuple[str, Ask], ...]:
    return (
        ("other webhook configurations", other_configurations),
        ("webhook certificate", lambda api: webhook(api, datetime.now(UTC))),
        ("certificate renewal", lambda api: workloads.certificates(api, datetime.now(UTC))),
        ("webhook replicas", workloads.webhooks),
        ("rollouts", workloads.rollouts),
        ("Pod Security of the release's namespace", own_namespace),
        ("sharing pod", lambda api: trial(api, namespace)),
        ("enforcers", workloads.enforcers),
        ("MPS pods", workloads.mps_hosts),
        ("enforcer reports", workloads.reported),
        ("versions", workloads.versions),
        ("nodes that share their GPUs", workloads.unsliced),
        ("GPUs published", published),
        ("DeviceTaintRules", taint_rules),
        ("GPUs left out", left_out),
        ("GPUs of two drivers", contended),
        ("labels that opt in", workloads.mislabelled),
        ("nodes for a new share", startable.on_nodes),
        ("namespaces that opted in", opted_in),
        ("claims in these namespaces", startable.in_namespaces),
        ("Leases of kube-scheduler and kube-controller-manager", startable.leases),
        ("sharing pods that do not start", lambda api: startable.stuck(api, datetime.now(UTC))),
        ("host access of sharing pods", host_needs),
    )


def webhook(api: KubeClient, now: datetime) -> CheckResult:
    """Look at the certificates in the bundle of each webhook of our configuration, and at the serving certificate.

    The worst of them counts.
    """
    configuration, namespace, hint = find(api, CONFIGURATION) or {}, release_namespace(api), WRITER
    if installation.by_cert_manager(api):
        hint = f"kubectl describe certificate -n {namespace} {installation.DEPLOYMENT}"
    hooks = objects(configuration, "webhooks")
    found = [bundle(f"{text(each, 'name')} of {OURS}", mapping(each, "clientConfig"), now, hint) for each in hooks]
    if not found:
        return failed(f"{OURS} is missing: pods are not rewritten", RESTORE)
    # gpu-share-certs writes it, and who may change webhook configurations
    ends = text(mapping(mapping(configuration, "metadata"), "annotations"), contract.SERVING_ENDS)
    if (last := time_of(ends)) is not None:
        what = f"serving certificate (Secret {namespace}/{SERVING})"
        found += filter(None, [_ending(what, ", not its CA", last, now, UNRENEWED)])
    return max(found, key=lambda each: tuple(Level).index(each.level))


def _ending(what: str, more: str, last: datetime, now: datetime, hint: str) -> CheckResult | None:
    """Say of a certificate that it expires soon, or did; ``None`` where it is valid for longer."""
    if last <= now:
        return failed(f"{what} expired on {moment(last)}{more}: {FAILS}", hint)
    return warning(f"{what} expires on {moment(last)}{more}", hint) if last <= now + SOON else None


def other_configurations(api: KubeClient) -> CheckResult:
    """Name the other webhook configurations that call our webhook, or have webhooks of our names."""
    namespace, items = release_namespace(api), api.list(path(ADMISSION_V1, "mutatingwebhookconfigurations"))[0]
    calling = {
        text(mapping(item, "metadata"), "name")
        for item in items for hook in objects(item, "webhooks") if _calls_us(hook, namespace)
    }  # fmt: skip
    if not (found := sorted(calling - {OURS})):
        return ok("none")
    detail = f"{some(found)}: the API server calls the webhook for {counted(len(found), 'other configuration')} too"
    return failed(detail, f"delete what is left of another installation: {DELETE} {found[0]}")


def _calls_us(hook: Mapping[str, Any], namespace: str) -> bool:
    service = mapping(mapping(hook, "clientConfig"), "service")
    ours = (text(service, "namespace"), text(service, "name")) == (namespace, installation.DEPLOYMENT)
    return ours or text(hook, "name").endswith(f".{contract.GROUP}")


def bundle(name: str, config: Mapping[str, Any], now: datetime, hint: str) -> CheckResult:
    """Check the ``caBundle`` of the webhook ``name``."""
    from cryptography import x509  # noqa: PLC0415 - it takes as long as this program's own start

    try:
        pem = base64.b64decode(config.get("caBundle") or "", validate=True)
        certificates = x509.load_pem_x509_certificates(pem) if pem else []
    except (binascii.Error, ValueError):
        return failed(f"{name}: its caBundle cannot be read", hint)
    if not certificates:
        return failed(f"{name} has no caBundle: {FAILS}", hint)
    last = max(certificate.not_valid_after_utc for certificate in certificates)
    ending = _ending(f"{name}: its caBundle", "", last, now, hint)
    return ending or ok(f"{name}, its CA is valid until {moment(last)}")


def published(api: KubeClient) -> CheckResult:
    """Count the GPUs in our ResourceSlices."""
    items = workloads.slices(api)
    devices = [device for item in items for device in item["spec"].get("devices") or []]
    gpus = [device for device in devices if contract.CAPACITY_MEMORY in (device.get("capacity") or {})]
    tainted = [each for item in items for each in _tainted(item)]
    if not gpus:
        return warning("none", UNPUBLISHED if workloads.labelled(api) else workloads.LABEL)
    nodes = {item["spec"].get("nodeName") for item in items}
    modes = Counter(text(mapping(mapping(each, "attributes"), "mode"), "string") or "no mode" for each in gpus)
    shared = ", ".join(f"{count} {mode}" for mode, count in sorted(modes.items()))
    detail = f"{len(gpus)} on {counted(len(nodes), 'node')} ({shared})"
    if not tainted:
        return ok(detail)
    answer = failed if len(tainted) == len(gpus) else warning
    reasons = [BY_REASON[Reason(why)].action for _, why in tainted if why in BY_REASON]
    hint = "; ".join(dict.fromkeys(reasons)) or "read the taints: kubectl get resourceslices -o yaml"
    return answer(f"{detail}, {len(tainted)} of them tainted: {some([each for each, _ in tainted])}", hint)


def _tainted(item: Object) -> Iterator[tuple[str, str]]:
    """Yield each tainted GPU of a slice with the Reason of its enforcer, else the taint's key."""
    for device in objects(mapping(item, "spec"), "devices"):
        if contract.CAPACITY_MEMORY in mapping(device, "capacity") and (taints := objects(device, "taints")):
            ours = [text(each, "value") for each in taints if text(each, "key") == contract.UNHEALTHY]
            why = clean(next(iter(ours), text(taints[0], "key")))
            yield clean(f"{item['spec'].get('nodeName')}: {text(device, 'name')}: {why}"), why


def left_out(api: KubeClient) -> CheckResult:
    """Name the GPUs of sharing nodes that are not published, and why; a contended one is wrong."""
    latest = {item["spec"].get("nodeName"): item for item in workloads.slices(api)}
    notes = [(node, workloads.noted(item, contract.EXCLUDED_GPUS)) for node, item in latest.items()]
    found = [(f"{node}: {clean(gpu)}", clean(str(why))) for node, gpus in notes for gpu, why in gpus.items()]
    if not found:
        return ok("none")
    contest = any(Reason.CONTENDED in why and UNKNOWN not in why for _, why in found)
    hints = dict.fromkeys(next((hint for words, hint in ADVICE.items() if words in why), UNFIT) for _, why in found)
    return (failed if contest else warning)("; ".join(map(": ".join, found)), "; ".join(hints))


def contended(api: KubeClient) -> CheckResult:
    """Name the GPUs that another DRA driver publishes as well, by the names that both give them."""
    items = workloads.slices(api, ours=False)
    ours = {name for item in workloads.slices(api) for _, name in _names(item)}
    found = [
        f"{item['spec'].get('nodeName')}: {device} of {item['spec']['driver']}"
        for item in items for device, name in _names(item) if name in ours
    ]  # fmt: skip
    return failed(some(found), ADVICE[Reason.CONTENDED]) if found else ok("none")


def _names(item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each device of a slice with the UUIDs and addresses that it is known by."""
    for device in item["spec"].get("devices") or []:
        yield from ((str(device["name"]), name) for name in device_names(str(item["spec"]["driver"]), device))


def own_namespace(api: KubeClient) -> CheckResult:
    """Look whether Pod Security refuses the pods of enforcers and MPS when they are next replaced."""
    name = release_namespace(api)
    found = find(api, path(CORE_V1, "namespaces", name)) or {}
    level = mapping(mapping(found, "metadata"), "labels").get(POD_SECURITY)
    if level not in STRICT:
        return ok(level or "no label")
    detail = f"namespace {name} has {POD_SECURITY}={level}: it refuses the next pods of enforcers and MPS"
    return failed(detail, f"kubectl label --overwrite namespace {name} {POD_SECURITY}=privileged")


def opted_in(api: KubeClient) -> CheckResult:
    """Count labelled namespaces; name those where Pod Security lets pods reach the node around their shares."""
    label = f"kubectl label namespace NAME {contract.NAMESPACE_LABEL}=true"
    found = [mapping(each, "metadata") for each in workloads.namespaces(api)]
    enforced = {text(each, "name"): mapping(each, "labels").get(POD_SECURITY) for each in found}
    if not enforced:
        return warning("none", label)
    loose = sorted(name for name, level in enforced.items() if level not in STRICT)
    if not loose:
        return ok(str(len(enforced)))
    detail = f"{len(enforced)}, of which {len(loose)} without Pod Security baseline: {some(loose)}"
    return warning(detail, f"kubectl label namespace NAME {POD_SECURITY}=baseline")


RULES_SERVED: Final = (RESOURCE_V1, "/apis/resource.k8s.io/v1beta2")
"""API versions that have the kind, newest first."""
RULES: Final = "devicetaintrules"
RULES_HINT: Final = (
    "they keep pods off these GPUs, or evict them; an operator created them; to remove one: "
    "kubectl delete devicetaintrule NAME"
)


def taint_rules(api: KubeClient) -> CheckResult:
    """Name each rule that can match a GPU of ours, with its taint and with what it matches."""
    found = [_described(each) for each in _rules(api) if _is_ours(each)]
    return warning(some(found), RULES_HINT) if found else ok("none")


def _rules(api: KubeClient) -> list[Any]:
    for version in RULES_SERVED:
        try:
            return api.list(path(version, RULES))[0]
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
    return []


def _is_ours(rule: Object) -> bool:
    """Tell whether a rule can match our devices. One without a selector matches none, one without a driver all."""
    selector = mapping(rule, "spec").get("deviceSelector")
    return isinstance(selector, dict) and selector.get("driver") in {None, contract.DRIVER}


def _described(rule: Object) -> str:
    spec = mapping(rule, "spec")
    taint, selector = mapping(spec, "taint"), mapping(spec, "deviceSelector")
    value = f"={text(taint, 'value')}" if text(taint, "value") else ""
    name = text(mapping(rule, "metadata"), "name")
    on = ", ".join(f"{key} {each}" for key in ("pool", "device") if (each := text(selector, key))) or "every GPU"
    return clean(f"{name} ({text(taint, 'key')}{value}:{text(taint, 'effect')} on {on})")
