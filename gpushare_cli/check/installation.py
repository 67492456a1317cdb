"""Find the release on the cluster, and compare its objects with what this release ships (``shipped.json``).

``make manifests`` renders ``shipped.json`` from the chart. Content is compared and no digest of it, whatever defaults
the server adds, because a spec can be edited after it was installed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Final

from gpushare import contract, defaults
from gpushare.errors import GpuShareError
from gpushare.kube_client import APPS_V1, KubeClient, find, path
from gpushare.raw_objects import mapping, objects, text
from gpushare.version import installed
from gpushare_cli.check.result import CheckResult, failed, ok, warning
from gpushare_cli.lookups import CONFIGURATION, release_namespace
from gpushare_cli.words import clean, some
from webhook.mutation.settings import Settings

Json = Mapping[str, Any]
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "ClusterRole": ("rules", "aggregationRule"),
    "ClusterRoleBinding": ("roleRef", "subjects"),
    "DeviceClass": ("spec",),
    "MutatingWebhookConfiguration": ("webhooks",),
    "Role": ("rules",),
    "RoleBinding": ("roleRef", "subjects"),
    "ServiceAccount": (),
    "ValidatingAdmissionPolicy": ("spec",),
    "ValidatingAdmissionPolicyBinding": ("spec",),
}
"""Fields that are compared, by kind. No workloads: their content depends on most of the chart's values."""
SERVICES: Final = ("gpu-share-webhook",)
"""Services that are compared. Other ports depend on the chart's values."""
ASSIGNED: Final = frozenset({"clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"})
"""Fields of a Service that the API server chooses."""
AGGREGATION: Final = "rbac.authorization.k8s.io/aggregate-to-"
"""Prefix of the labels by which Kubernetes adds a role to its own."""
SERVER_DEFAULTS: Final[Mapping[str, object]] = {
    "failurePolicy": "Fail",
    "internalTrafficPolicy": "Cluster",
    "matchPolicy": "Equivalent",
    "port": 443,
    "protocol": "TCP",
    "reinvocationPolicy": "Never",
    "scope": "*",
    "sessionAffinity": "None",
    "type": "ClusterIP",
}
"""Values that the API server writes into fields that were left out, by field."""
SHOWN: Final = 60
"""Characters of a value that are shown."""
BEFORE: Final = 20
"""Characters that are shown before the first one that differs, where both values are long and begin alike."""


def compared(item: Json) -> dict[str, Any] | None:
    """Return the content of an object that is compared; ``None`` for an object that is not."""
    kind, metadata = str(item.get("kind")), item.get("metadata") or {}
    if kind == "Service" and metadata.get("name") in SERVICES:
        return {key: value for key, value in item["spec"].items() if key not in ASSIGNED}
    if kind not in PARTS:
        return None
    found = {key: item[key] for key in PARTS[kind] if key in item}
    labels = metadata.get("labels") or {}
    if kind == "ClusterRole" and (mine := {key: labels[key] for key in labels if key.startswith(AGGREGATION)}):
        found["labels"] = mine
    if contract.TENANT_RESIZE in (notes := metadata.get("annotations") or {}):
        found["tenantResize"] = notes[contract.TENANT_RESIZE]
    if kind == "MutatingWebhookConfiguration":
        found["webhooks"] = [_without_settings(each) for each in item.get("webhooks") or []]
    return found


def difference(variants: Sequence[Json], live: Json) -> str | None:
    """Return the first difference between an object's content and what was shipped; ``None`` where there is none.

    Args:
        variants: of the shipped content; values of the chart choose among them. The first one is the default.
        live: the content on the API server, as ``compared`` returns it.
    """
    found = [next(_differences(each, live, ""), None) for each in variants]
    return None if None in found else found[0]


def _differences(mine: object, theirs: object, where: str) -> Iterator[str]:
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key, value in mine.items():
            yield from _of_key(value, theirs, f"{where}.{key}" if where else key, key)
        for key in theirs.keys() - mine.keys():
            if theirs[key] and SERVER_DEFAULTS.get(key) != theirs[key]:
                yield f"{where}.{key}".lstrip(".") + f" is {_shown(theirs[key])}, {NOT_SET}"
    elif isinstance(mine, list) and isinstance(theirs, list):
        for number, (one, other) in enumerate(zip(mine, theirs, strict=False)):
            yield from _differences(one, other, f"{where}[{number}]")
        for number, one in list(enumerate(mine))[len(theirs) :]:
            yield f"{where}[{number}] is missing, but the chart has {_shown(one)}"
        for number, other in list(enumerate(theirs))[len(mine) :]:
            yield f"{where}[{number}] is {_shown(other)}, {NOT_SET}"
    elif mine != theirs:
        begin = _beginning(str(mine), str(theirs))
        yield f"{where} is {_shown(theirs, begin)}, but the chart has {_shown(mine, begin)}"


def _of_key(mine: object, theirs: Json, where: str, key: str) -> Iterator[str]:
    if key in theirs:
        yield from _differences(mine, theirs[key], where)
    elif mine and SERVER_DEFAULTS.get(key) != mine:
        yield f"{where} is missing, but the chart has {_shown(mine)}"


def _beginning(one: str, other: str) -> int:
    """Return from where two values are shown, so that what differs is among it."""
    pairs = enumerate(zip(one, other, strict=False))
    alike = next((number for number, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))
    return max(0, alike - BEFORE) if max(len(one), len(other)) > SHOWN else 0


def _shown(value: object, begin: int = 0) -> str:
    text = str(value)
    return f"{'...' if begin else ''}{text[begin : begin + SHOWN]!r}{'...' if begin + SHOWN < len(text) else ''}"


def _without_settings(hook: Json) -> dict[str, Any]:
    """Leave out the ``caBundle``, which ``gpu-share certs`` or cert-manager writes, and the chart's timeout."""
    config = {key: value for key, value in (hook.get("clientConfig") or {}).items() if key != "caBundle"}
    return {**{key: value for key, value in hook.items() if key != "timeoutSeconds"}, "clientConfig": config}


NOT_SET: Final = "but the chart does not set it"
RESTORE: Final = (
    "install or restore gpu-share: helm upgrade --install gpu-share deploy/helm/gpu-share -n gpu-share-system "
    "--server-side=true --force-conflicts (Helm 3: without these two options), with the values (and the namespace, if "
    "it differs) that you installed it with"
)
"""Helm 4 applies on the server: what kubectl changed is a conflict, and what it added stays."""
DEPLOYMENT: Final = "gpu-share-webhook"
OURS: Final = "app.kubernetes.io/part-of=gpu-share"
"""Selects the workloads of gpu-share, and their pods."""
VERSION_LABEL: Final = "app.kubernetes.io/version"
UNKNOWN: Final = "0"
"""Version of a checkout that was never installed."""
CERTS: Final = "/gpu-share-certs"
CERT_MANAGER: Final = "cert-manager.io/inject-ca-from"
MIN_MEMORY: Final = "GPU_SHARE_MIN_MEMORY"
MAX_MEMORY: Final = "GPU_SHARE_MAX_MEMORY"
DEFAULTS: Final[Mapping[str, str]] = {MIN_MEMORY: f"{defaults.MIN_MEMORY_MIB}Mi", MAX_MEMORY: ""}
BINDINGS: Final = "validatingadmissionpolicybindings"
POLICIES: Final = ("validatingadmissionpolicies", BINDINGS)
WEBHOOK: Final = ("mutatingwebhookconfigurations", "services")
WORKLOADS: Final = ("daemonset/gpu-share-enforcer", "deployment/gpu-share-webhook", "deployment/gpu-share-certs")
"""Each has an account of its own name."""
ROLES: Final = ("serviceaccounts", "clusterroles", "clusterrolebindings", "roles", "rolebindings")
CLASSES: Final = ("deviceclasses",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The release on the cluster: its namespace and version, and the environment of its webhook.

    ``version`` is empty while the webhook's Deployment is missing.
    """

    namespace: str = defaults.SYSTEM_NAMESPACE
    version: str = ""
    replicas: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    cert_manager: bool = False
    """Whether cert-manager makes the certificates, and not ``gpu-share-certs``."""

    @property
    def settings(self) -> Settings:
        """What the environment of its webhook says; where a variable cannot be parsed, or is not there, its default."""
        return Settings.from_environment(dict(each for each in self.environment.items() if _parses(*each)))

    @property
    def of_another_release(self) -> bool:
        """Whether the release is known to be another one than this command line's."""
        return UNKNOWN not in {installed(), self.version or UNKNOWN} and installed() != self.version

    @property
    def comparable(self) -> bool:
        """Whether the release is there and may be this command line's."""
        return bool(self.version) and not self.of_another_release

    @property
    def certificate_log(self) -> str:
        """The command that shows why the serving certificate is not renewed."""
        if self.cert_manager:
            return f"kubectl describe certificate -n {self.namespace} {DEPLOYMENT}"
        return f"kubectl logs -n {self.namespace} deployment/gpu-share-certs"


def _parses(name: str, value: str) -> bool:
    """Tell whether this release can parse a variable of a webhook that may be of another one."""
    try:
        Settings.from_environment({name: value})
    except GpuShareError:
        return False
    return True


def installation(api: KubeClient) -> Installation:
    """Find the release in the namespace that the webhook configuration names.

    No labels of other namespaces are searched: a tenant can write those.
    """
    namespace, cert_manager = release_namespace(api), by_cert_manager(api)
    named = api.list(path(APPS_V1, "deployments", namespace=namespace), labelSelector=OURS)[0]
    found = [each for each in named if text(mapping(each, "metadata"), "name") == DEPLOYMENT]
    if not found:
        return Installation(namespace=namespace, cert_manager=cert_manager)
    metadata, spec = mapping(found[0], "metadata"), mapping(found[0], "spec")
    containers = objects(mapping(mapping(spec, "template"), "spec"), "containers")
    return Installation(
        namespace=text(metadata, "namespace"),
        version=clean(text(mapping(metadata, "labels"), VERSION_LABEL)),
        replicas=int(spec.get("replicas", 1)),
        environment={text(each, "name"): text(each, "value") for one in containers for each in objects(one, "env")},
        cert_manager=cert_manager,
    )


def shipped(found: Installation) -> dict[str, list[Json]]:
    """Return what this release ships, by API path; each with its variants, of which the chart's values choose."""
    content = (resources.files("gpushare_cli.check") / "shipped.json").read_text(encoding="utf-8")
    values = {**DEFAULTS, **found.environment}
    for placeholder, value in (
        ("@NAMESPACE@", found.namespace), ("@MIN_MEMORY@", values[MIN_MEMORY]), ("@MAX_MEMORY@", values[MAX_MEMORY]),
    ):  # fmt: skip
        content = content.replace(placeholder, json.dumps(value)[1:-1])
    read: dict[str, list[Json]] = json.loads(content)
    return read


def as_shipped(api: KubeClient, kinds: tuple[str, ...]) -> CheckResult:
    """Compare every object of these kinds with what this release ships."""
    found = installation(api)
    wanted = {where: variants for where, variants in shipped(found).items() if where.split("/")[-2] in kinds}
    if found.cert_manager:
        wanted = {where: variants for where, variants in wanted.items() if not where.endswith(CERTS)}
    wrong = list(_wrong(api, wanted, content=not found.of_another_release))
    if not wrong and found.of_another_release:
        detail = f"content not compared: the release is {found.version}, and this command line is {installed()}"
        return warning(detail, f"run the check with the command line of {found.version}")
    if not wrong:
        return ok(f"{len(wanted)} as shipped")
    return failed(f"{len(wrong)} of {len(wanted)} differ from the chart: {some(wrong)}", _restoring(wrong, found))


def _restoring(wrong: Sequence[str], found: Installation) -> str:
    """Say how objects get their content back.

    One that differs is made again: applying it leaves what others put into it, and cannot change all fields.
    """
    changed = [name for name, _, difference in (each.partition(": ") for each in wrong) if difference]
    first = f"kubectl delete -n {found.namespace} {' '.join(changed)}; then " if changed else ""
    missing = {each.removesuffix(" is missing") for each in wrong}
    gone = [each for each in WORKLOADS if f"serviceaccounts/{each.partition('/')[2]}" in missing]
    restart = f"kubectl rollout restart -n {found.namespace} {' '.join(gone)}"
    last = f"; then restart the pods that hold tokens of the deleted account: {restart}"
    return f"{first}{RESTORE}{last if gone else ''}"


def _wrong(api: KubeClient, wanted: Mapping[str, list[Json]], *, content: bool) -> Iterator[str]:
    """Name the objects that are missing or differ; of another release the bindings alone are compared."""
    for where, variants in wanted.items():
        name = "/".join(where.split("/")[-2:])
        live = find(api, where)
        if live is None:
            yield f"{name} is missing"
        elif "deletionTimestamp" in mapping(live, "metadata"):
            yield f"{name} is being deleted"
        elif (content or BINDINGS in where) and (found := difference(variants, compared(live) or {})) is not None:
            yield f"{name}: {found}"


def by_cert_manager(api: KubeClient) -> bool:
    """Tell whether cert-manager makes the certificates, and the release has no job of its own for them."""
    found = find(api, CONFIGURATION) or {}
    return CERT_MANAGER in mapping(mapping(found, "metadata"), "annotations")
