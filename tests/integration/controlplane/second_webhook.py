"""Run a second mutating webhook beside ours: a service mesh, a policy engine or a sidecar injector, as one function.

How to use it::

    with second_webhook(bed.cluster, "kyverno-cfg", add_digests, namespaces=[namespace]) as other:
        made = bed.create(namespace, objects.pod("a", "4Gi"))
    assert other.seen                   # the pods that reached it, each as it came

The API server calls webhooks in the order of their configurations' names: ``a-mesh`` runs before ``gpu-share``,
``z-mesh`` after it. Only pods of ``namespaces`` reach the function, so that tests can share a control plane.
"""

import base64
import copy
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import jsonpatch

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, path
from tests.support.patience import holds_within
from tests.support.pki import Authority, write

Object = dict[str, Any]
Change = Callable[[Object], Object]
"""Gets a copy of the pod, which it may change and return."""
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
CONFIGURATIONS: Final = "mutatingwebhookconfigurations"
NEVER: Final = "Never"
IF_NEEDED: Final = "IfNeeded"
"""Reinvocation policies."""
LOOPBACK: Final = "127.0.0.1"
SECONDS: Final = 30.0


@dataclass(slots=True)
class SecondWebhook:
    """What a running second webhook did. ``failures`` are exceptions of its function; such pods were refused."""

    change: Change
    seen: list[Object] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """The reviews, as the API server wrote them."""
    failures: list[str] = field(default_factory=list)

    def answer(self, body: bytes) -> Object:
        """Answer an AdmissionReview with the JSON Patch between the pod and what the function makes of it."""
        review: Object = json.loads(body)
        request = review["request"]
        self.bodies.append(body)
        pod = request["object"]
        self.seen.append(pod)
        response: Object = {"uid": request["uid"], "allowed": True}
        try:
            patch = jsonpatch.make_patch(pod, self.change(copy.deepcopy(pod))).patch
        except Exception as error:  # noqa: BLE001 - whatever a test's function raises is the test's to see
            self.failures.append(repr(error))
            response |= {"allowed": False, "status": {"message": f"the second webhook failed: {error!r}"}}
        else:
            encoded = base64.b64encode(json.dumps(patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded} if patch else {}
        return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


@contextmanager
def second_webhook(
    cluster: KubeClient, name: str, change: Change, *, namespaces: Sequence[str], reinvocation: str = NEVER
) -> Iterator[SecondWebhook]:
    """Serve ``change`` as a webhook until the block ends; returns once the API server calls it.

    Args:
        cluster: an administrator's connection.
        name: of the MutatingWebhookConfiguration; its place in the alphabet decides the order.
        change: what is done to each new pod.
        namespaces: whose pods it gets.
        reinvocation: ``NEVER`` or ``IF_NEEDED``.
    """
    webhook, authority = SecondWebhook(change), Authority()
    server = _server(webhook, authority)
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.05), daemon=True)
    thread.start()
    where = path(ADMISSION, CONFIGURATIONS)
    try:
        url = f"https://{LOOPBACK}:{server.server_port}/mutate"
        cluster.create(where, _configuration(name, url, authority.bundle, namespaces, reinvocation))
        try:
            for each in namespaces:
                _wait(cluster, webhook, each)
            webhook.seen.clear()
            yield webhook
        finally:
            cluster.delete(f"{where}/{name}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _wait(cluster: KubeClient, webhook: SecondWebhook, namespace: str) -> None:
    """Dry-run plain pods, which our webhook is not called for, until one reaches the second webhook."""
    pod = {
        "metadata": {"generateName": "probe-of-second-webhook-"},
        "spec": {"containers": [{"name": "a", "image": "a"}], "automountServiceAccountToken": False},
    }

    def called() -> bool:
        before = len(webhook.seen)
        with suppress(ClusterError):  # of a function that needs more than a plain pod has
            cluster.create(path(CORE_V1, "pods", namespace=namespace), copy.deepcopy(pod), dryRun="All")
        webhook.failures.clear()
        return len(webhook.seen) > before

    assert holds_within(called, SECONDS), f"the API server does not call the second webhook for {namespace}"


def _server(webhook: SecondWebhook, authority: Authority) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.dumps(webhook.answer(self.rfile.read(int(self.headers["Content-Length"])))).encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
            """Write nothing: the API server's log has it all."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), authority.issue())
        context.load_cert_chain(Path(folder) / "tls.crt", Path(folder) / "tls.key")
    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    # The handshake belongs into the connection's own thread.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server


def _configuration(name: str, url: str, bundle: bytes, namespaces: Sequence[str], reinvocation: str) -> Object:
    named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    webhook = {
        "name": "pods.second.example.com",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url, "caBundle": base64.b64encode(bundle).decode()},
        "failurePolicy": "Fail",
        "reinvocationPolicy": reinvocation,
        "sideEffects": "None",
        "timeoutSeconds": 30,
        "namespaceSelector": {"matchExpressions": [named]},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [webhook],
    }
