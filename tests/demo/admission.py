"""The demo's API server: two pods, and the reviews it would send for them, over TLS verified against the demo's CA."""

import base64
import http.client
import json
import ssl
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jsonpatch
import yaml

from gpushare import contract
from gpushare_cli.terminal import Terminal, diff
from tests.demo.children import ROOT, Child, Children, DemoError, wait_for
from tests.testbed.cluster.ports import free_ports

NAMESPACE: Final = "asr"
HOST: Final = "127.0.0.1"
START_SECONDS: Final = 20.0
MEMORY: Final = "4Gi"
QUOTA_MIB: Final = 4096


def namespace() -> dict[str, Any]:
    """Return the namespace of the demo: opted in, with a short grace period so that nobody waits."""
    metadata = {
        "name": NAMESPACE,
        "labels": {contract.NAMESPACE_LABEL: "true"},
        "annotations": {contract.GRACE_PERIOD: "2s"},
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def pod(name: str) -> dict[str, Any]:
    """Return a pod as a person would write it: two annotations and a container."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "annotations": {contract.MEMORY: MEMORY, contract.COMPUTE: "25%"},
        },
        "spec": {
            "securityContext": {"runAsNonRoot": True},
            "containers": [{"name": "model", "image": "pytorch/pytorch", "command": ["python", "serve.py"]}],
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A running webhook: where it is and which authority vouches for it."""

    child: Child
    port: int
    authority: Path

    def mutate(self, asked: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Send one pod's review; return the pod as patched, and the patch.

        Raises:
            DemoError: refused, or the answer belongs to another request.
        """
        uid = str(uuid.uuid4())
        response = self._post(_review(asked, uid))["response"]
        if not response["allowed"] or response["uid"] != uid:
            raise DemoError(f"the webhook did not admit {asked['metadata']['name']}: {response}")
        patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
        return jsonpatch.apply_patch(asked, patch), patch

    def _post(self, review: dict[str, Any]) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        connection = http.client.HTTPSConnection(HOST, self.port, timeout=5, context=context)
        try:
            connection.request("POST", "/mutate", json.dumps(review), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise DemoError(f"the webhook answered {answer.status}: {body[:200]!r}")
        found: dict[str, Any] = json.loads(body)
        return found


def start(children: Children, folder: Path) -> Webhook:
    """Make certificates with ``gpu-share certs`` and start ``gpu-share webhook``; return when it is ready."""
    certificates = folder / "certs"
    _certificates(certificates)
    namespaces = folder / "namespaces.json"
    namespaces.write_text(json.dumps(namespace()))
    port, admin = free_ports(2)
    child = children.python(
        "webhook",
        *("-m", "gpushare_cli", "webhook", "--bind", f"{HOST}:{port}", "--admin", f"{HOST}:{admin}"),
        *("--certs", str(certificates), "--namespaces", str(namespaces)),
    )
    wait_for("the webhook's answer on /readyz", START_SECONDS, lambda: ready(admin), child)
    return Webhook(child=child, port=port, authority=certificates / "ca.crt")


def ready(port: int) -> bool:
    """Ask a process's admin port whether it is ready."""
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()


def shown(before: dict[str, Any], after: dict[str, Any], terminal: Terminal) -> list[str]:
    """Return the rewriting as a coloured diff short enough to read: the sidecar's body is left out."""
    short = json.loads(json.dumps(after))
    for container in short["spec"].get("initContainers", []):
        if container["name"] == contract.SIDECAR:
            kept = {key: container[key] for key in ("name", "image", "restartPolicy")}
            container.clear()
            container.update(kept | {"...": "left out here; gpu-share inject shows it"})
    return diff(_compact(before), _compact(short), ("as written", "as admitted"), terminal, context=1)


def _compact(value: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, default_flow_style=None, width=160)
    return text


def _certificates(folder: Path) -> None:
    folder.mkdir()
    command = [sys.executable, "-m", "gpushare_cli", "certs", "--dir", str(folder), "--ip", HOST, "--settle", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=START_SECONDS)
    if done.returncode != 0:
        raise DemoError(f"gpu-share certs ended with {done.returncode}: {done.stderr.strip()}")


def _review(asked: dict[str, Any], uid: str) -> dict[str, Any]:
    pods = {"group": "", "version": "v1", "resource": "pods"}
    request = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": pods,
        "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
        "requestResource": pods,
        "operation": "CREATE",
        "namespace": NAMESPACE,
        "name": asked["metadata"]["name"],
        "userInfo": {"username": "demo", "groups": ["system:authenticated"]},
        "object": asked,
        "oldObject": None,
        "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
