"""Pods that are deleted while they use a GPU: released by the MPS daemon first, killed by the kubelet after."""

import json
import os
import threading
from collections.abc import Iterator
from datetime import datetime

import pytest

from gpushare.cluster import CORE_V1, Follower, path
from gpushare.contract import MANAGED_LABEL
from tests.controlplane.bed import PODS
from tests.realnode import pods
from tests.realnode.pods import Object
from tests.realnode.site import NAME, SYSTEM, Site, ready

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(2400)]
BATCH = 50
BATCHES = int(os.environ.get("GPU_SHARE_DELETION_BATCHES", "4"))
GRACE = 45
BY_SIGKILL, BY_ITSELF = 137, 143


class Last:
    """The last state of every pod of a namespace that is gone, from a watch of its own."""

    def __init__(self, site: Site, namespace: str) -> None:
        self.of: dict[str, Object] = {}
        self.stopped = threading.Event()
        follower = Follower(
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


def stubborn(name: str, *more: str) -> Object:
    """A tenant that does not use the time it is given to end in; much of it, because the machine may be busy."""
    made = pods.pod(name, "hold", "256Mi", *more, memory="512Mi")
    made["spec"]["terminationGracePeriodSeconds"] = GRACE
    return made


def releases(site: Site) -> dict[str, list[Object]]:
    """What the agent's log says of clients of pods being deleted, by the pod's UID."""
    said = site.shell(f"kubectl -n {SYSTEM} logs -l {NAME}=gpu-share-agent -c enforcer --tail -1")
    rows = [json.loads(line) for line in said.splitlines() if '"MPS client of a pod that is being deleted"' in line]
    return {uid: [row for row in rows if row["pod_uid"] == uid] for uid in {row["pod_uid"] for row in rows}}


@pytest.fixture(scope="module")
def namespace(site: Site) -> Iterator[str]:
    name = site.namespace("deletion")
    yield name
    site.drop(name)


@pytest.fixture(scope="module")
def last(site: Site, namespace: str) -> Iterator[Last]:
    found = Last(site, namespace)
    yield found
    found.stopped.set()


def check(site: Site, last: Last, uids: dict[str, str]) -> None:
    """Each was released by its daemon while it lived, and killed by the kubelet afterwards."""
    told = releases(site)
    ahead = sorted(last.ended(name) - moment(told[uid][0]["timestamp"]) for name, uid in uids.items() if uid in told)
    print(f"\n{len(ahead)} of {len(uids)} released before their end; by {ahead[0]:.1f} to {ahead[-1]:.1f} s")
    assert {name: last.exit_code(name) for name in uids} == dict.fromkeys(uids, BY_SIGKILL)
    assert [name for name, uid in uids.items() if uid not in told] == []
    outcomes = {name: {(row["reason"], row["alive"]) for row in told[uid]} for name, uid in uids.items()}
    assert outcomes == {name: {("ClientTerminated", True)} for name in uids}


def start(site: Site, namespace: str, names: list[str]) -> dict[str, str]:
    """Start so many and wait until they run; their UIDs by name."""
    uids = {name: site.create(namespace, stubborn(name, "--ignore-term"))["metadata"]["uid"] for name in names}
    site.until("all run", lambda: sum(map(ready, site.pods(namespace))) >= len(names), 400)
    return uids


@pytest.mark.parametrize("batch", range(BATCHES))
def test_each_of_200_that_ignore_the_end_is_released_before_it_is_killed(
    site: Site, namespace: str, last: Last, batch: int
) -> None:
    uids = start(site, namespace, [f"b{batch}-{number}" for number in range(BATCH)])
    site.shell(f"kubectl -n {namespace} delete pods --all --wait=false")
    site.until("all are gone", lambda: len(last.of.keys() & uids.keys()) == BATCH, 300)
    check(site, last, uids)


def test_a_drain_does_the_same_and_spares_who_ends_by_itself(site: Site, namespace: str, last: Last) -> None:
    uids = start(site, namespace, [f"drained-{number}" for number in range(10)])
    polite = site.run(namespace, stubborn("polite"))["metadata"]
    try:
        print(
            site.shell(
                f"kubectl drain {site.node.name} --force --ignore-daemonsets --delete-emptydir-data "
                f"--pod-selector {MANAGED_LABEL}=true --timeout 200s"
            )
        )
    finally:
        site.shell(f"kubectl uncordon {site.node.name}")
    site.until("their last state is known", lambda: {"polite", *uids} <= last.of.keys())
    check(site, last, uids)
    assert last.exit_code("polite") == BY_ITSELF
    assert polite["uid"] not in releases(site)


def test_neither_a_daemon_nor_the_agent_came_to_harm(site: Site, namespace: str) -> None:
    """The daemons that served before still serve: a share can be had and used."""
    site.run(namespace, pods.pod("after", "hold", "256Mi", memory="512Mi"))
    assert site.status()["problems"] == []
    assert site.agent_ready()
    site.delete(namespace, "after")
