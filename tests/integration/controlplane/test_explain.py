"""``gpu-share explain POD`` with no more than the ``view`` role of the pod's namespace.

With ``GPU_SHARE_RECORD=DIR`` what was read is written there: the unit tests' fixtures are made this way.
"""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from enforcer.audit.kill_records import ProcessOutcome
from enforcer.audit.record import ChainHead
from enforcer.detection.types import Decision, KillDecision
from enforcer.quota.types import Quota
from enforcer.status import messages
from enforcer.status.events import event_of
from enforcer.status.messages import UserMessage
from gpushare.contract import COMPUTE, SIDECAR
from gpushare.errors import ClusterError
from gpushare.kube_client import CORE_V1, EVENTS_V1, RESOURCE_V1, KubeClient, path
from gpushare.reasons import Reason
from gpushare_cli.api_errors import AGAIN, sentence
from gpushare_cli.audit import anchors
from gpushare_cli.explain.pod import recorded
from tests.integration.controlplane import objects, programs
from tests.integration.controlplane.bed import CLAIMS, Bed, may
from tests.integration.controlplane.objects import Object
from tests.testbed.cluster.controlplane import RBAC_V1

pytestmark = pytest.mark.controlplane
GPU = "GPU-a1000000-0000-4000-8000-000000000000"
RECORD = os.environ.get("GPU_SHARE_RECORD")


def account(bed: Bed, namespace: str, name: str) -> Path:
    """Somebody who may do nothing."""
    bed.cluster.create(path(CORE_V1, "serviceaccounts", namespace=namespace), {"metadata": {"name": name}})
    return bed.plane.service_account(namespace, name)


def viewer(bed: Bed, namespace: str, role: str = "view") -> Path:
    """Somebody with the role ``view``, or another, in a namespace, and nothing else."""
    kubeconfig = account(bed, namespace, f"{role}er")
    subject = {"kind": "ServiceAccount", "name": f"{role}er", "namespace": namespace}
    bound = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    body = {"metadata": {"name": f"{role}er"}, "roleRef": bound, "subjects": [subject]}
    bed.cluster.create(path(RBAC_V1, "rolebindings", namespace=namespace), body)
    who = KubeClient.connect(str(kubeconfig))
    bed.until("they may read claims", lambda: may(who, "get", "resource.k8s.io", CLAIMS, namespace))
    return kubeconfig


def explain(kubeconfig: Path, namespace: str, name: str) -> tuple[int, str]:
    code, said = product(kubeconfig, "explain", f"{namespace}/{name}")
    if RECORD and "CONTAINER" in said:
        found = recorded(KubeClient.connect(str(kubeconfig)), namespace, name)
        content = {"pod": bare(found.pod), "claims": {n: bare(c) for n, c in (found.claims or {}).items()}}
        events = [bare(event) for event in found.events or ()]
        (Path(RECORD) / f"{name}.json").write_text(json.dumps({**content, "events": events}, indent=1) + "\n")
    return code, said


def product(kubeconfig: Path, *words: str) -> tuple[int, str]:
    command = [*programs.PRODUCT, *words, "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=programs.environment(), check=False)
    return done.returncode, done.stdout + done.stderr


def bare(item: Any) -> Object:
    return {**item, "metadata": {k: v for k, v in item["metadata"].items() if k != "managedFields"}}


def prepared(bed: Bed, pod: Object) -> None:
    """Say of the pod's claim what the driver says once it has prepared it."""
    claim = bed.claim_of(pod)
    results = claim["status"]["allocation"]["devices"]["results"]
    limits = [{"container": "main", "memoryMiB": 4096, "computePercent": 25}]
    data = {"uuid": GPU, "mode": "mps", "memoryMiB": 4096, "computePercent": 25, "limits": limits}
    about = [{key: each[key] for key in ("driver", "pool", "device", "shareID")} for each in results]
    devices = [
        {**entry, **({} if each["request"] == SIDECAR else {"data": data})}
        for entry, each in zip(about, results, strict=True)
    ]
    where = path(RESOURCE_V1, CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])
    bed.cluster.patch(f"{where}/status", {"status": {"devices": devices}})


def runs(bed: Bed, namespace: str, name: str) -> None:
    status = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 1, "state": {"running": {}}}
    where = path(CORE_V1, "pods", name, namespace) + "/status"
    bed.cluster.patch(where, {"status": {"phase": "Running", "containerStatuses": [status]}})


def tell(bed: Bed, one: UserMessage, second: int) -> None:
    when = datetime(2026, 11, 20, 22, 16, second, tzinfo=UTC)
    bed.cluster.create(path(EVENTS_V1, "events", namespace=one.quota.namespace), event_of("node", one, when))


def kill(bed: Bed, pod: Object) -> None:
    meta = pod["metadata"]
    quota = Quota(
        claim_uid="c", namespace=meta["namespace"], pod=meta["name"], pod_uid=meta["uid"], container="main",
        container_id="f" * 64, gpu=GPU, memory_mib=4096,
    )  # fmt: skip
    verdict = KillDecision(decision=Decision.KILL, quota=quota, used_mib=9000, over_for=5.2, kill_in=4.5)
    ending = ProcessOutcome(pid=4242, start=1, used_mib=9000, result=Reason.KILLED, steps=("SIGTERM",))
    tell(bed, messages.warned(verdict), 1)
    tell(bed, messages.ended(verdict, Reason.KILLED, [ending], ChainHead(3, "sha256:ab")), 7)


def test_who_may_view_learns_what_was_asked_given_and_done(bed: Bed) -> None:
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


def test_a_pod_that_finds_no_room_is_told_why(bed: Bed) -> None:
    namespace = bed.namespace("explained")
    kubeconfig = viewer(bed, namespace)
    bed.node("small", 8192)
    bed.create(namespace, objects.pod("waiting", "12Gi", node="small"))
    bed.wait_unschedulable(namespace, "waiting")
    code, text = explain(kubeconfig, namespace, "waiting")
    assert code == 1
    assert "Pending, on no node yet" in text
    assert "cannot allocate all claims" in text
    assert "it is placed once one has" in text


def test_who_may_not_look_is_told_so(bed: Bed) -> None:
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
    (found,) = (each for each in anchors.in_cluster(bed.cluster, print) if each.node == "made-up")
    assert (found.head, found.hint) == (head, True)
