"""``python -m tests.load.bench ready``: seconds from creation to Ready of pods with and without a share, on a node.

It uses the cluster of ``make cluster``, or starts one and ends it.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, path
from tests.e2e.pods import Object, idle, pod
from tests.e2e.site import ready
from tests.load.bench import report
from tests.testbed.cluster.__main__ import ROOT
from tests.testbed.cluster.__main__ import main as testbed
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.play import NAMESPACE

PODS: Final = path(CORE_V1, "pods", namespace=NAMESPACE)
KINDS: Final = {"plain": None, "share": "1Gi"}
COLUMNS: Final[report.Columns] = {
    "pod": lambda row: row["pod"],
    "creation to Ready, median s": lambda row: f"{row['median_s']:.2f}",
    "min s": lambda row: f"{row['min_s']:.2f}",
    "max s": lambda row: f"{row['max_s']:.2f}",
}


def main(argv: list[str]) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.load.bench ready", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="pods of each kind, one after the other (default 7)")
    report.with_page(parser)
    asked = parser.parse_args(argv)
    with cluster() as api:
        for kind in KINDS:
            seconds(api, kind)  # not counted: the first of its kind fills caches
        found = report.result("ready", asked)
        rounds = [{kind: seconds(api, kind) for kind in KINDS} for _ in range(asked.rounds)]
    figures = {kind: [each[kind] for each in rounds] for kind in KINDS}
    figures["share - plain"] = [each["share"] - each["plain"] for each in rounds]
    found["rows"] = [row(kind, each) for kind, each in figures.items()]
    report.publish(found, COLUMNS, asked.write)
    return 0


def row(kind: str, found: list[float]) -> dict[str, object]:
    """Return a row of the table, in seconds from creation to Ready."""
    return {"pod": kind, "median_s": statistics.median(found), "min_s": min(found), "max_s": max(found)}


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
