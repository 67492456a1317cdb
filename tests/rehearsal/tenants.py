"""The tenants of a rehearsal: some that have to stay, and some that come and go while a step is taken.

Over more than one node there is also a Deployment with a PodDisruptionBudget.
"""

import threading
import time
import urllib.parse
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final, Self

from tests.e2e import pods
from tests.e2e.site import APPS_V1, Site
from tests.rehearsal.api import CORE, CREATED, Api
from tests.rehearsal.state import (
    BURST,
    JOB,
    LABEL,
    MINIMUM,
    PLAIN,
    REPLICA,
    REPLICAS,
    STEADY,
    Object,
    is_ready,
    kind,
    uid,
)
from tests.rehearsal.where import each_node

NAMESPACE: Final = "rehearsal"
STEADY_TENANTS: Final = 3
PAUSE: Final = 4.0
"""Seconds between two acts of the churn."""
MOST: Final = 4
WARM: Final = "warm-up"
LATE: Final = 120.0
PROGRAMS: Final = {
    STEADY: ["--dies-with-server"], REPLICA: ["--dies-with-server"],
    JOB: ["--for", "3s"], BURST: ["--after", "4s", "--over-limit"],
}  # fmt: skip
HOST: Final = "kubernetes.io/hostname"
CONFLICT: Final = 409
POLICY: Final = "/apis/policy/v1"


def tenant(name: str, purpose: str, rng: Random) -> Object:
    """A pod of 512 MiB to 2 GiB; a burst goes far over its quota after some seconds, a Job's ends soon."""
    size = rng.choice((512, 1024, 2048))
    more = PROGRAMS.get(purpose, []) + ([f"--then={4 * size}Mi"] if purpose == BURST else [])
    body: dict[str, Any] = pods.pod(name, "hold", f"{size // 2}Mi", *more, memory=f"{size}Mi")
    body["metadata"]["labels"] = {LABEL: purpose}
    over = {"topologyKey": HOST, "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    body["spec"]["topologySpreadConstraints"] = [over | {"labelSelector": {"matchLabels": {LABEL: purpose}}}]
    if purpose in {JOB, BURST}:
        body["spec"]["restartPolicy"] = "Never"
    if purpose == STEADY:
        body["metadata"]["annotations"][f"memory.gpu-share.io/{WARM}"] = "512Mi"
        body["spec"]["initContainers"] = [pods.container("hold", "256Mi", "--for", "1s", name=WARM)]
    return body


def pinned(name: str, node: str, rng: Random) -> Object:
    """A Job's pod for one node."""
    body = tenant(f"{name}-{node}", JOB, rng)
    body["spec"]["nodeSelector"] = {HOST: node}
    return body


def settle(site: Site, rng: Random) -> str:
    """Make the namespace with the steady tenants in it, and the Deployment on several nodes; returns its name."""
    namespace = site.namespace(NAMESPACE)
    renew(site, namespace, rng)
    if len(list(each_node(site))) > 1:
        deploy(site, namespace, rng)
    return namespace


def deploy(site: Site, namespace: str, rng: Random) -> None:
    """Make the Deployment with its PodDisruptionBudget, and wait until its pods are ready."""
    labels = {LABEL: REPLICA}
    body = pods.deployment(tenant(REPLICA, REPLICA, rng), REPLICAS)
    body["metadata"]["labels"] = labels
    body["spec"]["selector"] = {"matchLabels": labels}
    body["spec"]["template"]["metadata"]["labels"] = labels
    site.apply(namespace, APPS_V1, "deployments", body)
    budget = {"minAvailable": MINIMUM, "selector": {"matchLabels": labels}}
    kinds = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    site.apply(namespace, POLICY, "poddisruptionbudgets", kinds | {"metadata": {"name": REPLICA}, "spec": budget})
    whole(site, namespace)


def whole(site: Site, namespace: str) -> None:
    """Wait until the pods of the Deployment are ready."""
    site.until("the Deployment is ready", lambda: sum(replicas(site, namespace)) == REPLICAS, LATE)


def replicas(site: Site, namespace: str) -> list[bool]:
    """Whether each pod of the Deployment is ready."""
    return [is_ready(each) for each in site.pods(namespace) if kind(each) == REPLICA]


def renew(site: Site, namespace: str, rng: Random) -> None:
    """Make the steady tenants that are not there, and wait until they run."""
    names = [f"steady-{number}" for number in range(STEADY_TENANTS)]
    bodies = [tenant(name, STEADY, rng) for name in names]
    for name, body in zip(names, bodies, strict=True):
        site.until(f"{name} is there", partial(_there, site, namespace, body), LATE)
    for name in names:
        site.running(namespace, name, LATE)


def _there(site: Site, namespace: str, body: Object) -> Object:
    return site.find_pod(namespace, body["metadata"]["name"]) or site.create(namespace, body)


def replace(site: Site, api: Api, namespace: str, rng: Random) -> None:
    """Have other tenants that stay: the kubelet lets a container wait longer after each restart."""
    before = {uid(each) for each in site.pods(namespace) if kind(each) in {STEADY, REPLICA}}
    drop(api, namespace, STEADY, REPLICA)
    site.until("the tenants are gone", lambda: not [each for each in site.pods(namespace) if uid(each) in before])
    renew(site, namespace, rng)
    if len(list(each_node(site))) > 1:
        whole(site, namespace)


@dataclass(slots=True)
class Churn:
    """Pods that are made and deleted in a thread of their own; the API server may be away meanwhile.

    Every second one is a Job's. At most one is a burst: more kills in a minute than an enforcer may do would wait.
    However long a step takes, ``MOST`` others stay at once.
    """

    api: Api
    namespace: str
    rng: Random
    prefix: str
    made: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        others, staying = iter(self.rng.sample((BURST, PLAIN, PLAIN), 3)), deque[str]()
        while not self._over.is_set():
            purpose = next(others, PLAIN) if len(self.made) % 2 else JOB
            self._create(tenant(f"{self.prefix}-{len(self.made)}", purpose, self.rng))
            if len(self.made) % 3 == 0:
                self._delete(self.rng.choice(self.made))
            if purpose == PLAIN:
                staying.append(self.made[-1])
            if len(staying) > MOST:
                self._delete(staying.popleft())
            self._over.wait(PAUSE)

    def _create(self, body: Object) -> None:
        self.made.append(body["metadata"]["name"])
        with suppress(LookupError):
            create(self.api, self.namespace, body)

    def _delete(self, name: str) -> None:
        with suppress(LookupError):
            self.api.delete(f"{CORE}/namespaces/{self.namespace}/pods/{name}")


def create(api: Api, namespace: str, body: Object) -> bool:
    """Create a pod; returns whether it was admitted, now or by a request whose answer was lost."""
    return api.post(f"{CORE}/namespaces/{namespace}/pods", body)[0] in {CREATED, CONFLICT}


def drop(api: Api, namespace: str, *kinds: str) -> None:
    """Delete the tenants of these kinds, as soon as the API server answers; raises ``LookupError`` if it does not."""
    chosen = urllib.parse.quote(f"{LABEL} in ({','.join(kinds)})")
    where, until = f"{CORE}/namespaces/{namespace}/pods?labelSelector={chosen}", time.monotonic() + LATE
    while True:
        try:
            api.delete(where)
        except LookupError:
            if time.monotonic() > until:
                raise
            time.sleep(1)
        else:
            return
