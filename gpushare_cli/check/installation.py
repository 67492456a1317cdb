"""Find the release on the cluster, and compare its objects with what this release ships (``shipped.json``).

``make manifests`` renders ``shipped.json`` from the chart.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Final

from gpushare import defaults
from gpushare.kube_client import APPS_V1, KubeClient, path
from gpushare.raw_objects import mapping, objects, text
from gpushare.version import installed
from gpushare_cli.check.content import Json, compared, difference
from gpushare_cli.check.result import CheckResult, failed, ok, warning
from gpushare_cli.lookups import CONFIGURATION, find, release_namespace
from gpushare_cli.words import clean, some

RESTORE: Final = (
    "install or restore gpu-share: helm upgrade --install gpu-share deploy/helm/gpu-share -n gpu-share-system, with "
    "the values (and the namespace, if it differs) that you installed it with"
)
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
    return failed(f"{len(wrong)} of {len(wanted)} differ from the chart: {some(wrong)}", RESTORE)


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
