"""What is sampled once a second: refusals, announcements, who runs, how long pods waited, who is over a quota."""

import os
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.rehearsal.api import Api
from tests.rehearsal.sampling import UNSCHEDULABLE, Machine, Place, Sampler, used
from tests.rehearsal.state import LABEL, REPLICA, Object

MADE, READY, BEFORE = "2026-01-01T00:00:10Z", "2026-01-01T00:00:17Z", "2026-01-01T00:00:00Z"
BEGAN = 1767225605.0
"""Between the last two."""


def pod(uid: str, made: str = MADE, **metadata: str) -> Object:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": READY}
    meta = {"uid": uid, "creationTimestamp": made, "annotations": {"gpu-share.io/memory": "1Gi"}, **metadata}
    return {"metadata": meta, "spec": {"nodeName": "node-1"}, "status": {"phase": "Running", "conditions": [ready]}}


def replica(uid: str, status: str = "True", **metadata: str) -> Object:
    found = pod(uid, **metadata)
    found["metadata"]["labels"] = {LABEL: REPLICA}
    found["status"]["conditions"][0]["status"] = status
    return found


class Answering(Api):
    """Answers from what the test says."""

    pods: tuple[Object, ...] = (pod("new"), pod("leaving", deletionTimestamp=READY), pod("old", BEFORE))
    taints: tuple[Object, ...] = ()
    status = 201
    claims: tuple[Object, ...] = ({"name": "gpu-share"},)

    def get(self, where: str) -> Object:
        taints = {"node-1": [], "node-2": list(self.taints)}
        nodes = [{"metadata": {"name": name}, "spec": {"taints": found}} for name, found in taints.items()]
        return {"items": nodes if where.endswith("/nodes") else list(self.pods)}

    def post(self, where: str, body: Object) -> tuple[int, Object]:
        assert where.endswith("pods?dryRun=All")
        return self.status, {"spec": {"resourceClaims": list(self.claims)}}


@pytest.fixture(name="api")
def _api() -> Answering:
    return Answering.__new__(Answering)


@pytest.fixture(name="sampler")
def _sampler(api: Answering, tmp_path: Path) -> Sampler:
    group = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition("/")[2] or "no-such-group"
    made = Sampler(
        Place(
            api=api,
            machines=(Machine(name="node-1", home=tmp_path, cgroup=group, holder=os.getpid()),),
            namespace="team",
            probe={},
            deployment=True,
        )
    )
    made.seen.began = BEGAN
    return made


def test_seconds_count_while_a_sharing_pod_is_refused_or_gets_no_share(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler._cluster(1.0)
    assert sampler.seen.refused == 0.0
    with monkeypatch.context() as changed:
        changed.setattr(Answering, "status", 403)
        sampler._cluster(1.5)
    with monkeypatch.context() as changed:
        changed.setattr(Answering, "claims", ())
        sampler._cluster(2.0)
    assert sampler.seen.refused == 3.5


def test_who_runs_and_is_not_on_its_way_out_is_alive_and_the_slowest_new_pod_counts(sampler: Sampler) -> None:
    sampler._cluster(1.0)
    assert sampler.seen.alive.keys() == {"new", "old"}
    assert sampler.seen.waited == 7.0


def test_a_cordon_is_an_announcement_and_stays_one(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler._cluster(1.0)
    found = [dict(sampler.seen.announced)]
    with monkeypatch.context() as changed:
        changed.setattr(Answering, "taints", ({"key": UNSCHEDULABLE},))
        sampler._cluster(1.0)
        found.append(dict(sampler.seen.announced))
    sampler._cluster(1.0)
    found.append(dict(sampler.seen.announced))
    assert found[0] == {}
    assert found[1] == found[2]
    assert found[1].keys() == {"node-2"}
    assert abs(found[1]["node-2"] - time.time()) < 60


def test_the_fewest_pods_of_the_deployment_that_were_ready_at_once_are_kept(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in (
        (replica("a"), replica("b"), replica("c")),
        (replica("a"), replica("b", "False"), replica("c", deletionTimestamp=READY)),
        (replica("a"), replica("b"), pod("d")),
    ):
        monkeypatch.setattr(Answering, "pods", found)
        sampler._cluster(1.0)
    assert sampler.seen.fewest == 1
    monkeypatch.setattr(Answering, "pods", ())
    sampler._cluster(1.0)
    assert sampler.seen.fewest == 0


def test_only_time_without_a_break_counts_as_over_quota_also_with_a_second_node(sampler: Sampler) -> None:
    sampler._cluster(1.0)
    seen = sampler.seen
    for mib, now in ((1025, 100.0), (1025, 104.0), (1024, 105.0), (2000, 110.0), (2000, 113.0), (0, 120.0)):
        sampler._weigh(seen, "node-1", {"new": mib}, now)
        sampler._weigh(seen, "node-2", {}, now)
    assert seen.over == {"new": 4.0}


def test_memory_of_processes_without_a_pod_is_nobodys(tmp_path: Path) -> None:
    books = tmp_path / "var/lib/gpu-share/simulator/state/processes"
    books.mkdir(parents=True)
    (books / str(os.getpid())).write_text("gpu=a\tmemory_mib=5\ngpu=b\tmemory_mib=6\n")
    assert used(tmp_path) == {}


class Refusing(BaseHTTPRequestHandler):
    """Refuses with a reason, and answers nonsense."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/gone" else 200)
        self.end_headers()
        self.wfile.write(b'{"message": "not found"}' if self.path == "/gone" else b"ok")

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


def test_a_server_that_refuses_talks_nonsense_or_is_away_is_a_lookup_error() -> None:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        api = Api(f"http://127.0.0.1:{server.server_port}", "", None)  # type: ignore[arg-type] # there is no TLS
        try:
            with pytest.raises(LookupError, match="not found"):
                api.get("/gone")
            with pytest.raises(LookupError, match="nonsense"):
                api.get("/")
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(LookupError, match="does not answer"):
        api.get("/")
