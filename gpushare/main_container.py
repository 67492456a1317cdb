"""Choose the main container of a pod: the one that pod-wide annotations mean. Pure.

Admission, Prepare and the command line all ask here, so that they agree, also after another webhook inserted a
container of its own. Raw containers in; what has another type counts as absent.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import contract
from gpushare.annotation_table import CONTAINER_PREFIXES, PREFIX_OF

Object = Mapping[str, Any]
PROXIES: Final = frozenset(
    {
        "azwi-proxy",  # Azure Workload Identity
        "cloud-sql-proxy",  # Google Cloud SQL Auth Proxy, by its documentation
        "cloudsql-proxy",
        "consul-dataplane",  # Consul service mesh
        "daprd",  # Dapr
        "datadog-agent-injected",
        "envoy",  # AWS App Mesh
        "envoy-sidecar",  # Consul before its dataplane
        "filebeat",
        "fluent-bit",
        "fluentd",
        "gke-gcsfuse-metadata-prefetch",  # GKE: Cloud Storage FUSE
        "gke-gcsfuse-sidecar",
        "istio-proxy",  # Istio, Google's and Alibaba's service mesh
        "jaeger-agent",
        "kube-rbac-proxy",
        "kuma-sidecar",  # Kuma, Kong Mesh
        "linkerd-proxy",  # Linkerd
        "oauth-proxy",  # OpenShift AI
        "oauth2-proxy",
        "otc-container",  # OpenTelemetry operator
        "promtail",
        "queue-proxy",  # Knative, KServe
        "tcpx-daemon",  # GKE: GPUDirect-TCPX
        "tcpxo-daemon",
        "traffic-agent",  # Telepresence
        "vault-agent",  # HashiCorp Vault
        "xray-daemon",  # AWS App Mesh
    }
)
"""Names of containers that other programs insert, or that carry traffic for another container: never the main one.

Only names whose role is clear: a program that needs a GPU must not be mistaken for a proxy.
"""
PREFIXES: Final = (
    "consul-dataplane-",  # Consul, one for each service of the pod
    "csql-",  # Google's Cloud SQL operator
    "fluid-fuse",  # Fluid, one for each data set
    "jfs-mount",  # JuiceFS
)
"""Beginnings of such names that the inserting program completes."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The main container by name, and the other app containers that pod-wide annotations could have meant.

    ``others`` is empty where the pod itself decides: by ``default-container``, because a container uses our claim
    already, or because annotations name each container that shares.
    """

    name: str
    others: tuple[str, ...] = ()


def main_container(annotations: Mapping[str, Any], apps: Sequence[Object]) -> str:
    """Name the main container; see ``choose``."""
    return choose(annotations, apps).name


def choose(annotations: Mapping[str, Any], apps: Sequence[Object]) -> Choice:
    """Choose the main container.

    The container that already uses our claim; else the one that ``default-container`` names, unless that is a known
    proxy; else the first that is no known proxy. Where several use our claim, the others are there for annotations that
    name them: the main one is the one without such an annotation. If all have one, it is the one that
    ``default-container`` names, else one that lacks an amount which stands pod-wide. Else it is any of them, if
    ``default-container`` is there and names no container that can be the main one.

    Args:
        annotations: the pod's.
        apps: its app containers in their order, at least one.
    """
    names = [str(each.get("name")) for each in apps]
    using = [str(each.get("name")) for each in apps if uses_our_claim(each)]
    default = annotations.get(contract.DEFAULT_CONTAINER)
    eligible = [name for name in names if name == default and not is_proxy(name)]
    unnamed = [name for name in using if not _named(annotations, name)]
    candidates = unnamed
    if using and not unnamed and amounts(annotations):
        candidates = [name for name in using if name in eligible or _lacks(annotations, name)]
        if not candidates and not eligible and default is not None:  # which the first rewrite found too, or wrote
            candidates = using
    name = _first(candidates or names, default)
    possible = names if not candidates and name != default and _is_open(annotations) else ()
    others = [each for each in possible if each != name and not is_proxy(each) and not _named(annotations, each)]
    return Choice(name, tuple(others))


def is_proxy(name: object) -> bool:
    """Tell whether a container of this name is a known proxy."""
    return isinstance(name, str) and (name in PROXIES or name.startswith(PREFIXES))


def key_for(annotations: Mapping[str, Any], name: str) -> str:
    """Return the annotation that gives a container by its name what the pod's annotations give the main one."""
    prefix = next((prefix for wide, prefix in PREFIX_OF.items() if wide in annotations), contract.MEMORY_OF)
    return prefix + name


def amounts(annotations: Mapping[str, Any]) -> int:
    """Count the pod-wide annotations of an amount."""
    return len(PREFIX_OF.keys() & annotations.keys())


def uses_our_claim(container: Object) -> bool:
    """Tell whether an app container uses its own request of our claim, which is what the webhook writes."""
    resources = container.get("resources")
    claims = resources.get("claims") if isinstance(resources, dict) else None
    return isinstance(claims, list) and {"name": contract.CLAIM, "request": container.get("name")} in claims


def _first(names: Collection[str], default: object) -> str:
    able = [name for name in names if not is_proxy(name)]
    return str(default) if default in able else [*able, *names][0]


def _named(annotations: Mapping[str, Any], name: str) -> bool:
    return not annotations.keys().isdisjoint([prefix + name for prefix in CONTAINER_PREFIXES])


def _is_open(annotations: Mapping[str, Any]) -> bool:
    """Tell whether some annotation means the main container, or none says which container shares."""
    wide = not PREFIX_OF.keys().isdisjoint(annotations)
    return wide or not any(key.startswith(CONTAINER_PREFIXES) for key in annotations)


def _lacks(annotations: Mapping[str, Any], name: str) -> bool:
    """Tell whether some amount stands pod-wide and not for this container by its name; an instance lacks none."""
    return contract.MIG_PROFILE_OF + name not in annotations and any(
        wide in annotations and prefix + name not in annotations for wide, prefix in PREFIX_OF.items()
    )
