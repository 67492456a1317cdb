"""A tenant that holds its MPS control socket and stays silent delays a neighbour's end, and does not prevent it."""

import json

import pytest

from gpushare import contract
from tests.e2e import pinned, pods
from tests.e2e.absences import seconds
from tests.e2e.site import Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
SILENT = """
import os, socket, time
while True:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        try:
            door.connect(os.environ["CUDA_MPS_PIPE_DIRECTORY"] + "/control")
            print("silent", flush=True)
            while door.recv(4096):
                pass
        except OSError:
            pass
    print("shut out", flush=True)
    time.sleep(0.1)
"""
DELAY = 20.0


@pytest.fixture(scope="module", name="namespace")
def _namespace(site: Site) -> str:
    return site.namespace("blocked", **{contract.GRACE_PERIOD: "2s"})


def test_a_kill_comes_in_time_and_the_holder_is_named_to_operators_alone(site: Site, namespace: str) -> None:
    gpu = pinned.uuids(site)[0]
    holder = pinned.tenant(site, namespace, "holder", gpu, "hold", "512Mi")
    greedy = ("hold", "512Mi", "--then", "3Gi", "--after", "15s", "--over-limit")
    pinned.tenant(site, namespace, "greedy", gpu, *greedy)
    daemon = pinned.daemon(site, gpu)
    site.exec(namespace, "holder", "sh", "-c", f"nohup {pinned.PYTHON} -c '{SILENT}' >/tmp/output 2>&1 &")
    site.until("it is ended and started again", lambda: restarts(site.bed.pod(namespace, "greedy"))[pods.MAIN] > 0)
    intent, outcome = (site.record(namespace, "greedy", kind) for kind in ("INTENT", "OUTCOME"))
    delay = seconds(outcome["time"]) - seconds(intent["time"])
    print(f"the kill took {delay:.1f} s; {outcome['targets'][0]['steps']}")
    assert delay <= DELAY
    site.until("the holder is named in the enforcer's log", lambda: is_logged(site, holder["metadata"]["uid"]))
    site.until("the node has an Event of it", lambda: pinned.node_events(site, "MpsControlBlocked", gpu))
    assert "holder" not in json.dumps(site.events(namespace, "greedy"))
    assert pinned.daemon(site, gpu) == daemon, "nobody's daemon is replaced for it"
    assert set(restarts(site.running(namespace, "holder")).values()) == {0}


def is_logged(site: Site, pod_uid: str) -> bool:
    lines = pinned.enforcer_log(site).splitlines()
    return any("MpsControlBlocked" in line and pod_uid in line for line in lines)
