"""The product on a control plane, as one thing that tests can make, break and ask.

The webhook's replicas are processes of their own behind a balancer that stands for their Service. Certificates come
from ``gpu-share certs`` through a Secret, manifests are the shipped ones, each process has its own service account.
"""

import base64
import itertools
import json
import ssl
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from gpushare.contract import CLAIM, DRIVER, NAMESPACE_LABEL
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from tests.integration.controlplane import manifests, objects, programs
from tests.integration.controlplane.objects import Object
from tests.support.patience import holds_within, patient
from tests.testbed.cluster.controlplane import RBAC_V1, TENANT, ControlPlane
from tests.testbed.cluster.ports import free_ports
from tests.testbed.cluster.processes import Process, alive, end

SYSTEM: Final = "gpu-share-system"
PATIENCE: Final = 30.0
PODS: Final = "pods"
TEMPLATES: Final = "resourceclaimtemplates"
CLAIMS: Final = "resourceclaims"
SLICES: Final = "resourceslices"
NOW: Final = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
OPTED_IN: Final = {NAMESPACE_LABEL: "true"}


@dataclass(slots=True, kw_only=True)
class Replica:
    """One webhook process, known by its ports while it comes and goes; it may have a way and a clock of its own."""

    name: str
    port: int
    admin_port: int
    process: Process | None = None
    kubeconfig: Path | None = None
    extra: dict[str, str] = field(default_factory=dict)
    """More of its environment."""


@dataclass(slots=True, kw_only=True)
class Bed:
    """A control plane with the product installed. ``cluster`` is an administrator's connection, ``url`` /mutate's."""

    plane: ControlPlane
    cluster: KubeClient
    url: str = ""
    replicas: list[Replica] = field(default_factory=list)
    tls: Path = Path()
    retention: int = 2
    _names: "itertools.count[int]" = field(default_factory=itertools.count)

    @classmethod
    def install(cls, plane: ControlPlane, *, replicas: int = 3, retention: int = 2) -> "Bed":
        """Apply the manifests, make certificates, start the webhook, and wait until the policies are in force."""
        bed = cls(plane=plane, cluster=plane.cluster(), tls=plane.root / "tls", retention=retention)
        ports = free_ports(2 * replicas + 1)
        bed.url = f"https://127.0.0.1:{ports[0]}/mutate"
        manifests.apply(bed.cluster, manifests.control_plane(bed.url))
        bed.make_certificates()
        for number in range(replicas):
            at = ports[1 + 2 * number :]
            bed.replicas.append(Replica(name=f"webhook-{number}", port=at[0], admin_port=at[1]))
        plane.add("balancer", programs.balancer(ports[0], [each.port for each in bed.replicas]))
        bed.start_webhooks()
        manifests.wait_for_policies(bed.cluster, bed.namespace("probe"))
        return bed

    # Certificates and webhook replicas

    def make_certificates(self) -> None:
        """Let ``gpu-share certs`` make the pair and the caBundle; then mount the Secret as the kubelet would."""
        kubeconfig = self.plane.service_account(SYSTEM, "gpu-share-certs")
        programs.certs(kubeconfig, self.plane.log("certs"))
        secret = self.cluster.get(path(CORE_V1, "secrets", programs.SECRET, SYSTEM))
        self.tls.mkdir(exist_ok=True)
        for name, content in secret["data"].items():
            (self.tls / name).write_bytes(base64.b64decode(content))

    def start_webhooks(self, only: Iterable[int] | None = None) -> None:
        """Start the replicas that do not run (or those of ``only``) and wait until each says it is ready."""
        chosen = [self.replicas[number] for number in (range(len(self.replicas)) if only is None else only)]
        kubeconfig = self.plane.service_account(SYSTEM, "gpu-share-webhook")
        for replica in chosen:
            if replica.process is None or not alive(replica.process):
                self.launch(replica, kubeconfig)
        for replica in chosen:
            self.until(f"{replica.name} is ready", partial(_ready, replica.admin_port))

    def launch(self, replica: Replica, kubeconfig: Path) -> None:
        """Start a replica and wait for nothing; ``kubeconfig`` is for one without a way of its own."""
        way = replica.kubeconfig or kubeconfig
        command, env = programs.webhook(replica.port, replica.admin_port, way, self.tls, self.retention)
        replica.process = self.plane.add(replica.name, command, {**env, **replica.extra})

    def stop_webhooks(self) -> None:
        """End all replicas in good order."""
        end([replica.process for replica in self.replicas if replica.process])
        for replica in self.replicas:
            self.plane.drop(replica.name)

    def stop(self, process: Process) -> None:
        """End a program of the product in good order."""
        end([process])

    def requests_answered(self) -> float:
        """Reviews answered by all replicas together."""
        return sum(self.metric(replica, "gpu_share_admission_requests_total") for replica in self.replicas)

    def metric(self, replica: Replica, name: str) -> float:
        """Sum over all labels of one metric of a replica; 0 while it has none."""
        lines = _fetch(replica.admin_port, "/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def review(self, pod: Object) -> tuple[bool, list[Object]]:
        """Send a pod to /mutate as the API server does for a create; returns its verdict and its patch."""
        request = {"uid": "test", "operation": "CREATE", "namespace": pod["metadata"]["namespace"], "object": pod}
        request |= {"resource": {"group": "", "version": "v1", "resource": "pods"}, "userInfo": {"username": "test"}}
        body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        call = urllib.request.Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        context = ssl.create_default_context(cafile=str(self.tls / "ca.crt"))
        with urllib.request.urlopen(call, timeout=5, context=context) as answer:
            response = json.load(answer)["response"]
        return response["allowed"], json.loads(base64.b64decode(response.get("patch", "W10=")))

    # Objects

    def namespace(self, name: str, *, opted_in: bool = True, **meta: dict[str, str]) -> str:
        """Make a namespace of a fresh name, with its default service account, and grant the tenant ``edit`` in it."""
        full = f"{name}-{next(self._names)}"
        labels = {**(OPTED_IN if opted_in else {}), **meta.get("labels", {})}
        body = {"metadata": {"name": full, "labels": labels, "annotations": meta.get("annotations", {})}}
        self.cluster.create(path(CORE_V1, "namespaces"), body)
        self.cluster.create(path(RBAC_V1, "rolebindings", namespace=full), _edit(TENANT))
        account = path(CORE_V1, "serviceaccounts", "default", full)
        self.until(f"namespace {full} is ready", lambda: self.find(account) is not None)
        tenant = self.plane.cluster(TENANT)
        self.until("the tenant may create pods there", lambda: may(tenant, "create", "", PODS, full))
        return full

    def node(
        self, name: str, *memories_mib: int, slices: bool = True, labels: Mapping[str, str] | None = None
    ) -> Object:
        """Add a node, without taints; with ``slices`` also its GPUs, one for each memory size in MiB."""
        made = self.cluster.create(path(CORE_V1, "nodes"), objects.node(name, labels or {}))
        where = path(CORE_V1, "nodes", name)
        self.cluster.patch(where, {"spec": {"taints": None}})
        if slices:
            body = objects.resource_slice(name, memories_mib)
            self.cluster.create(path(RESOURCE_V1, SLICES), body)
        return made

    def create(self, namespace: str, body: Object, identity: str = TENANT, **query: str) -> Object:
        """Create a pod as the tenant does."""
        return self.plane.cluster(identity).create(path(CORE_V1, PODS, namespace=namespace), body, **query)

    def pod(self, namespace: str, name: str) -> Object:
        """Read a pod."""
        return self.cluster.get(path(CORE_V1, PODS, name, namespace))

    def delete_pod(self, namespace: str, name: str) -> None:
        """Delete a pod for good, as the kubelet does once its containers are gone."""
        self.cluster.delete(path(CORE_V1, PODS, name, namespace), NOW)

    def remove(self, where: str) -> None:
        """Delete an object; one that the garbage collector took already is fine."""
        try:
            self.cluster.delete(where)
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def find(self, where: str) -> Object | None:
        """Read an object, or None when it is not there."""
        try:
            return self.cluster.get(where)
        except ClusterError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def list(self, kind: str, namespace: str) -> list[Object]:
        """All claims, templates or pods of a namespace."""
        return self.cluster.list(path(CORE_V1 if kind == PODS else RESOURCE_V1, kind, namespace=namespace))[0]

    # Waiting

    def until(self, what: str, check: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Poll until ``check()``; otherwise fail with the ends of all logs."""
        if not holds_within(check, seconds):
            raise AssertionError(f"waited {patient(seconds):.0f} s in vain until {what}\n{self.plane.tails(lines=12)}")

    def empty(self, namespace: str) -> None:
        """Delete all pods of a namespace."""
        self.delete_all(path(CORE_V1, PODS, namespace=namespace))

    def delete_all(self, where: str) -> None:
        """Delete all objects of a list. A slow API server may need several calls."""

        def emptied() -> bool:
            try:
                self.cluster.delete(where, NOW)
            except ClusterError:
                return False
            return True

        self.until(f"all of {where} are deleted", emptied, 120)

    def wait_bound(self, namespace: str, name: str, seconds: float = PATIENCE) -> Object:
        """Wait until the scheduler has given the pod a node; returns the pod."""
        if not holds_within(lambda: bool(self.pod(namespace, name)["spec"].get("nodeName")), seconds):
            tails = self.plane.tails(lines=12)
            raise AssertionError(f"{namespace}/{name} is not bound:\n{self.report(namespace)}\n{tails}")
        return self.pod(namespace, name)

    def wait_unschedulable(self, namespace: str, name: str, saying: str = "") -> str:
        """Wait until the scheduler has said no, in these words; returns all it said."""
        said = ""

        def refused() -> bool:
            nonlocal said
            said = _verdict(self.pod(namespace, name))
            return bool(said) and saying in said

        self.until(f"{namespace}/{name} is found unschedulable {saying}".strip(), refused)
        return said

    def claim_of(self, pod: Object) -> Object:
        """The ResourceClaim that was made for a pod's share."""
        statuses = {each["name"]: each for each in pod["status"].get("resourceClaimStatuses") or []}
        name = statuses[CLAIM]["resourceClaimName"]
        return self.cluster.get(path(RESOURCE_V1, CLAIMS, name, pod["metadata"]["namespace"]))

    def gpus_of(self, pod: Object) -> dict[str, str]:
        """Request name → device, of a bound pod's claim (our driver's, the status device included)."""
        results = self.claim_of(pod)["status"]["allocation"]["devices"]["results"]
        return {each["request"]: each["device"] for each in results if each["driver"] == DRIVER}

    def report(self, namespace: str) -> str:
        """What there is in a namespace, for a failed test."""
        with suppress(ClusterError):
            pods = [(p["metadata"]["name"], p["spec"].get("nodeName"), _verdict(p)) for p in self.list(PODS, namespace)]
            names = [each["metadata"]["name"] for each in self.list(TEMPLATES, namespace)]
            return f"pods {pods}\ntemplates {names}"
        return "(the API server does not answer)"


def may(who: KubeClient, verb: str, group: str, resource: str, namespace: str) -> bool:
    """Ask the API server whether ``who`` may do that; a grant takes a moment to be known."""
    attributes = {"group": group, "resource": resource, "verb": verb, "namespace": namespace}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    where = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return bool(who.create(where, {**body, "spec": {"resourceAttributes": attributes}})["status"]["allowed"])


def template_name(pod: Object) -> str:
    """Name of the claim template that a rewritten pod takes its share from."""
    names = [each["resourceClaimTemplateName"] for each in pod["spec"]["resourceClaims"] if each["name"] == CLAIM]
    assert len(names) == 1, names
    return str(names[0])


def _verdict(pod: Object) -> str:
    for each in pod["status"].get("conditions") or []:
        if each["type"] == "PodScheduled" and each["status"] == "False" and each["reason"] == "Unschedulable":
            return str(each["message"])
    return ""


def _edit(user: str) -> Object:
    group = "rbac.authorization.k8s.io"
    subject = {"apiGroup": group, "kind": "User", "name": user}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "edit"}
    return {"metadata": {"name": f"{user}-edits"}, "roleRef": role, "subjects": [subject]}


def _ready(port: int) -> bool:
    try:
        _fetch(port, "/readyz")
    except OSError:
        return False
    return True


def _fetch(port: int, what: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{what}", timeout=5) as answer:
        content: Any = answer.read()
    return str(content.decode())
