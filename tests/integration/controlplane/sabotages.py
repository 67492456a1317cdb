"""Sabotages of a release, each with the question of ``gpu-share check`` that finds it and a part of its answer."""

from collections.abc import Callable
from typing import Any, Final

from gpushare import contract
from gpushare.kube_client import CORE_V1, MERGE_PATCH, RESOURCE_V1, path
from tests.integration.controlplane.bed import SLICES, SYSTEM
from tests.integration.controlplane.release import (
    BINDINGS,
    CLASS,
    POLICIES,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    WEBHOOK,
    Release,
    scaled_to_nothing,
    second_driver,
    unready,
)

Change = Callable[[Release], object]


def annotate_report(release: Release, node: str, value: str | None) -> None:
    note = {"metadata": {"annotations": {contract.ENFORCER: value}}}
    release.cluster.patch(path(RESOURCE_V1, SLICES, f"{node}-{contract.DRIVER}"), note, MERGE_PATCH)


def first_rule(item: Any) -> Any:
    return item["webhooks"][0]


SABOTAGES: Final[dict[str, tuple[str, str, Change]]] = {
    "the Service has a wrong port": (
        "webhook configuration and Service", "services/gpu-share-webhook: ports[0].targetPort is 'http'",
        lambda r: r.edit(SERVICE, lambda item: item["spec"]["ports"][0].update(targetPort="http")),
    ),
    "the Service selects nothing": (
        "webhook configuration and Service", "services/gpu-share-webhook: selector",
        lambda r: r.edit(SERVICE, lambda item: item["spec"]["selector"].update(app="other")),
    ),
    "the Service answers on the node of the caller alone": (
        "webhook configuration and Service", "services/gpu-share-webhook: internalTrafficPolicy is 'Local'",
        lambda r: r.edit(SERVICE, lambda item: item["spec"].update(internalTrafficPolicy="Local")),
    ),
    "a binding is deleted": (
        "policies and their bindings", "validatingadmissionpolicybindings/gpu-share-last-word is missing",
        lambda r: r.delete(f"{BINDINGS}/gpu-share-last-word"),
    ),
    "a binding audits": (
        "policies and their bindings", "gpu-share-slices: validationActions[0] is 'Audit', but the chart has 'Deny'",
        lambda r: r.edit(f"{BINDINGS}/gpu-share-slices", lambda item: item["spec"].update(validationActions=["Audit"])),
    ),
    "a binding matches nothing": (
        "policies and their bindings", "gpu-share-frozen: matchResources is",
        lambda r: r.edit(f"{BINDINGS}/gpu-share-frozen", lambda item: item["spec"].update(
            matchResources={"namespaceSelector": {"matchLabels": {"a": "b"}}})),
    ),
    "an expression is edited": (
        "policies and their bindings", "gpu-share-last-word: validations[2].expression is 'true'",
        lambda r: r.edit(
            f"{POLICIES}/gpu-share-last-word", lambda item: item["spec"]["validations"][2].update(expression="true")),
    ),
    "a policy has another condition": (
        "policies and their bindings", "gpu-share-namespaces: matchConditions",
        lambda r: r.edit(f"{POLICIES}/gpu-share-namespaces", lambda item: item["spec"].setdefault(
            "matchConditions", []).append({"name": "never", "expression": "false"})),
    ),
    "a policy fails open": (
        "policies and their bindings", "gpu-share-claims: failurePolicy is 'Ignore'",
        lambda r: r.edit(f"{POLICIES}/gpu-share-claims", lambda item: item["spec"].update(failurePolicy="Ignore")),
    ),
    "the webhook fails open": (
        "webhook configuration and Service", "webhooks[0].failurePolicy is 'Ignore', but the chart has 'Fail'",
        lambda r: r.edit(WEBHOOK, lambda item: first_rule(item).update(failurePolicy="Ignore")),
    ),
    "the webhook skips namespaces": (
        "webhook configuration and Service", "webhooks[0].namespaceSelector.matchLabels",
        lambda r: r.edit(WEBHOOK, lambda item: first_rule(item)["namespaceSelector"]["matchLabels"].update(team="a")),
    ),
    "the webhook skips pods": (
        "webhook configuration and Service", "webhooks[0].objectSelector",
        lambda r: r.edit(WEBHOOK, lambda item: first_rule(item).update(objectSelector={"matchLabels": {"a": "b"}})),
    ),
    "a rule of a role is removed": (
        "accounts, roles and their bindings", "clusterroles/gpu-share-enforcer: rules",
        lambda r: r.edit(ROLE, lambda item: item["rules"].pop()),
    ),
    "a role has one more right": (
        "accounts, roles and their bindings", "gpu-share-enforcer: rules[0].verbs[1] is 'patch'",
        lambda r: r.edit(ROLE, lambda item: item["rules"][0]["verbs"].append("patch")),
    ),
    "a role's binding is deleted": (
        "accounts, roles and their bindings", "clusterrolebindings/gpu-share-webhook is missing",
        lambda r: r.delete(ROLE_BINDING),
    ),
    "an account is deleted": (
        "accounts, roles and their bindings", "serviceaccounts/gpu-share-enforcer is missing",
        lambda r: r.delete(path(CORE_V1, "serviceaccounts", "gpu-share-enforcer", SYSTEM)),
    ),
    "Pod Security refuses the next enforcer": (
        "Pod Security of the release's namespace", "pod-security.kubernetes.io/enforce=baseline",
        lambda r: r.edit(path(CORE_V1, "namespaces", SYSTEM), lambda item: item["metadata"]["labels"].update(
            {"pod-security.kubernetes.io/enforce": "baseline"})),
    ),
    "a node publishes nothing": (
        "nodes that share their GPUs", "2 labelled; without a device in a ResourceSlice: check-b",
        lambda r: r.delete(path(RESOURCE_V1, SLICES, f"check-b-{contract.DRIVER}")),
    ),
    "a DeviceClass is missing": (
        "DeviceClasses", "deviceclasses/gpu-share.io is missing",
        lambda r: r.delete(CLASS),
    ),
    "the caBundle is gone": (
        "webhook certificate", "gpu-share has no caBundle",
        lambda r: r.edit(WEBHOOK, lambda item: first_rule(item)["clientConfig"].pop("caBundle")),
    ),
    "the caBundle of the check's webhook is gone": (
        "webhook certificate", "check.gpu-share.io of gpu-share has no caBundle",
        lambda r: r.edit(WEBHOOK, lambda item: item["webhooks"][1]["clientConfig"].pop("caBundle")),
    ),
    "the webhook configuration is gone": (
        "webhook certificate", "missing: pods", lambda r: r.delete(WEBHOOK),
    ),
    "the webhook is scaled to nothing": (
        "webhook replicas", "0 of 0 ready",
        scaled_to_nothing,
    ),
    "a labelled node has no enforcer": (
        "enforcers", "not ready on 1 node: check-b",
        lambda r: unready(r, "gpu-share-enforcer", "check-b"),
    ),
    "a labelled node has no MPS pod": (
        "MPS pods", "not ready on 1 node: check-a",
        lambda r: unready(r, "gpu-share-mps", "check-a"),
    ),
    "the circuit breaker is open": (
        "enforcer reports", "check-b: circuit breaker open since 2026-11-24T10:00:00Z: the enforcer kills nothing",
        lambda r: r.report("check-b", breaker="2026-11-24T10:00:00Z"),
    ),
    "the audit log cannot be written": (
        "enforcer reports", "check-a: audit log: no space left on device",
        lambda r: r.report("check-a", auditLog="no space left on device"),
    ),
    "an enforcer has a problem": (
        "enforcer reports", "check-a: NVML is away", lambda r: r.report("check-a", problems=["NVML is away"]),
    ),
    "a report is damaged": (
        "enforcer reports", "no valid report from check-b",
        lambda r: annotate_report(r, "check-b", "junk"),
    ),
    "a report is missing": (
        "enforcer reports", "no valid report from check-a",
        lambda r: annotate_report(r, "check-a", None),
    ),
    "an enforcer is newer than the webhook": (
        "versions", "not supported with this webhook: check-a (99.1.0)",
        lambda r: r.report("check-a", version="99.1.0"),
    ),
    "a second driver publishes the GPU": (
        "GPUs of two drivers", "check-a: gpu-0 of gpu.nvidia.com", lambda r: second_driver(r.cluster, "check-a"),
    ),
}  # fmt: skip
