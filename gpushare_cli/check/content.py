"""Compare objects of the API server with what a release ships, whatever defaults the server adds. Pure.

``gpu-share check`` compares content and no digest of it, because a spec can be edited after it was installed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import contract

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
                yield f"{where}.{key}".lstrip(".") + f" is {_shown(theirs[key])}, but the chart does not set it"
    elif isinstance(mine, list) and isinstance(theirs, list):
        for number, (one, other) in enumerate(zip(mine, theirs, strict=False)):
            yield from _differences(one, other, f"{where}[{number}]")
        for number, one in list(enumerate(mine))[len(theirs) :]:
            yield f"{where}[{number}] is missing, but the chart has {_shown(one)}"
        for number, other in list(enumerate(theirs))[len(mine) :]:
            yield f"{where}[{number}] is {_shown(other)}, but the chart does not set it"
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
