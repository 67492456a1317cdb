"""The cluster view over two real nodes: ``gpu-share top -A`` shows what both enforcers wrote, and names a dead one."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from gpushare.contract import NODE_LABEL
from tests.e2e import pods
from tests.e2e.site import STATE, Site, ready
from tests.testbed.cluster import images
from tests.testbed.cluster.node import Node

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
SECOND: Final = "node-second"
MIB: Final = {"first": "1Gi", "second": "2Gi", "third": "3Gi"}
MOVING: Final = frozenset({"time", "utilizationPercent"})
"""Keys that change from one sample to the next while every tenant holds what it held."""


@pytest.fixture(scope="module")
def second(site: Site) -> Iterator[Node]:
    assert isinstance(site.node, Node)
    made = Node.start(site.node.plane, SECOND)
    try:
        for target in images.targets():
            made.load_image(images.image(target))
        site.shell(f"kubectl label node {SECOND} {NODE_LABEL}=true")
        site.until("both enforcers are ready", lambda: [ready(each) for each in site.enforcers()] == [True] * 2, 180)
        yield made
    finally:
        site.shell(f"kubectl label node {SECOND} {NODE_LABEL}-", check=False)
        made.stop()
        site.shell(f"kubectl delete node {SECOND}", check=False)
        site.until("one enforcer is left", lambda: len(site.enforcers()) == 1 and site.enforcer_ready(), 180)


@pytest.fixture(scope="module")
def namespace(site: Site, second: Node) -> Iterator[str]:
    name = site.namespace("both")
    for number, (pod, amount) in enumerate(MIB.items()):
        body = pods.pod(pod, "hold", amount, memory=amount)
        body["spec"]["nodeSelector"] = {"kubernetes.io/hostname": SECOND if number else site.node.name}
        site.run(name, body, 120)
    yield name
    site.drop(name, wait=True)


def test_top_of_all_nodes_is_the_union_of_the_nodes_status_files(site: Site, second: Node, namespace: str) -> None:
    def found() -> bool:
        shown = {each["node"]: each for each in json.loads(site.shell("gpu-share top -A -o json"))["nodes"]}
        files = {name: settled(status(node)) for name, node in ((site.node.name, site.node), (SECOND, second))}
        assert [each["problem"] for each in shown.values()] == ["", ""]
        return {name: settled(each["status"]) for name, each in shown.items()} == files

    site.until("what is shown equals what was written", found, 60)
    table = site.shell("gpu-share top -A")
    for pod, on in zip(MIB, (site.node.name, SECOND, SECOND), strict=True):
        assert any(on in line and f"{namespace}/{pod}" in line for line in table.splitlines()), table
    of_tenant = json.loads(site.shell(f"gpu-share top -n {namespace} -o json"))
    assert {each["pod"] for each in of_tenant["pods"]} == set(MIB)


def test_a_node_whose_kubelet_is_gone_is_a_row_that_says_so(site: Site, second: Node, namespace: str) -> None:
    second.stop_kubelet()
    try:
        answers = {each["node"]: each for each in json.loads(site.shell("gpu-share top -A -o json || true"))["nodes"]}
        assert answers[SECOND]["problem"]
        assert answers[SECOND]["status"] is None
        assert not answers[site.node.name]["problem"]
    finally:
        second.start_kubelet()
        site.until("it is back", lambda: second.ready() and len(site.enforcers()) == 2, 120)


def status(node: Any) -> dict[str, Any]:
    return dict(json.loads((node.host(STATE) / "status.json").read_text()))


def settled(value: Any) -> Any:
    """What of a status stays the same from one sample to the next."""
    if isinstance(value, dict):
        return {key: settled(each) for key, each in value.items() if key not in MOVING}
    return [settled(each) for each in value] if isinstance(value, list) else value
