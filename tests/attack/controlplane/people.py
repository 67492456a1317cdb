"""Tenants and stolen identities, as the API server sees them.

Alice has the role edit in a namespace that opted in, with a maximum of 2 GiB. Bob may only create pods there. Carol has
the role edit in a namespace that did not opt in. Olga owns the first namespace, and Otto the second: a Role with every
verb on everything in there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, RESOURCE_V1, KubeClient, path
from tests.integration.controlplane.bed import SYSTEM, Bed, may
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.policies.world import Acting
from tests.testbed.cluster.controlplane import RBAC_V1

MAXIMUM: Final = {"gpu-share.io/max-memory": "2Gi", "gpu-share.io/max-compute": "50%"}
NODE: Final = "node-a"
CARD: Final = 16384
CLAIMS_CONTROLLER: Final = "system:serviceaccount:kube-system:resource-claim-controller"


@dataclass(slots=True, kw_only=True)
class People:
    bed: Bed
    inside: str
    outside: str
    node: Object

    @classmethod
    def meet(cls, bed: Bed) -> Self:
        inside = bed.namespace("inside", annotations=MAXIMUM)
        outside = bed.namespace("outside", opted_in=False)
        found = cls(bed=bed, inside=inside, outside=outside, node=bed.node(NODE, CARD))
        found.grant("alice", inside, {"kind": "ClusterRole", "name": "edit"})
        found.grant("carol", outside, {"kind": "ClusterRole", "name": "edit"})
        rules = [{"apiGroups": [""], "resources": ["pods", "pods/ephemeralcontainers"], "verbs": ["*"]}]
        bed.cluster.create(path(RBAC_V1, "roles", namespace=inside), {"metadata": {"name": "pods"}, "rules": rules})
        found.grant("bob", inside, {"kind": "Role", "name": "pods"})
        found.own("olga", inside)
        found.own("otto", outside)
        return found

    def grant(self, user: str, namespace: str, role: Mapping[str, str]) -> None:
        reference = {"apiGroup": "rbac.authorization.k8s.io", **role}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
        body = {"metadata": {"name": user}, "roleRef": reference, "subjects": [subject]}
        self.bed.cluster.create(path(RBAC_V1, "rolebindings", namespace=namespace), body)
        acting = self.acting(user)
        self.bed.until(f"{user} may create pods", lambda: may(acting, "create", "", "pods", namespace))

    def own(self, user: str, namespace: str) -> None:
        """Give somebody everything in a namespace, as many clusters do."""
        rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        role = {"metadata": {"name": "owner"}, "rules": rules}
        self.bed.cluster.create(path(RBAC_V1, "roles", namespace=namespace), role)
        self.grant(user, namespace, {"kind": "Role", "name": "owner"})

    def acting(self, user: str, **extra: str) -> KubeClient:
        return Acting.as_user(self.bed.plane, user, extra)

    @property
    def webhook(self) -> KubeClient:
        return self.acting(f"system:serviceaccount:{SYSTEM}:gpu-share-webhook")

    @property
    def enforcer(self) -> KubeClient:
        return self.acting(
            f"system:serviceaccount:{SYSTEM}:gpu-share-enforcer", **{"authentication.kubernetes.io/node-name": NODE}
        )


def claims(namespace: str, name: str = "") -> str:
    return path(RESOURCE_V1, "resourceclaims", name, namespace)


def templates(namespace: str, name: str = "") -> str:
    return path(RESOURCE_V1, "resourceclaimtemplates", name, namespace)


def pods(namespace: str, name: str = "") -> str:
    return path(CORE_V1, "pods", name, namespace)


def refusal(cluster: KubeClient, where: str, body: Object, **query: str) -> str:
    """Create an object; return why not, empty where it was created."""
    try:
        cluster.create(where, body, **query)
    except ClusterError as error:
        return error.message
    return ""


def request(memory: str | None = None, compute: str | None = None, **more: Any) -> Object:
    """What a claim asks for, of one device."""
    amounts = {key: value for key, value in (("memory", memory), ("compute", compute)) if value is not None}
    found: Object = {"deviceClassName": "gpu-share.io", **more}
    return found | ({"capacity": {"requests": amounts}} if amounts else {})


def claim(name: str, *asked: Object, choice: bool = False) -> Object:
    """A claim with one request, of alternatives where ``choice``."""
    sub = [{"name": f"s{number}", **each} for number, each in enumerate(asked)]
    one = {"name": "gpu", "firstAvailable": sub} if choice else {"name": "gpu", "exactly": asked[0]}
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": [one]}}}


def template(name: str, *asked: Object, choice: bool = False) -> Object:
    return {"metadata": {"name": name}, "spec": {"spec": claim("", *asked, choice=choice)["spec"]}}


def pod(name: str, claim: str = "", **container: Any) -> Object:
    """A pod without annotations; with the name of a claim it uses that."""
    main: Object = {"name": "main", "image": "example.invalid/app:1", **container}
    spec: Object = {"containers": [main], "automountServiceAccountToken": False}
    if claim:
        main["resources"] = {"claims": [{"name": "gpu"}]}
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return {"metadata": {"name": name}, "spec": spec}
