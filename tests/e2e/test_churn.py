"""Thirty pods started and deleted at once, again and again: nothing is left behind.

Twenty of them do not listen to SIGTERM: those are released by the MPS daemon before the kubelet kills them.
"""

import time

import pytest

from gpushare.kube_client import RESOURCE_V1, path
from tests.e2e import pods
from tests.e2e.departures import Last, check_released, followed
from tests.e2e.pods import Object
from tests.e2e.site import SERVER_MIB, Site, ready
from tests.support.extent import trials

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
PODS = 30
DEAF = 20
GRACE = 30
"""Seconds; much of it, because the machine may be busy."""
PAUSE = 1.0
"""Seconds between two looks at all of them, which are work for the API server."""
ROUNDS = trials(3, 10)


def test_no_claim_file_folder_or_process_outlives_its_pod(site: Site) -> None:
    namespace = site.namespace("churn")
    took = []
    with followed(site, namespace) as last:
        for turn in range(ROUNDS):
            began = time.monotonic()
            up_and_down(site, namespace, last, turn)
            took.append(time.monotonic() - began)
    print(f"\n{PODS} pods up and down: {', '.join(f'{each:.0f}' for each in took)} s")
    site.until("nothing is prepared", lambda: site.leftovers() == [])
    site.until("no claim is left", lambda: site.bed.list("resourceclaims", namespace) == [])
    site.until("no GPU memory is in use", lambda: tenants_memory(site) == [] and holders(site, namespace) == [])
    assert site.cluster.list(path(RESOURCE_V1, "resourceclaimtemplates", namespace=namespace))[0] is not None


def up_and_down(site: Site, namespace: str, last: Last, turn: int) -> None:
    """Start the pods of one turn, delete them at once, and look how they went."""
    uids = {made["metadata"]["name"]: made["metadata"]["uid"] for made in started(site, namespace, turn)}
    site.shell(f"kubectl -n {namespace} delete pods --all --wait=false")
    site.until("all are gone", lambda: site.pods(namespace) == [], 180, PAUSE)
    site.until("their last state is known", lambda: uids.keys() <= last.of.keys())
    check_released(site, last, {name: uid for name, uid in uids.items() if name.startswith("deaf-")})


def started(site: Site, namespace: str, turn: int) -> list[Object]:
    """Start the pods of one turn and wait until all of them run."""
    made = [
        tenant(f"{'deaf' if number < DEAF else 'fair'}-{turn}-{number}", deaf=number < DEAF) for number in range(PODS)
    ]
    found = [site.create(namespace, each) for each in made]
    site.until("all run", lambda: sum(map(ready, site.pods(namespace))) == PODS, 180, PAUSE)
    return found


def tenant(name: str, *, deaf: bool) -> Object:
    """A pod that may take its time to end, and does if it is deaf."""
    made = pods.pod(name, "hold", "512Mi", *(["--ignore-term"] if deaf else []), memory="768Mi")
    made["spec"]["terminationGracePeriodSeconds"] = GRACE
    return made


def tenants_memory(site: Site) -> list[int]:
    """MiB of each process that no quota covers, other than the servers of MPS, which stay."""
    return [row["usedMib"] for row in site.status()["strangers"] if row["usedMib"] != SERVER_MIB]


def holders(site: Site, namespace: str) -> list[str]:
    """Pods of a namespace that the enforcer still counts."""
    return [row["pod"] for row in site.status()["containers"] if row["namespace"] == namespace]
