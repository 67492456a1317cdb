"""The manifests as shipped in deploy/manifests/install.yaml, made fit for a control plane without nodes.

How to use it (``cluster`` is a ``gpushare.kube_client.KubeClient`` of an administrator)::

    from tests.integration.controlplane import manifests

    objects = manifests.control_plane("https://127.0.0.1:8443/mutate", ca_bundle=pem_bytes)
    manifests.apply(cluster, objects)               # server-side apply, in order, safe to repeat
    manifests.wait_for_policies(cluster, "team-a")  # an opted-in namespace: until policies and webhook are in force

``load()`` gives every document untouched, ``control_plane()`` leaves out what needs nodes (``WORKLOADS``) and changes
webhooks alone: ``clientConfig`` becomes ``{url, caBundle}`` with a longer ``timeoutSeconds``, and stays where no URL is
given. ``without_webhook(objects)`` leaves the webhook configuration out, so that the policies are met alone.
"""

import base64
import copy
import os
import time
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Final

import yaml

from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient, path
from tests.support.patience import patient

Object = dict[str, Any]
FILE: Final = Path(__file__).resolve().parents[3] / "deploy" / "manifests" / "install.yaml"
APPLY: Final = "application/apply-patch+yaml"
FIELD_MANAGER: Final = "gpu-share-tests"
WORKLOADS: Final = frozenset({"CronJob", "DaemonSet", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget"})
WEBHOOK_CONFIGURATION: Final = "MutatingWebhookConfiguration"
PROBE: Final = "probe-of-policies"
WEBHOOK_SECONDS: Final = 30
"""Instead of the few that are shipped: a busy machine is no reason to refuse a pod."""
_probes: Final = count()
CLUSTER_WIDE: Final = frozenset(
    {
        "ClusterRole",
        "ClusterRoleBinding",
        "DeviceClass",
        "MutatingWebhookConfiguration",
        "Namespace",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
)
PLURALS: Final = {
    "DeviceClass": "deviceclasses",
    "NetworkPolicy": "networkpolicies",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
}
"""The kinds whose plural is not their lower-case name with an s."""


def load() -> list[Object]:
    """Every shipped document, in order."""
    return [document for document in yaml.safe_load_all(FILE.read_text()) if document]


def control_plane(url: str | None = None, *, ca_bundle: bytes = b"") -> list[Object]:
    """What a control plane without nodes can hold; ``ca_bundle`` is PEM. See the module's docstring."""
    objects = [copy.deepcopy(o) for o in load() if o["kind"] not in WORKLOADS]
    for configuration in (o for o in objects if o["kind"] == WEBHOOK_CONFIGURATION):
        for webhook in configuration["webhooks"]:
            if url is not None:
                there = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {
                    "url": url.replace("/mutate", there),
                    "caBundle": base64.b64encode(ca_bundle).decode(),
                }
                webhook["timeoutSeconds"] = WEBHOOK_SECONDS
    return objects


def without_webhook(objects: Iterable[Object]) -> list[Object]:
    """The same without the webhook configuration."""
    return [o for o in objects if o["kind"] != WEBHOOK_CONFIGURATION]


def where(item: Mapping[str, Any]) -> str:
    """The API path of an object."""
    version, kind, metadata = item["apiVersion"], item["kind"], item["metadata"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = "" if kind in CLUSTER_WIDE else metadata.get("namespace", "default")
    return path(base, PLURALS.get(kind, f"{kind.lower()}s"), metadata["name"], namespace)


def apply(cluster: KubeClient, objects: Iterable[Object], **query: str) -> list[Object]:
    """Server-side apply, in order; ``dryRun="All"`` and the like go into the query. Returns what the server made."""
    query = {"fieldManager": FIELD_MANAGER, "force": "true", **query}
    return [cluster.patch(where(o), o, APPLY, **query) for o in objects]


def delete(cluster: KubeClient, objects: Iterable[Object]) -> None:
    """Delete in reverse order; what is gone already is fine."""
    for item in reversed(list(objects)):
        try:
            cluster.delete(where(item))
        except ClusterError as error:
            if error.status != 404:
                raise


def wait_for_policies(cluster: KubeClient, namespace: str, *, seconds: float = 30.0) -> None:
    """Return once the API server acts on every policy written so far: another one, written now, refuses a dry run.

    It looks about once a second which there are, in the order in which they were written: the first of ours can be in
    force a second before the last. ``namespace`` has to be opted in; a forged managed label is refused in it, too.

    Raises:
        TimeoutError: they are not in force after ``seconds``.
    """
    # Of a name of its own: one that was deleted is in force until the next look.
    probe = f"{PROBE}-{os.getpid()}-{next(_probes)}"
    last = [_policy(probe), _binding(probe)]
    apply(cluster, last)
    try:
        for name, labels, refused_by in (
            (probe, {}, probe), ("forged", {"gpu-share.io/managed": "true"}, "gpu-share-last-word"),
        ):  # fmt: skip
            pod = {
                "metadata": {"name": name, "labels": labels},
                "spec": {"containers": [{"name": "a", "image": "a"}], "automountServiceAccountToken": False},
            }
            _wait_for_refusal(cluster, path("/api/v1", "pods", namespace=namespace), pod, refused_by, seconds)
    finally:
        delete(cluster, last)


def _wait_for_refusal(cluster: KubeClient, where: str, pod: Object, by: str, seconds: float) -> None:
    deadline = time.monotonic() + patient(seconds)
    while time.monotonic() < deadline:
        try:
            cluster.create(where, pod, dryRun="All")
        except ClusterError as error:
            if by in error.message:
                return
        time.sleep(0.1)
    raise TimeoutError(f"the policies are not in force after {seconds} s")


def _policy(name: str) -> Object:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": f"object.metadata.?name.orValue('') != '{name}'"}],
        },
    }


def _binding(name: str) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
