"""``python -m tests.load.bench ready``: seconds from creation to Ready of pods with and without a share, on a node.

It uses the cluster of ``make cluster``, or starts one and ends it.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, path
from tests.e2e.pods import Object, idle, pod
from tests.e2e.site import ready
from tests.testbed.cluster.__main__ import ROOT
from tests.testbed.cluster.__main__ import main as testbed
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.play import NAMESPACE

PODS: Final = path(CORE_V1, "pods", namespace=NAMESPACE)
KINDS: Final = {"plain": None, "share": "1Gi"}
ROW: Final = "{:<16} {:>9} {:>9} {:>9}"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.load.bench ready", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="pods of each kind, one after the other (default 7)")
    options = parser.parse_args(argv)
    with cluster() as api:
        for kind in KINDS:
            seconds(api, kind)  # not counted: the first of its kind fills caches
        print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before; seconds from creation to Ready")
        rounds = [{kind: seconds(api, kind) for kind in KINDS} for _ in range(options.rounds)]
    print(ROW.format("POD", "MEDIAN", "MIN", "MAX"))
    for kind in KINDS:
        show(kind, [each[kind] for each in rounds])
    show("share - plain", [each["share"] - each["plain"] for each in rounds])
    return 0


def show(what: str, found: list[float]) -> None:
    figures = (statistics.median(found), min(found), max(found))
    print(ROW.format(what, *(f"{figure:.2f} s" for figure in figures)))


@contextmanager
def cluster() -> Iterator[KubeClient]:
    """The cluster of ``make cluster``."""
    running = ControlPlane.load(ROOT)
    if running is not None and running.running:
        yield running.cluster()
        return
    assert testbed(["up"]) == 0
    try:
        plane = ControlPlane.load(ROOT)
        assert plane is not None
        yield plane.cluster()
    finally:
        testbed(["down"])


def seconds(api: KubeClient, kind: str) -> float:
    """Time one pod, and wait until it is gone."""
    body = pod(f"bench-{kind}", memory=KINDS[kind])
    body["spec"] |= {"containers": [idle("main")], "terminationGracePeriodSeconds": 0}
    began = time.monotonic()
    made = api.create(PODS, body)
    assert bool(KINDS[kind]) == bool(made["spec"].get("resourceClaims")), "not rewritten"
    took = until_ready(api, made) - began
    remove(api, made["metadata"]["name"])
    return took


def until_ready(api: KubeClient, made: Object) -> float:
    """Watch a pod until it is Ready; returns when it was."""
    which = f"metadata.name={made['metadata']['name']}"
    for _, found in api.watch(PODS, made["metadata"]["resourceVersion"], fieldSelector=which):
        if ready(found):
            return time.monotonic()
    raise AssertionError(f"the watch of {which} ended before it was ready")


def remove(api: KubeClient, name: str) -> None:
    where = path(CORE_V1, "pods", name, NAMESPACE)
    api.delete(where)
    while True:
        try:
            api.get(where)
        except ClusterError as error:
            if error.status != 404:
                raise
            return
        time.sleep(0.1)
