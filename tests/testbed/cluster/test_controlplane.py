"""The control plane itself, without the product: it starts fast, obeys RBAC and leaves nothing behind."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, path
from tests.testbed.cluster.controlplane import IDENTITIES, ControlPlane, sweep
from tests.testbed.cluster.processes import Process, alive, kill

pytestmark = pytest.mark.controlplane


@pytest.fixture
def started(tmp_path: Path, binaries: None) -> Iterator[ControlPlane]:
    began = time.monotonic()
    plane = ControlPlane.start(tmp_path / "plane")
    print(f"started in {time.monotonic() - began:.1f} s")
    yield plane
    plane.stop()


def test_it_obeys_rbac_and_leaves_nothing_behind(started: ControlPlane) -> None:
    try:
        for identity in (each for each in IDENTITIES if each not in {"scheduler", "controller-manager"}):
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
            answer = started.cluster(identity).create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
            assert answer["status"]["userInfo"]["username"] == identity
        with pytest.raises(ClusterError, match="forbidden"):
            started.cluster("tenant").list(path(CORE_V1, "nodes"))
        started.cluster("operator").list(path(CORE_V1, "nodes"))
    finally:
        started.stop()
    assert not started.root.exists()
    assert not any(alive(process) for process in started.processes)


def test_what_a_crash_left_is_cleaned_up_by_the_next_start(started: ControlPlane) -> None:
    survivors = [process for process in started.processes if process.name != "kube-apiserver"]
    for process in started.processes:
        if process not in survivors:
            kill(process)
    assert not started.running
    again = ControlPlane.start(started.root)
    again.stop()
    assert not any(alive(process) for process in survivors)


def test_a_sweep_ends_only_what_has_lost_its_owner(started: ControlPlane) -> None:
    sweep(started.root.parent)
    assert started.running
    state = started.root / "state.json"
    state.write_text(state.read_text().replace('"owner": {\n  "pid": ', '"owner": {\n  "pid": 9'))
    sweep(started.root.parent)
    assert not any(_alive(started.processes))
    assert not started.root.exists()


def _alive(processes: list[Process]) -> list[bool]:
    return [alive(process) for process in processes]
