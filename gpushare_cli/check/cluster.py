"""Questions to the cluster: is it new enough, and is what the product needs installed, unmodified and valid?"""

import base64
import binascii
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from enforcer.quota.sharing_mode import CHANGES
from enforcer.resourceslices.contention import UNKNOWN, device_names
from gpushare import contract
from gpushare.kube_client import ADMISSION_V1, CORE_V1, KubeClient, path
from gpushare.patterns import Pattern
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.raw_objects import moment as time_of
from gpushare.reason_table import BY_REASON
from gpushare.reasons import Reason
from gpushare_cli.check import feature_gates, installation, startable, workloads
from gpushare_cli.check.connection import Ask, Connection
from gpushare_cli.check.host_needs import host_needs
from gpushare_cli.check.installation import RESTORE, as_shipped
from gpushare_cli.check.result import Checker, CheckResult, Level, failed, ok, warning
from gpushare_cli.check.taint_rules import taint_rules
from gpushare_cli.check.trial import SERVING, trial
from gpushare_cli.lookups import CONFIGURATION, find, release_namespace
from gpushare_cli.words import clean, counted, moment, some

CATEGORY: Final = "cluster"
OLDEST: Final = (1, 36)
FIRST_WITH_CLAIMS: Final = (1, 34)
"""Serves ``resource.k8s.io/v1``, though not by default what makes shares of it: of that the other questions tell."""
_VERSION: Final = Pattern(r"v(\d+)\.(\d+)", 128)
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
FAILS: Final = "each call of the webhook fails, and the API server refuses the pod"
UNRENEWED: Final = (
    "gpu-share-certs should have renewed it days before: read its pod's log, and the line certificate renewal"
)
WRITER: Final = (
    "the Deployment gpu-share-certs should write the caBundle within ten seconds; if it does not, read its pod's log"
)


def questions(namespace: str | None) -> list[tuple[str, Ask]]:
    """Return the questions about an installation; a sharing pod is tried in ``namespace``, else in an opted-in one."""
    return [*GATES, *_INSTALLED, *_running(namespace)]


def connected(
    kubeconfig: str | None, context: str | None, *, required: bool, questions: Iterable[tuple[str, Ask]]
) -> list[Checker]:
    """Return questions that are asked over one connection, the version of Kubernetes first."""
    connection, without = Connection(kubeconfig, context), failed if required else warning
    return [
        Checker(category=CATEGORY, description="Kubernetes", ask=lambda: connection.connected(version, without)),
        *(Checker(category=CATEGORY, description=what, ask=connection.asking(ask)) for what, ask in questions),
    ]


GATES: Final[tuple[tuple[str, Ask], ...]] = (
    (f"consumable capacity ({feature_gates.CONSUMABLE})", feature_gates.consumable_capacity),
    (f"device taints ({feature_gates.TAINTS})", feature_gates.device_taints),
)
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
        ("sharing pods that do not start", lambda api: startable.stuck(api, datetime.now(UTC))),
        ("host access of sharing pods", host_needs),
    )


def version(api: KubeClient) -> CheckResult:
    """Compare the API server's version."""
    found = api.get("/version")
    server = str(found.get("gitVersion", ""))
    if (emulated := found.get("emulationMinor")) and emulated != found.get("minor"):
        server = f"v{found['emulationMajor']}.{emulated} (emulated by {server})"
    number, oldest = workloads.release(server, _VERSION), ".".join(map(str, OLDEST))
    if number is None:
        unread = f"the API server reports its version as {server!r:.80}; {oldest} or newer is needed"
        return warning(unread, "run kubectl version")
    if number < OLDEST:
        missing = failed(f"{server}; {oldest} is needed", f"upgrade the cluster to {oldest} or newer")
        return replace(missing, last=number < FIRST_WITH_CLAIMS)
    return ok(server)


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
        return warning(
            "none", (f"label a GPU node {contract.NODE_LABEL}=true; the enforcer of that node then publishes its GPUs")
        )
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
