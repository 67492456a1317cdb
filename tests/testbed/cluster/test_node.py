"""The real node: pods run on it and are reached, restarts harm nobody, nothing stays behind."""

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from tests.support.patience import holds_within
from tests.testbed.cluster import cgroups, images, node_files, pki
from tests.testbed.cluster.archive import BUSYBOX_IMAGE
from tests.testbed.cluster.controlplane import ControlPlane, sweep
from tests.testbed.cluster.errors import BedError
from tests.testbed.cluster.need import require_node
from tests.testbed.cluster.network import run
from tests.testbed.cluster.node import Node

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(300)]
BUILD = Path(__file__).parents[3] / ".build" / "integration"
STARTER = """
import sys, time
from pathlib import Path
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.node import Node
plane = ControlPlane.start(Path(sys.argv[1]), nodes=True)
Node.start(plane)
print("started", flush=True)
time.sleep(600)
"""
HOOK = """
import http.server, json, ssl
class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        uid = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]["uid"]
        response = {"uid": uid, "allowed": False, "status": {"message": "the pod says no"}}
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("", 8443), Hook)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/hook/tls.crt", "/hook/tls.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
ADMISSION_V1 = "/apis/admissionregistration.k8s.io/v1"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    require_node()
    sweep(BUILD)
    plane = ControlPlane.start(BUILD / f"{os.getpid()}-node", nodes=True)
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def node(plane: ControlPlane) -> Node:
    return Node.start(plane)


def test_a_pod_with_a_native_sidecar_runs_and_its_job_completes(node: Node) -> None:
    sidecar = {**_container("side", "echo beside; sleep 600"), "restartPolicy": "Always"}
    _create(node, "job", [_container("main", "echo hello; sleep 1")], init=[sidecar], restart="Never")
    _until(lambda: _pod(node, "job")["status"].get("phase") == "Succeeded")
    assert _kubectl(node, "logs", "job", "-c", "main") == "hello\n"
    assert _kubectl(node, "logs", "job", "-c", "side") == "beside\n"


def test_what_runs_is_attributed_to_its_pod_as_on_a_machine_of_its_own(node: Node) -> None:
    _running(node, "forever", "sleep 600")
    uid = _pod(node, "forever")["metadata"]["uid"]
    # Processes end while they are read, which makes cat complain.
    # A process may end while its file is read; what there is of the others counts.
    cgroups = node.run("sh", "-c", "cat /proc/[0-9]*/cgroup 2>/dev/null || true")
    assert f":/kubepods/besteffort/pod{uid}/" in cgroups


def test_pods_reach_the_api_server_by_its_service_and_it_reaches_pods_by_theirs(node: Node) -> None:
    _running(
        node, "served", "mkdir /www; echo here >/www/index.html; httpd -f -p 8080 -h /www", labels={"app": "served"}
    )
    spec = {"selector": {"app": "served"}, "ports": [{"port": 80, "targetPort": 8080}]}
    _post(node, "services", "served", {"spec": spec})
    _running(node, "asking", "sleep 600")
    _until(
        lambda: (
            "rc=0" in _kubectl(node, "exec", "asking", "--", "sh", "-c", "nc -w 2 10.0.0.1 443 </dev/null; echo rc=$?")
        )
    )
    cluster_ip = node.plane.cluster().get(path(CORE_V1, "services", "served", "default"))["spec"]["clusterIP"]
    _until(lambda: _fetched(node, "asking", f"http://{cluster_ip}/") == "here\n")
    assert _kubectl(node, "get", "--raw", "/api/v1/namespaces/default/services/served:80/proxy/") == "here\n"


def test_pods_outlive_restarts_of_kubelet_and_containerd(node: Node) -> None:
    _running(node, "survivor", "sleep 600")
    before = _pod(node, "survivor")["status"]["containerStatuses"][0]["containerID"]
    node.stop_kubelet()
    node.restart_containerd()
    node.start_kubelet()
    _running(node, "newcomer", "sleep 600")
    status = _pod(node, "survivor")["status"]["containerStatuses"][0]
    assert (status["containerID"], status["restartCount"]) == (before, 0)


def test_pods_outlive_the_api_server_and_new_ones_start_after_its_return(node: Node) -> None:
    _running(node, "patient", "sleep 600")
    stopped = node.plane.drop("kube-apiserver")
    time.sleep(3)
    node.plane.again(stopped)
    _running(node, "later", "sleep 600")
    assert _pod(node, "patient")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_file_of_the_node_is_found_from_outside(node: Node) -> None:
    node.run("sh", "-c", "echo word >/var/run/cdi-like; echo word >/var/lib/x")
    assert node.host("/var/run/cdi-like").read_text() == "word\n"
    assert node.host("/var/lib/x").read_text() == "word\n"
    assert not Path("/var/lib/x").exists()


@pytest.fixture(scope="module")
def product(node: Node) -> dict[str, Any]:
    """A container of our image, which is on the node."""
    node.load_image(images.image())
    return {
        "name": "main",
        "image": f"gpu-share:{images.version()}",
        "imagePullPolicy": "Never",
        "securityContext": {"runAsNonRoot": True},
    }


def test_our_image_runs_there_by_number_and_not_as_root(node: Node, product: dict[str, Any]) -> None:
    _create(node, "ours", [{**product, "args": ["--version"]}], restart="Never")
    _until(lambda: _pod(node, "ours")["status"].get("phase") == "Succeeded")
    assert _kubectl(node, "logs", "ours").strip() == f"gpu-share {images.version()}"


def test_the_api_server_calls_a_webhook_in_a_pod_by_its_service(node: Node, product: dict[str, Any]) -> None:
    keys = node.plane.root / "pki"
    pki.issue(keys, "hook", "hook", names=["hook.default.svc"])
    data = {"server.py": HOOK, "tls.crt": (keys / "hook.crt").read_text(), "tls.key": (keys / "hook.key").read_text()}
    _post(node, "configmaps", "hook", {"data": data})
    mount = [{"name": "hook", "mountPath": "/hook"}]
    container = {**product, "command": ["python3", "/hook/server.py"], "volumeMounts": mount}
    volumes = [{"name": "hook", "configMap": {"name": "hook"}}]
    _create(node, "hook", [container], labels={"app": "hook"}, volumes=volumes)
    _post(
        node, "services", "hook", {"spec": {"selector": {"app": "hook"}, "ports": [{"port": 443, "targetPort": 8443}]}}
    )
    node.plane.cluster().create(
        path(ADMISSION_V1, "validatingwebhookconfigurations"), _hook((keys / "ca.crt").read_bytes())
    )

    def refused() -> bool:
        try:
            _post(node, "secrets", f"tried-{time.monotonic_ns()}", {})
        except ClusterError as error:
            return "the pod says no" in str(error)
        return False

    _until(refused)


def test_two_nodes_live_beside_each_other_and_their_pods_meet(node: Node) -> None:
    second = Node.start(node.plane, "node-2")
    try:
        _running(node, "left", "httpd -f -p 8080 -h /etc", on="node-1")
        _running(node, "right", "sleep 600", on="node-2")
        where = f"http://{_pod(node, 'left')['status']['podIP']}:8080/passwd"
        _until(lambda: "root" in _fetched(node, "right", where))
    finally:
        second.stop()


def test_a_node_that_fails_to_start_leaves_nothing_and_may_be_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    create = cgroups.create

    def noted(name: str, mounted: list[cgroups.Hierarchy]) -> None:
        made.append(name)
        create(name, mounted)

    with monkeypatch.context() as patched, pytest.raises(BedError, match="containerd"):
        patched.setattr(node_files, "CONTAINERD_TOML", "no setting\n")
        patched.setattr(cgroups, "create", noted)
        Node.start(node.plane, "node-3")
    assert len(made) == 1
    assert not [each for each in cgroups.hierarchies() if (each.where / made[0]).exists()]
    assert Node.load(node.plane, "node-3") is None


def test_a_killed_starter_leaves_nothing_that_a_sweep_does_not_remove(tmp_path: Path) -> None:
    require_node()
    root = tmp_path / "plane"
    with subprocess.Popen([sys.executable, "-c", STARTER, str(root)], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "started\n"
        starter.send_signal(signal.SIGKILL)
    plane = ControlPlane.load(root)
    assert plane is not None
    node = Node.load(plane)
    assert node is not None
    mounted, bridge = cgroups.hierarchies(), node._network.bridge
    _running(node, "orphan", "sleep 600")
    assert cgroups.pids(node.cgroup, mounted)
    mounts = Path("/proc/self/mounts").read_text()
    assert str(root) not in mounts
    sweep(tmp_path)
    assert not root.exists()
    assert not [each for each in mounted if (each.where / node.cgroup).exists()]
    assert bridge not in run("ip", "link")
    assert bridge not in run("ip", "route")
    assert not [each for each in _command_lines() if str(root) in each]


def _command_lines() -> Iterator[str]:
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_text()
        except OSError:
            continue


def _container(name: str, script: str) -> dict[str, Any]:
    return {"name": name, "image": BUSYBOX_IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script]}


def _create(
    node: Node,
    name: str,
    containers: list[dict[str, Any]],
    *,
    init: list[dict[str, Any]] | None = None,
    restart: str = "Always",
    labels: dict[str, str] | None = None,
    volumes: list[dict[str, Any]] | None = None,
    on: str = "node-1",
) -> None:
    spec = {
        "volumes": volumes or [],
        "containers": containers,
        "initContainers": init or [],
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"kubernetes.io/hostname": on},
    }
    _post(node, "pods", name, {"spec": spec}, labels)


def _post(node: Node, kind: str, name: str, rest: dict[str, Any], labels: dict[str, str] | None = None) -> None:
    made = {"metadata": {"name": name, "labels": labels or {}}, **rest}
    node.plane.cluster().create(path(CORE_V1, kind, namespace="default"), made)


def _hook(bundle: bytes) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}
    service = {"namespace": "default", "name": "hook"}
    hook = {
        "name": "hook.example.org",
        "clientConfig": {"service": service, "caBundle": base64.b64encode(bundle).decode()},
        "rules": [rule],
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    return {"metadata": {"name": "hook"}, "webhooks": [hook]}


def _fetched(node: Node, pod: str, where: str) -> str:
    """What a pod gets there: empty where nobody answers yet, which is no failure of exec, for it is asked again."""
    return _kubectl(node, "exec", pod, "--", "sh", "-c", f"wget -q -O- {where} || true")


def _running(node: Node, name: str, script: str, *, labels: dict[str, str] | None = None, on: str = "node-1") -> None:
    _create(node, name, [_container("main", script)], labels=labels, on=on)
    _until(lambda: _pod(node, name)["status"].get("phase") == "Running")


def _pod(node: Node, name: str) -> dict[str, Any]:
    return node.plane.cluster().get(path(CORE_V1, "pods", name, "default"))


def _kubectl(node: Node, *command: str) -> str:
    kubectl = str(node.plane.root / "bin" / "kubectl")
    return run(kubectl, f"--kubeconfig={node.plane.kubeconfig()}", *command)


def _until(check: Callable[[], bool], seconds: float = 60) -> None:
    assert holds_within(check, seconds), "waited in vain"
