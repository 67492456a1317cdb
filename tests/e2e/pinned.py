"""Tenants on a GPU of the test's choice, by claims that name it, and what they say on its MPS control socket."""

import json
from typing import Any, Final

from gpushare import contract
from gpushare.kube_client import CORE_V1, EVENTS_V1, RESOURCE_V1, path
from tests.e2e import pods
from tests.e2e.pods import Object
from tests.e2e.site import RUN, SYSTEM, Site

LOOKS: Final = 5
"""Seconds between the enforcer's looks at MPS in these tests."""
SAY: Final = """
import os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
    door.connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")
    for word in sys.argv[1:]:
        door.send(word.encode() + bytes(1))
        print(door.recv(65536).rstrip(bytes(1)).decode().strip())
"""
PYTHON: Final = "/opt/gpu-share/bin/python"


def uuids(site: Site) -> list[str]:
    """The node's GPUs."""
    return sorted(found["string"] for each in site.devices().values() if (found := each["attributes"].get("uuid")))


def tenant(site: Site, namespace: str, name: str, gpu: str, *program: str, memory: str = "512Mi") -> Object:
    """A pod with a share of that GPU, and its claim; returns the pod once it runs."""
    where = f'device.attributes["{contract.DRIVER}"].uuid == "{gpu}"'
    exactly = {
        "deviceClassName": contract.DEVICE_CLASS,
        "selectors": [{"cel": {"expression": where}}],
        "capacity": {"requests": {"memory": memory}},
    }
    claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": pods.MAIN, "exactly": exactly}]}}}
    site.apply(namespace, RESOURCE_V1, "resourceclaims", claim)
    body = pods.pod(name, *program, memory=None)
    body["spec"]["resourceClaims"] = [{"name": "mine", "resourceClaimName": name}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine", "request": pods.MAIN}]}
    return site.run(namespace, body, 120)


def say(site: Site, namespace: str, name: str, *words: str) -> list[str]:
    """What a tenant gets as an answer that speaks to its daemon, with no rights but its own."""
    return site.exec(namespace, name, PYTHON, "-c", SAY, *words).splitlines()


def daemon(site: Site, gpu: str) -> int:
    """Pid of a GPU's daemon, as the enforcer noted it."""
    for note in (site.on_node(RUN) / "mps").glob("*/daemon.json"):
        found: dict[str, Any] = json.loads(note.read_text())
        if found.get("gpu") == gpu:
            return int(found.get("pid") or 0)
    return 0


def signal(site: Site, number: str, pid: int) -> None:
    """Send a signal to a process of the node."""
    site.in_enforcer(f"sh -c 'kill -{number} {pid}'")


def node_events(site: Site, reason: str, gpu: str) -> list[str]:
    """Notes of the Events on the node with that reason that name a GPU."""
    found = site.cluster.list(path(EVENTS_V1, "events", namespace="default"))[0]
    ours = [each for each in found if each["regarding"].get("kind") == "Node" and each["reason"] == reason]
    return [each["note"] for each in ours if gpu in each["note"]]


def enforcer_log(site: Site) -> str:
    """All that the enforcer logged since it started."""
    name = site.enforcer()["metadata"]["name"]
    return site.shell(f"kubectl -n {SYSTEM} logs {name} -c enforcer", seconds=60)


def mps_pods(site: Site) -> list[str]:
    """UIDs of the pods in which the daemons run."""
    selector = "app.kubernetes.io/name=gpu-share-mps"
    found = site.cluster.list(path(CORE_V1, "pods", namespace=SYSTEM), labelSelector=selector)[0]
    return [each["metadata"]["uid"] for each in found]
