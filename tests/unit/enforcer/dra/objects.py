"""Pods and claims as the API server has them: pods go through the real rewriting, claims come from their templates."""

import uuid
from typing import Any

from enforcer.resourceslices.devices import STATUS_DEVICE
from gpushare import contract
from gpushare.findings import Findings
from gpushare.namespace_policy import NamespacePolicy
from tests.unit.enforcer.made import DEVICE
from webhook.mutation.podview import read_pod
from webhook.mutation.resourceclaims import claim_plan, template_for
from webhook.mutation.rewrite import rewrite
from webhook.mutation.settings import Settings
from webhook.mutation.share_request import planning, read_asked

Object = dict[str, Any]
NODE = "gpu-7"
NAMESPACE = "asr"
MIB = 1024 * 1024
OPTED_IN = {contract.NAMESPACE_LABEL: "true"}


def made_uid(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def container(name: str, **more: Any) -> Object:
    return {"name": name, "image": "tts", **more}


def pod(
    name: str, annotations: dict[str, str], *apps: Object, inits: tuple[Object, ...] = (),
    policy: NamespacePolicy | None = None,
) -> Object:  # fmt: skip
    """A pod as it is after admission, bound to the node."""
    policy = policy or NamespacePolicy()
    written: Object = {
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
        "spec": {"containers": list(apps or [container("model")]), "initContainers": list(inits)},
    }
    view, findings = read_pod(written), Findings()
    plan = planning(findings, view, read_asked(view, view.annotations), policy, Settings())
    admitted = rewrite(findings, view, plan, claim_plan(plan), policy, Settings())
    assert not findings.problems
    return bound(admitted)


def bound(admitted: Object) -> Object:
    name = admitted["metadata"]["name"]
    entries = admitted["spec"].get("resourceClaims") or []
    statuses = [{"name": each["name"], "resourceClaimName": f"{name}-{each['name']}"} for each in entries]
    return {
        **admitted,
        "metadata": {**admitted["metadata"], "uid": made_uid(name)},
        "spec": {**admitted["spec"], "nodeName": NODE},
        "status": {"resourceClaimStatuses": statuses},
    }


def claim(admitted: Object, device: str = DEVICE, **devices: str) -> Object:
    """The claim of an admitted pod, allocated: every request on ``device`` but those of ``devices``.

    Several devices of a request are divided by blanks.
    """
    template = template_for(admitted)
    assert template is not None
    results = [
        result(each, name)
        for each in template["spec"]["spec"]["devices"]["requests"]
        for name in devices.get(each["name"].replace("-", "_"), device).split()
    ]
    return allocated(f"{admitted['metadata']['name']}-{contract.CLAIM}", admitted, *results)


def result(request: Object, device: str) -> Object:
    exactly = request["exactly"]
    found: Object = {"request": request["name"], "driver": contract.DRIVER, "pool": NODE, "device": device}
    found["shareID"] = made_uid(f"{request['name']}-{device}")
    if exactly["deviceClassName"] == contract.STATUS_DEVICE_CLASS:
        return found | {"device": STATUS_DEVICE}
    return found | {"consumedCapacity": {contract.CAPACITY_COMPUTE: "0", **exactly["capacity"]["requests"]}}


def gpu(request: str, mib: int, compute: int = 0, device: str = DEVICE, **more: Any) -> Object:
    consumed = {contract.CAPACITY_MEMORY: f"{mib}Mi", contract.CAPACITY_COMPUTE: str(compute)}
    found = {"request": request, "driver": contract.DRIVER, "pool": NODE, "device": device}
    return found | {"consumedCapacity": consumed, **more}


def allocated(name: str, user: Object, *results: Object) -> Object:
    reserved = {"resource": "pods", "name": user["metadata"]["name"], "uid": user["metadata"]["uid"]}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": made_uid(f"claim {name}")},
        "status": {"allocation": {"devices": {"results": list(results)}}, "reservedFor": [reserved]},
    }


def by_hand(name: str, claims: dict[str, str], *apps: Object, inits: tuple[Object, ...] = ()) -> Object:
    """A pod that nobody rewrote, with claims it names itself: entry to claim."""
    entries = [{"name": entry, "resourceClaimName": target} for entry, target in claims.items()]
    spec = {"containers": list(apps), "initContainers": list(inits), "resourceClaims": entries, "nodeName": NODE}
    return {"metadata": {"name": name, "namespace": NAMESPACE, "uid": made_uid(name)}, "spec": spec, "status": {}}


def using(name: str, *requests: str | None, entry: str = "gpu", **more: Any) -> Object:
    """A container that uses requests of a claim, or with ``None`` all of it."""
    claims = [{"name": entry} | ({"request": each} if each else {}) for each in requests]
    return container(name, resources={"claims": claims}, **more)


def namespace(annotations: dict[str, str] | None = None) -> Object:
    return {"metadata": {"name": NAMESPACE, "uid": "ns", "labels": OPTED_IN, "annotations": annotations or {}}}
