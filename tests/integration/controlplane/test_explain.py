"""``gpu-share explain POD`` with no more than the ``view`` role of the pod's namespace.

With ``GPU_SHARE_RECORD=DIR`` what was read is written there: the unit tests' fixtures are made this way. With
``GPU_SHARE_GOLDEN=1`` the texts of the situations are written down anew: read the difference.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit.record import ChainHead
from enforcer.quota.types import Quota
from enforcer.status.events import event_of
from enforcer.status.messages import UserMessage
from gpushare.contract import COMPUTE
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare.reasons import Reason
from gpushare_cli.audit import remote
from gpushare_cli.explain.pod import recorded
from gpushare_cli.words import AGAIN, sentence
from tests.integration.controlplane import objects, pending, situations_of_pods, situations_of_workloads
from tests.integration.controlplane.bed import Bed
from tests.integration.controlplane.explaining import GPU, account, kill, prepared, product, runs, viewer
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.pending import PENDING
from tests.integration.controlplane.situating import SITUATIONS, node, normalised
from tests.testbed.cluster.controlplane import ADMIN

pytestmark = pytest.mark.controlplane
RECORD = os.environ.get("GPU_SHARE_RECORD")
GOLDEN = Path(__file__).parents[2] / "fixtures" / "explained"


def explain(kubeconfig: Path, namespace: str, name: str) -> tuple[int, str]:
    code, said = product(kubeconfig, "explain", f"{namespace}/{name}")
    if RECORD and "CONTAINER" in said:
        found = recorded(KubeClient.connect(str(kubeconfig)), namespace, name)
        content = {"pod": bare(found.pod), "claims": {n: bare(c) for n, c in (found.claims or {}).items()}}
        events = [bare(event) for event in found.events or ()]
        (Path(RECORD) / f"{name}.json").write_text(json.dumps({**content, "events": events}, indent=1) + "\n")
    return code, said


def bare(item: Any) -> Object:
    return {**item, "metadata": {k: v for k, v in item["metadata"].items() if k != "managedFields"}}


def test_who_may_view_finds_what_was_asked_given_and_done(bed: Bed) -> None:
    namespace = bed.namespace("explained")
    kubeconfig = viewer(bed, namespace)
    bed.node("explained", 16384)
    bed.create(namespace, objects.pod("running", "4Gi", node="explained", **{COMPUTE: "25%"}))
    prepared(bed, bed.wait_bound(namespace, "running"))
    runs(bed, namespace, "running")
    code, text = explain(kubeconfig, namespace, "running")
    assert code == 0, text
    row = text.splitlines()[2].split("  ")
    assert [cell.strip() for cell in row if cell] == [
        "main", "4Gi, 25%", "4Gi, 25%", GPU, "running, restarts: 1",
    ]  # fmt: skip
    bed.create(namespace, objects.pod("killed", "4Gi", node="explained"))
    pod = bed.wait_bound(namespace, "killed")
    runs(bed, namespace, "killed")
    kill(bed, pod)
    code, text = explain(kubeconfig, namespace, "killed")
    assert code == 1
    assert "last kill: 2026-11-20T22:16:07.000000Z Killed: container main holds 9000 MiB of its 4096 MiB" in text
    assert "2026-11-20T22:16:01.000000Z OverQuota" in text
    assert "running" not in text.replace("main", "").splitlines()[0], "no other pod is named"


def test_a_pod_that_finds_no_room_is_notified_why(bed: Bed) -> None:
    namespace = bed.namespace("explained")
    kubeconfig = viewer(bed, namespace)
    bed.node("small", 8192)
    bed.create(namespace, objects.pod("waiting", "12Gi", node="small"))
    bed.wait_unschedulable(namespace, "waiting")
    code, text = explain(kubeconfig, namespace, "waiting")
    assert code == 1
    assert "Pending, on no node yet" in text
    assert "cannot allocate all claims" in text
    assert "because you may not list ResourceSlices" in text


def test_who_may_not_look_is_notified(bed: Bed) -> None:
    namespace = bed.namespace("explained")
    nobody = account(bed, namespace, "nobody")
    assert explain(nobody, namespace, "x") == (
        1,
        f"gpu-share: you may not read pod x in namespace {namespace}; ask for the ClusterRole view there\n",
    )
    code, text = explain(viewer(bed, namespace), namespace, "x")
    assert (code, "there is no pod x" in text) == (1, True)


def test_a_right_that_is_missing_is_named_with_its_role_and_a_conflict_says_to_run_it_again(bed: Bed) -> None:
    namespace = bed.namespace("explained")
    said = "gpu-share: you may not list resourceslices in the cluster; ask for the ClusterRole gpu-share-operator\n"
    assert product(viewer(bed, namespace), "audit", "anchors") == (1, said)
    where = path(CORE_V1, "serviceaccounts", "viewer", namespace)
    stale = bed.cluster.get(where)
    bed.cluster.patch(where, {"metadata": {"labels": {"changed": "meanwhile"}}})
    with pytest.raises(ClusterError) as caught:
        bed.cluster.replace(where, stale)
    assert sentence(caught.value).startswith(AGAIN)


def test_events_are_their_namespaces_to_write_so_they_are_no_anchors(bed: Bed) -> None:
    namespace = bed.namespace("explained")
    tenant = KubeClient.connect(str(viewer(bed, namespace, "edit")))
    head = ChainHead(999, "sha256:" + "0" * 64)
    quota = Quota(
        claim_uid="c", namespace=namespace, pod="x", pod_uid="u", container="main", container_id=None, gpu=GPU,
        memory_mib=4096,
    )  # fmt: skip
    made_up = UserMessage(quota=quota, reason=Reason.KILLED, note=f"ended; audit log {head}", action="Kill")
    body = event_of("made-up", made_up, datetime.now(UTC))
    core = {
        "metadata": body["metadata"], "involvedObject": body["regarding"], "message": body["note"], "type": "Warning",
        "reason": body["reason"], "action": "Kill", "eventTime": body["eventTime"],
        "reportingComponent": body["reportingController"], "reportingInstance": "made-up",
    }  # fmt: skip
    tenant.create(path(CORE_V1, "events", namespace=namespace), core)
    (found,) = (each for each in remote.in_cluster(bed.cluster, print) if each.node == "made-up")
    assert (found.head, found.hint) == (head, True)


def test_there_are_enough_situations() -> None:
    made = [each.__module__ for each in SITUATIONS.values()]
    assert made.count(situations_of_pods.__name__) >= 20
    assert made.count(situations_of_workloads.__name__) >= 8
    assert {each.stem for each in GOLDEN.iterdir()} == set(SITUATIONS)


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_situation_is_explained_as_written_down(bed: Bed, name: str) -> None:
    text, expected = normalised(*SITUATIONS[name](bed)), GOLDEN / f"{name}.txt"
    if os.environ.get("GPU_SHARE_GOLDEN"):
        expected.write_text(text)
    assert "Traceback" not in text
    assert text == expected.read_text()


@pytest.mark.parametrize("cause", PENDING)
def test_each_cause_of_a_pod_that_waits_is_named_from_the_schedulers_own_message(bed: Bed, cause: str) -> None:
    node(bed)
    namespace = bed.namespace("pending")
    waits = PENDING[cause](bed, namespace)
    try:
        bed.until(f"the pod waits: {waits.words}", lambda: waits.words in pending.reported(bed, namespace))
        code, text = product(bed.plane.kubeconfig(ADMIN), "explain", f"{namespace}/{pending.POD}")
    finally:
        pending.clear(bed, namespace)
    assert code == 1
    lines = [line.strip() for line in text.splitlines()]
    first = next((number for number, line in enumerate(lines) if waits.part in line), None)
    assert first is not None, text
    assert any(waits.hint in line for line in lines[first : first + 2]), text
