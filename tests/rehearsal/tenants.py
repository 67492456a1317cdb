"""The tenants of a rehearsal: some that have to stay, and some that come and go while a step is taken."""

import threading
import time
import urllib.parse
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Self

from tests.e2e import pods
from tests.e2e.site import Site
from tests.rehearsal.api import CORE, CREATED, Api
from tests.rehearsal.state import BURST, JOB, LABEL, PLAIN, STEADY, Object, kind

NAMESPACE: Final = "rehearsal"
STEADY_TENANTS: Final = 3
PAUSE: Final = 4.0
"""Seconds between two acts of the churn."""
WARM: Final = "warm-up"
LATE: Final = 120.0
PROGRAMS: Final = {
    STEADY: ["--dies-with-server"], JOB: ["--for", "3s"], BURST: ["--after", "4s", "--over-limit"],
}  # fmt: skip


def tenant(name: str, purpose: str, rng: Random) -> Object:
    """A pod of 512 MiB to 2 GiB; a burst goes far over its quota after some seconds, a Job's ends soon."""
    size = rng.choice((512, 1024, 2048))
    more = PROGRAMS.get(purpose, []) + ([f"--then={4 * size}Mi"] if purpose == BURST else [])
    body: dict[str, Any] = pods.pod(name, "hold", f"{size // 2}Mi", *more, memory=f"{size}Mi")
    body["metadata"]["labels"] = {LABEL: purpose}
    if purpose in {JOB, BURST}:
        body["spec"]["restartPolicy"] = "Never"
    if purpose == STEADY:
        body["metadata"]["annotations"][f"memory.gpu-share.io/{WARM}"] = "512Mi"
        body["spec"]["initContainers"] = [pods.container("hold", "256Mi", "--for", "1s", name=WARM)]
    return body


def settle(site: Site, rng: Random) -> str:
    """Make the namespace with the steady tenants in it; returns its name."""
    namespace = site.namespace(NAMESPACE)
    renew(site, namespace, rng)
    return namespace


def renew(site: Site, namespace: str, rng: Random) -> None:
    """Make the steady tenants that are not there, and wait until they run."""
    names = [f"steady-{number}" for number in range(STEADY_TENANTS)]
    for name in names:
        body = tenant(name, STEADY, rng)
        if site.find_pod(namespace, name) is None:
            site.create(namespace, body)
    for name in names:
        site.running(namespace, name, LATE)


def replace(site: Site, api: Api, namespace: str, rng: Random) -> None:
    """Have other steady tenants: the kubelet lets a container wait longer after each restart."""
    drop(api, namespace, STEADY)
    site.until("the tenants are gone", lambda: not [each for each in site.pods(namespace) if kind(each) == STEADY])
    renew(site, namespace, rng)


@dataclass(slots=True)
class Churn:
    """Pods that are made and deleted in a thread of their own; the API server may be away meanwhile.

    Every second one is a Job's. At most one is a burst: more kills in a minute than an enforcer may do would wait.
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
        others = iter(self.rng.sample((BURST, PLAIN, PLAIN), 3))
        while not self._over.is_set():
            purpose = next(others, PLAIN) if len(self.made) % 2 else JOB
            self._create(tenant(f"{self.prefix}-{len(self.made)}", purpose, self.rng))
            if len(self.made) % 3 == 0:
                self._delete(self.rng.choice(self.made))
            self._over.wait(PAUSE)

    def _create(self, body: Object) -> None:
        self.made.append(body["metadata"]["name"])
        with suppress(LookupError):
            create(self.api, self.namespace, body)

    def _delete(self, name: str) -> None:
        with suppress(LookupError):
            self.api.delete(f"{CORE}/namespaces/{self.namespace}/pods/{name}")


def create(api: Api, namespace: str, body: Object) -> bool:
    """Create a pod; returns whether it was admitted."""
    return api.post(f"{CORE}/namespaces/{namespace}/pods", body)[0] == CREATED


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
