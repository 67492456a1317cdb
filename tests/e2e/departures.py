"""How pods that are deleted while they use a GPU went: released by the MPS daemon first, then killed."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from gpushare.informer import Informer
from gpushare.kube_client import CORE_V1, path
from tests.e2e import pods
from tests.e2e.pods import Object
from tests.e2e.site import NAME, SYSTEM, Site
from tests.integration.controlplane.bed import PODS

BY_SIGKILL, BY_ITSELF = 137, 143


class Last:
    """The last state of every pod of a namespace that is gone, from a watch of its own."""

    def __init__(self, site: Site, namespace: str) -> None:
        self.of: dict[str, Object] = {}
        self.stopped = threading.Event()
        follower = Informer(
            site.cluster, path(CORE_V1, PODS, namespace=namespace), lambda _: None, self._event, lambda _: None
        )
        threading.Thread(target=follower.run, args=(self.stopped.is_set,), daemon=True).start()

    def _event(self, change: str, pod: Object) -> None:
        if change == "DELETED":
            self.of[pod["metadata"]["name"]] = pod

    def exit_code(self, name: str) -> int:
        return int(self._main(name)["exitCode"])

    def ended(self, name: str) -> float:
        """By the clock, in whole seconds."""
        return moment(self._main(name)["finishedAt"])

    def _main(self, name: str) -> Object:
        (main,) = [each for each in self.of[name]["status"]["containerStatuses"] if each["name"] == pods.MAIN]
        return dict(main["state"]["terminated"])


def moment(stamp: str) -> float:
    """A time of a log or a status in seconds."""
    return datetime.fromisoformat(stamp).timestamp()


def releases(site: Site) -> dict[str, list[Object]]:
    """What the enforcer's log says of clients of pods being deleted, by the pod's UID."""
    rows = [
        json.loads(line)
        for line in site.enforcer_log()
        if '"terminate_client sent for an MPS client of a deleted pod"' in line
    ]
    return {uid: [row for row in rows if row["pod_uid"] == uid] for uid in {row["pod_uid"] for row in rows}}


def check_released(site: Site, last: Last, uids: Mapping[str, str]) -> None:
    """Each of these pods (UIDs by name) was released by its daemon while it lived, and killed by the kubelet later."""
    released = releases(site)
    ahead = sorted(
        last.ended(name) - moment(released[uid][0]["timestamp"]) for name, uid in uids.items() if uid in released
    )
    print(f"\n{len(ahead)} of {len(uids)} released before their end; by {ahead[0]:.1f} to {ahead[-1]:.1f} s")
    assert {name: last.exit_code(name) for name in uids} == dict.fromkeys(uids, BY_SIGKILL)
    missed = {name: last.ended(name) for name, uid in uids.items() if uid not in released}
    assert missed == {}, f"never released, with their ends: {missed}; the others: {released}\n{trouble(site)}"
    outcomes = {name: {(row["reason"], row["alive"]) for row in released[uid]} for name, uid in uids.items()}
    assert outcomes == {name: {("ClientTerminated", True)} for name in uids}


def trouble(site: Site) -> str:
    """What the enforcer and the MPS pod said that is not routine."""
    mps = site.shell(f"kubectl -n {SYSTEM} logs -l {NAME}=gpu-share-mps --all-containers --tail -1", check=False)
    lines = [*site.enforcer_log(), *mps.splitlines()]
    return "\n".join(line for line in lines if '"info"' not in line or "Mps" in line)


@contextmanager
def followed(site: Site, namespace: str) -> Iterator[Last]:
    """Follow a namespace's pods to their end."""
    found = Last(site, namespace)
    try:
        yield found
    finally:
        found.stopped.set()
