"""The shipped policies on a control plane of their own, without the webhook: what they refuse, they refuse alone."""

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Self

from gpushare.contract import MEMORY, NAMESPACE_LABEL
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from gpushare.namespace_policy import NamespacePolicy
from tests.integration.controlplane import manifests, objects
from tests.integration.controlplane.bed import may
from tests.integration.controlplane.objects import Object
from tests.support.patience import holds_within
from tests.testbed.cluster.controlplane import RBAC_V1, TENANT, ControlPlane
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.settings import Settings

NODE_NAME: Final = "authentication.kubernetes.io/node-name"
ENFORCER: Final = "system:serviceaccount:gpu-share-system:gpu-share-enforcer"
UNRESIZABLE: Final = "only cpu and memory resources are mutable"
"""What Kubernetes 1.36 says to any resize of a pod whose containers have claims; 1.37 resizes it."""
_numbers: Final = count()


class Acting(KubeClient):
    """An administrator's connection that acts as somebody else, also as one whose token carries extra facts."""

    @classmethod
    def as_user(cls, plane: ControlPlane, user: str, extra: Mapping[str, str] | None = None, group: str = "") -> Self:
        acting = cls.connect(str(plane.kubeconfig()))
        acting.headers = {"Impersonate-User": user}
        acting.headers |= {"Impersonate-Group": group} if group else {}
        for key, value in (extra or {}).items():
            acting.headers[f"Impersonate-Extra-{key.replace('/', '%2F')}"] = value
        return acting

    headers: dict[str, str]

    def _authorization(self) -> dict[str, str]:
        return super()._authorization() | self.headers


@dataclass(slots=True, kw_only=True)
class World:
    """The control plane, and an opted-in namespace in which the tenant has the role ``edit``."""

    plane: ControlPlane
    cluster: KubeClient
    namespace: str

    @classmethod
    def start(cls, plane: ControlPlane) -> Self:
        cluster = plane.cluster()
        manifests.apply(cluster, manifests.without_webhook(manifests.control_plane()))
        world = cls(plane=plane, cluster=cluster, namespace="")
        world.namespace = world.make_namespace({NAMESPACE_LABEL: "true"})
        manifests.wait_for_policies(cluster, world.namespace)
        return world

    def make_namespace(self, labels: Mapping[str, str] | None = None) -> str:
        name = f"team-{os.getpid()}-{next(_numbers)}"
        self.cluster.create(path(CORE_V1, "namespaces"), {"metadata": {"name": name, "labels": dict(labels or {})}})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}
        binding = {"metadata": {"name": "tenant"}, "roleRef": role, "subjects": [subject]}
        self.cluster.create(path(RBAC_V1, "rolebindings", namespace=name), binding)
        account = path(CORE_V1, "serviceaccounts", "default", name)
        until("its service account is there", lambda: refusal(lambda: self.cluster.get(account)) == "")
        until("the tenant may edit there", lambda: may(self.tenant, "patch", "", "pods", name))
        return name

    @property
    def tenant(self) -> KubeClient:
        return self.plane.cluster(TENANT)

    def pods(self, name: str = "", namespace: str = "") -> str:
        return path(CORE_V1, "pods", name, namespace or self.namespace)

    def templates(self, name: str = "", namespace: str = "") -> str:
        return path(RESOURCE_V1, "resourceclaimtemplates", name, namespace or self.namespace)

    def refused(self, pod: Object, cluster: KubeClient | None = None, **query: str) -> str:
        """Try to create a pod in a dry run; return why it was refused, or an empty text."""
        return refusal(lambda: (cluster or self.cluster).create(self.pods(), pod, dryRun="All", **query))

    def created(self, pod: Object) -> str:
        """Create a pod, and return its name."""
        name: str = self.cluster.create(self.pods(), pod)["metadata"]["name"]
        return name


def refusal(call: Any) -> str:
    """What the API server says against a call; empty when it says nothing against it."""
    try:
        call()
    except ClusterError as error:
        return error.message
    return ""


def share(name: str = "", **spec: Any) -> Object:
    """A pod that asks for a share, not rewritten yet; no token, because no service account is waited for."""
    pod = objects.pod(name or f"pod-{next(_numbers)}", "4Gi")
    pod["spec"] |= {"automountServiceAccountToken": False, **spec}
    return pod


def rewritten(pod: Object) -> Object:
    """The pod as the webhook leaves it."""
    return copy.deepcopy(
        dict(mutate_pod(pod, policy=NamespacePolicy(max_memory_limit_mib=81_920), settings=Settings()).pod)
    )


def two_containers() -> Object:
    return share(
        containers=[{"name": "main", "image": "a"}, {"name": "idle", "image": "b"}],
        initContainers=[{"name": "setup", "image": "c"}],
    )


def template(name: str) -> Object:
    """A claim template of some content."""
    exactly = {"deviceClassName": "gpu-share.io", "capacity": {"requests": {"memory": "1Gi"}}}
    request = {"name": "main", "exactly": exactly}
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": {"requests": [request]}}}}


def annotation(value: str | None) -> Object:
    """A change of the memory annotation."""
    return {"metadata": {"annotations": {MEMORY: value}}}


def until(what: str, check: Callable[[], bool], seconds: float = 30) -> None:
    """Poll until ``check()``."""
    assert holds_within(check, seconds), what
