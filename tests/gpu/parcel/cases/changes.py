"""Cases 6 and 7: a quota that changes, and an MPS daemon that is replaced or meets a fault."""

import json
import re
import time
from typing import Any, Final

from gpushare import contract
from tests.e2e.site import SYSTEM, restarts
from tests.gpu.parcel import tenants
from tests.gpu.parcel.scene import Scene

TENANTS: Final = ("first", "second")


def resize(scene: Scene) -> str:
    """Lower a quota and raise it again; the next start has the new limit, and CUDA keeps to it."""
    scene.ensure_installed()
    site = scene.site
    with scene.namespace("resizing") as namespace:
        site.run(namespace, tenants.pod("elastic", scene.programs.hold(1024), "4Gi"))
        where = f"{namespace}/elastic"
        with scene.timed("lowered_s"):
            lowered = site.shell(f"gpu-share resize {where} main 2Gi")
            site.until("the quota is lower", lambda: _quota(scene, namespace) == 2048, 10)
        refused = site.shell(f"gpu-share resize {where} main 5Gi", check=False)
        assert "4Gi" in refused and "exceeds the reservation" in refused, refused
        site.end_main(namespace, "elastic")
        site.until("it is started again", lambda: restarts(site.bed.pod(namespace, "elastic"))["main"] == 1, 30)
        site.running(namespace, "elastic")
        env = site.environ(namespace, "elastic")
        assert env[contract.MPS_MEMORY_LIMIT] == "0=2048M", env[contract.MPS_MEMORY_LIMIT]
        if not scene.simulated:
            said = site.exec(namespace, "elastic", "sh", "-c", tenants.client("fill 128", "quit"))
            filled: dict[str, Any] = next(each for each in map(json.loads, said.splitlines()) if "steps" in each)
            scene.figures["filled"] = filled
            assert filled["refused"] and filled["mib"] <= 2048, filled
        raised = site.shell(f"gpu-share resize {where} main 4Gi")
        site.until("the quota is as it was", lambda: _quota(scene, namespace) == 4096, 10)
        scene.figures |= {"lowered": lowered, "refused": refused, "raised": raised}
        explained = site.shell(f"gpu-share explain {where}", check=False)
        scene.figures["explain"] = explained[-2000:]
    return f"4Gi to 2Gi in force after {scene.figures['lowered_s']} s, limit 2048M at the next start, and back"


def _quota(scene: Scene, namespace: str) -> int:
    found = [each for each in scene.site.status()["containers"] if each["namespace"] == namespace]
    return int(found[0]["quotaMib"]) if found else 0


def mps_replaced(scene: Scene) -> str:
    """Delete the MPS pod, then let a tenant fault: what the tenants of the GPU see, and how long until they work."""
    scene.ensure_installed()
    site = scene.site
    with scene.namespace("replaced") as namespace:
        before = _start(scene, namespace)
        began = time.monotonic()
        site.shell(f"kubectl -n {SYSTEM} delete pod -l app.kubernetes.io/name=gpu-share-mps --wait=false")
        _wait_working(scene, namespace, before)
        scene.figures["served_after_replacement_s"] = round(time.monotonic() - began, 2)
        scene.figures["seen_at_replacement"] = _last_words(scene, namespace)
        site.until("the MPS pod is ready", lambda: scene.all_ready("gpu-share-mps"), 30)
        # Where the compute mode is kept, one that started while there was no daemon computes without MPS.
        scene.figures["limits_after_replacement"] = [each.get("limit") for each in site.status()["containers"]]
        for name in TENANTS:
            site.remove(namespace, name, grace=0)
        site.until("they are gone", lambda: not any(site.find_pod(namespace, name) for name in TENANTS), 20)
        before = _start(scene, namespace)
        began = time.monotonic()
        if scene.simulated:
            site.simulator("fault", "gpu0", "mps-fault")
        else:
            site.create(namespace, tenants.pod("faulty", scene.programs.fault(), "1Gi", restart="Never"))
        _wait_working(scene, namespace, before)
        scene.figures["served_after_fault_s"] = round(time.monotonic() - began, 2)
        scene.figures["seen_at_fault"] = _last_words(scene, namespace)
        if not scene.simulated:
            scene.figures["faulty"] = scene.lines(namespace, "faulty")
        scene.figures["events"] = site.shell(
            "kubectl get events -A --sort-by=.lastTimestamp | grep -i mps", check=False
        )
    replaced, faulted = scene.figures["served_after_replacement_s"], scene.figures["served_after_fault_s"]
    return f"served {replaced} s after a replacement, {faulted} s after a fault"


def _start(scene: Scene, namespace: str) -> list[int]:
    """Have the tenants compute; their numbers of restarts."""
    for name in TENANTS:
        scene.site.create(namespace, tenants.pod(name, scene.programs.compute(512), "2Gi"))
    for name in TENANTS:
        scene.site.running(namespace, name)
    _wait_working(scene, namespace, [-1, -1])
    return _counts(scene, namespace)


def _counts(scene: Scene, namespace: str) -> list[int]:
    return [restarts(scene.site.bed.pod(namespace, name)).get("main", 0) for name in TENANTS]


def _wait_working(scene: Scene, namespace: str, before: list[int]) -> None:
    """Wait until each tenant computes in a container that has been started more often than ``before``."""

    def working() -> bool:
        newer = all(count > old for count, old in zip(_counts(scene, namespace), before, strict=True))
        return newer and all(_computes(scene, namespace, name) for name in TENANTS)

    scene.site.until("the tenants compute", working, 90, 0.3)


def _computes(scene: Scene, namespace: str, name: str) -> bool:
    text = scene.site.shell(f"kubectl -n {namespace} logs {name} -c main --tail=3", check=False)
    word = r'"state": "(holding|holding-again)"' if scene.simulated else r'"ok": true'
    return re.search(word, text) is not None


def _last_words(scene: Scene, namespace: str) -> dict[str, str]:
    found = {}
    for name in TENANTS:
        text = scene.site.shell(f"kubectl -n {namespace} logs {name} -c main --previous --tail=2", check=False)
        found[name] = text[-400:]
    return found
