"""Questions to the cluster: is it new enough, and is what the product needs installed and valid?"""

import base64
import binascii
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final

from cryptography import x509

from enforcer.quota.sharing_mode import CHANGES
from enforcer.resourceslices.contention import UNSURE
from gpushare import contract
from gpushare.errors import ClusterError
from gpushare.kube_client import ADMISSION_V1, APPS_V1, CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare.patterns import Pattern
from gpushare.reasons import Reason
from gpushare_cli.api_errors import lacking, sentence
from gpushare_cli.check import feature_gates
from gpushare_cli.check.result import Checker, CheckResult, failed, ok, warning
from gpushare_cli.terminal import counted, some

CATEGORY: Final = "cluster"
OLDEST: Final = (1, 36)
FIRST_WITH_CLAIMS: Final = (1, 34)
"""Serves ``resource.k8s.io/v1``, though not by default what makes shares of it: of that the other questions tell."""
_VERSION: Final = Pattern(r"v(\d+)\.(\d+)", 128)
SOON: Final = timedelta(days=3)
NAMED: Final = 5
"""So many nodes or namespaces are named."""
WEBHOOK: Final = f"pods.{contract.GROUP}"
AS_OPERATOR: Final = "ask as an operator of the cluster (--kubeconfig, --context)"
INSTALL: Final = "install gpu-share: helm install gpu-share deploy/helm/gpu-share -n gpu-share-system"
OTHERS: Final = f"the node annotation {contract.NODE_GPUS}"
ADVICE: Final[Mapping[str, str]] = {
    UNSURE: "nothing is to be done unless it stays so: the enforcer waits until it knows who else offers that GPU",
    Reason.CONTENDED: f"a contended GPU needs one owner: take it from the other, or name others in {OTHERS}",
    CHANGES: "nothing is to be done: a GPU that changes its mode is offered again once its last tenant has gone",
    contract.NODE_MODE: f"put the node's label {contract.NODE_MODE} right",
}
"""Words of an enforcer's reasons, and what to do; the first that are there count."""
POD_SECURITY: Final = "pod-security.kubernetes.io/enforce"
STRICT: Final = ("baseline", "restricted")
UNFIT: Final = f"what cannot be shared need not be offered: name the other GPUs in {OTHERS}"

Ask = Callable[[KubeClient], CheckResult]


def checkers(kubeconfig: str | None, context: str | None, *, required: bool) -> list[Checker]:
    """Return the questions. Unless ``required``, having no cluster at all is nothing wrong."""
    connection = Connection(kubeconfig, context)
    questions: list[tuple[str, Ask]] = [
        (f"consumable capacity ({feature_gates.CONSUMABLE})", feature_gates.consumable_capacity),
        (f"device taints ({feature_gates.TAINTS})", feature_gates.device_taints),
        (f"DeviceClass {contract.DEVICE_CLASS}", lambda api: device_class(api, contract.DEVICE_CLASS)),
        (f"DeviceClass {contract.MIG_DEVICE_CLASS}", lambda api: device_class(api, contract.MIG_DEVICE_CLASS)),
        (f"DeviceClass {contract.STATUS_DEVICE_CLASS}", lambda api: device_class(api, contract.STATUS_DEVICE_CLASS)),
        ("webhook configuration", lambda api: webhook(api, datetime.now(UTC))),
        ("webhook replicas", webhooks),
        ("enforcers", enforcers),
        ("nodes that share their GPUs", nodes),
        ("GPUs published", published),
        ("GPUs left out", left_out),
        ("namespaces that opted in", opted_in),
    ]
    without = failed if required else warning
    return [
        Checker(category=CATEGORY, description="Kubernetes", ask=lambda: connection.version(without)),
        *(Checker(category=CATEGORY, description=what, ask=connection.asking(ask)) for what, ask in questions),
    ]


class Connection:
    """The cluster, connected to when first asked."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._where = kubeconfig, context
        self._cluster: KubeClient | None = None

    def version(self, without: Callable[[str], CheckResult]) -> CheckResult:
        """Connect and ask for the version."""
        try:
            self._cluster = KubeClient.connect(*self._where)
        except ClusterError as error:
            return replace(without(error.message), last=True)
        try:
            return version(self._cluster)
        except ClusterError as error:
            return replace(refused(error), last=True)

    def asking(self, ask: Ask) -> Callable[[], CheckResult]:
        """Return the question with this cluster bound, so that an unreadable answer is a finding too."""
        return lambda: self._asked(ask)

    def _asked(self, ask: Ask) -> CheckResult:
        assert self._cluster is not None
        try:
            return ask(self._cluster)
        except ClusterError as error:
            return refused(error)


def refused(error: ClusterError) -> CheckResult:
    """What an error of the API server means: that something may not be asked is no fault."""
    if error.status == HTTPStatus.FORBIDDEN:
        what, hint = lacking(error) or ("ask this", AS_OPERATOR)
        return warning(f"you may not {what}", hint)
    return failed(sentence(error))


def version(api: KubeClient) -> CheckResult:
    """Compare the API server's version."""
    found = api.get("/version")
    text = str(found.get("gitVersion", ""))
    if (emulated := found.get("emulationMinor")) and emulated != found.get("minor"):
        text = f"v{found['emulationMajor']}.{emulated} (emulated by {text})"
    match = _VERSION.match(text)
    oldest = ".".join(map(str, OLDEST))
    if match is None:
        return warning(f"the version {text!r} cannot be read")
    number = int(match.group(1)), int(match.group(2))
    if number < OLDEST:
        missing = failed(f"{text}; {oldest} is needed", f"upgrade the cluster to {oldest} or newer")
        return replace(missing, last=number < FIRST_WITH_CLAIMS)
    return ok(text)


def device_class(api: KubeClient, name: str) -> CheckResult:
    """Look for a device class."""
    return _present(lambda: api.get(path(RESOURCE_V1, "deviceclasses", name)))


def webhook(api: KubeClient, now: datetime) -> CheckResult:
    """Look for our webhook, and at the certificates in its bundle."""
    items, _ = api.list(path(ADMISSION_V1, "mutatingwebhookconfigurations"))
    for item in items:
        for hook in item.get("webhooks") or []:
            if hook.get("name") == WEBHOOK:
                return bundle(item["metadata"]["name"], hook.get("clientConfig") or {}, now)
    return failed("not there: pods are not rewritten", INSTALL)


def bundle(name: str, config: Mapping[str, Any], now: datetime) -> CheckResult:
    """Judge a webhook's ``caBundle``."""
    hint = "run gpu-share certs (the CronJob gpu-share-certs does)"
    try:
        pem = base64.b64decode(config.get("caBundle") or "", validate=True)
        certificates = x509.load_pem_x509_certificates(pem) if pem else []
    except (binascii.Error, ValueError):
        return failed(f"{name}: its caBundle cannot be read", hint)
    if not certificates:
        return failed(f"{name} has no caBundle: every sharing pod is refused", hint)
    last = max(certificate.not_valid_after_utc for certificate in certificates)
    if last <= now:
        return failed(f"{name}: its caBundle expired on {last:%Y-%m-%d}: every sharing pod is refused", hint)
    if last <= now + SOON:
        return warning(f"{name}: its caBundle expires on {last:%Y-%m-%d %H:%M}", hint)
    return ok(f"{name}, valid until {last:%Y-%m-%d}")


def webhooks(api: KubeClient) -> CheckResult:
    """Look at the replicas of the webhook's Deployment."""
    found = _workloads(api, "deployments", "webhook")
    if not found:
        return failed("no Deployment of ours: no sharing pod can be created", INSTALL)
    wanted, ready = (sum(_count(each, part, key) for each in found) for part, key in _REPLICAS)
    detail, hint = f"{ready} of {wanted} ready", _look(found[0], "webhook")
    if not ready:
        return failed(f"{detail}: no sharing pod can be created", hint)
    return warning(detail, hint) if ready < wanted else ok(detail)


def enforcers(api: KubeClient) -> CheckResult:
    """Look at the enforcers of the nodes that share their GPUs."""
    found = _workloads(api, "daemonsets", "enforcer")
    if not found:
        return failed("no DaemonSet of ours: no GPU is offered and nobody is watched", INSTALL)
    wanted, ready = (sum(_count(each, "status", key) for each in found) for key in _PODS)
    detail = f"{ready} of {wanted} ready"
    if ready < wanted:
        return failed(f"{detail}: what runs on the other nodes runs on unwatched", _look(found[0], "enforcer"))
    return ok(detail)


_REPLICAS: Final = (("spec", "replicas"), ("status", "readyReplicas"))
_PODS: Final = ("desiredNumberScheduled", "numberReady")


def _workloads(api: KubeClient, kind: str, part: str) -> list[Mapping[str, Any]]:
    """Find ours by their labels, in whatever namespace they were installed."""
    selector = f"app.kubernetes.io/part-of=gpu-share,app.kubernetes.io/name=gpu-share-{part}"
    return list(api.list(path(APPS_V1, kind), labelSelector=selector)[0])


def _count(item: Mapping[str, Any], part: str, key: str) -> int:
    return int((item.get(part) or {}).get(key) or 0)


def _look(item: Mapping[str, Any], part: str) -> str:
    namespace = item["metadata"].get("namespace")
    return f"kubectl describe pods -n {namespace} -l app.kubernetes.io/name=gpu-share-{part}"


def nodes(api: KubeClient) -> CheckResult:
    """Count labelled nodes, and name those that offer nothing all the same."""
    items, _ = api.list(path(CORE_V1, "nodes"), labelSelector=f"{contract.NODE_LABEL}=true")
    if not items:
        return warning("none", f"kubectl label node NAME {contract.NODE_LABEL}=true")
    offering = {item["spec"].get("nodeName") for item in _slices(api)}
    silent = [name for item in items if (name := item["metadata"]["name"]) not in offering]
    if silent:
        return warning(
            f"{len(items)}; without a ResourceSlice: {some(silent, NAMED)}",
            "run gpu-share check --node in their enforcers",
        )
    return ok(str(len(items)))


def _slices(api: KubeClient) -> list[Any]:
    return api.list(path(RESOURCE_V1, "resourceslices"), fieldSelector=f"spec.driver={contract.DRIVER}")[0]


def published(api: KubeClient) -> CheckResult:
    """Count the GPUs in our ResourceSlices."""
    items = _slices(api)
    devices = [device for item in items for device in item["spec"].get("devices") or []]
    gpus = [device for device in devices if contract.CAPACITY_MEMORY in (device.get("capacity") or {})]
    tainted = sum(1 for device in gpus if device.get("taints"))
    if not gpus:
        return warning("none", "label a GPU node; its enforcer then publishes the GPUs")
    nodes = {item["spec"].get("nodeName") for item in items}
    detail = f"{len(gpus)} on {counted(len(nodes), 'node')} ({_modes(gpus)})"
    return warning(f"{detail}, {tainted} of them tainted", "see kubectl get resourceslices") if tainted else ok(detail)


def _modes(devices: Iterable[Mapping[str, Any]]) -> str:
    """Count devices by how they are shared."""
    modes = Counter(str(_attribute(each, "mode") or "no mode") for each in devices)
    return ", ".join(f"{count} {mode}" for mode, count in sorted(modes.items()))


def _attribute(device: Mapping[str, Any], name: str) -> object:
    return ((device.get("attributes") or {}).get(name) or {}).get("string")


def left_out(api: KubeClient) -> CheckResult:
    """Name the GPUs of sharing nodes that are not offered, and why: contended ones among them."""
    notes = {item["spec"].get("nodeName"): _noted(item) for item in _slices(api)}
    said = [f"{node}: {gpu}: {why}" for node, gpus in notes.items() for gpu, why in gpus.items()]
    why = [each for gpus in notes.values() for each in gpus.values()]
    return warning("; ".join(said), "; ".join(dict.fromkeys(map(_advice, why)))) if said else ok("none")


def _advice(why: str) -> str:
    """What to do about a GPU that is left out, by the reason its enforcer gives."""
    return next((hint for words, hint in ADVICE.items() if words in why), UNFIT)


def _noted(item: Mapping[str, Any]) -> Mapping[str, str]:
    try:
        found = json.loads((item["metadata"].get("annotations") or {}).get(contract.EXCLUDED_GPUS, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def opted_in(api: KubeClient) -> CheckResult:
    """Count labelled namespaces; name those where Pod Security lets pods reach the node around their shares."""
    label = f"kubectl label namespace NAME {contract.NAMESPACE_LABEL}=true"
    items = api.listing(path(CORE_V1, "namespaces"), labelSelector=f"{contract.NAMESPACE_LABEL}=true")
    enforced = {each["metadata"]["name"]: (each["metadata"].get("labels") or {}).get(POD_SECURITY) for each in items}
    if not enforced:
        return warning("none", label)
    loose = sorted(name for name, level in enforced.items() if level not in STRICT)
    if not loose:
        return ok(str(len(enforced)))
    said = f"{len(enforced)}, of which {len(loose)} without Pod Security baseline: {some(loose, NAMED)}"
    return warning(said, f"kubectl label namespace NAME {POD_SECURITY}=baseline")


def _present(read: Callable[[], object]) -> CheckResult:
    try:
        read()
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return failed("not there", INSTALL)
    return ok()
