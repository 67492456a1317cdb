"""Thirty pods started and deleted at once, again and again: nothing is left behind."""

import os
import time

import pytest

from gpushare.cluster import RESOURCE_V1, path
from tests.realnode import pods
from tests.realnode.site import Site, ready

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
PODS = 30
PAUSE = 1.0
"""Seconds between two looks at all of them, which are work for the API server."""
ROUNDS = int(os.environ.get("GPU_SHARE_CHURN_ROUNDS", "10"))


def test_no_claim_file_folder_or_process_outlives_its_pod(site: Site) -> None:
    namespace = site.namespace("churn")
    took = []
    for _ in range(ROUNDS):
        began = time.monotonic()
        for number in range(PODS):
            site.create(namespace, pods.pod(f"p{number}", "hold", "512Mi", memory="768Mi"))
        site.until("all run", lambda: sum(map(ready, site.pods(namespace))) == PODS, 180, PAUSE)
        site.shell(f"kubectl -n {namespace} delete pods --all --wait=false")
        site.until("all are gone", lambda: site.pods(namespace) == [], 180, PAUSE)
        took.append(time.monotonic() - began)
    print(f"\n{PODS} pods up and down: {', '.join(f'{each:.0f}' for each in took)} s")
    site.until("nothing is prepared", lambda: site.leftovers() == [])
    site.until("no claim is left", lambda: site.bed.list("resourceclaims", namespace) == [])
    site.until("no memory is held", lambda: site.status()["strangers"] == [] and holders(site, namespace) == [])
    assert site.cluster.list(path(RESOURCE_V1, "resourceclaimtemplates", namespace=namespace))[0] is not None
    site.drop(namespace)


def holders(site: Site, namespace: str) -> list[str]:
    """Pods of a namespace that the agent still counts."""
    return [row["pod"] for row in site.status()["containers"] if row["namespace"] == namespace]
