"""What tests of ``gpu-share explain`` have in common: readers with few rights, and what nodes would have written."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from enforcer.audit.kill_records import ProcessOutcome
from enforcer.audit.record import ChainHead
from enforcer.detection.types import Decision, KillDecision
from enforcer.quota.types import Quota
from enforcer.status import messages
from enforcer.status.events import event_of
from enforcer.status.messages import UserMessage
from gpushare.contract import SIDECAR
from gpushare.kube_client import CORE_V1, EVENTS_V1, RESOURCE_V1, KubeClient, path
from gpushare.reasons import Reason
from tests.integration.controlplane import programs
from tests.integration.controlplane.bed import CLAIMS, Bed, may
from tests.integration.controlplane.objects import Object
from tests.testbed.cluster.controlplane import RBAC_V1

GPU: Final = "GPU-a1000000-0000-4000-8000-000000000000"


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


def product(kubeconfig: Path, *words: str) -> tuple[int, str]:
    command = [*programs.PRODUCT, *words, "--kubeconfig", str(kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=programs.environment(), check=False)
    return done.returncode, done.stdout + done.stderr


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
    tell(bed, messages.over_quota(verdict), 1)
    tell(bed, messages.killed(verdict, Reason.KILLED, [ending], ChainHead(3, "sha256:ab")), 7)
