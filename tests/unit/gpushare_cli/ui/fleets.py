"""A cluster whose lists can be watched, with two nodes, three tenants and their enforcers, for tests of pages."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from enforcer.audit.log import segments
from gpushare.contract import DEVICE_CLASS, DRIVER, ENFORCER, LIMIT_IN_FORCE, MANAGED_LABEL, NAMESPACE_LABEL, SIDECAR
from gpushare.errors import ClusterError
from gpushare_cli.prometheus import Prometheus
from gpushare_cli.ui.cache import Cached, Changes
from gpushare_cli.ui.pages import Pages
from gpushare_cli.ui.server import application
from gpushare_cli.ui.sources import Sources
from tests.integration.controlplane import objects
from tests.unit.gpushare_cli.clusters import SYSTEM, Cluster, Object
from tests.unit.gpushare_cli.test_top import status

TOKEN, PORT = "the-token", 4711
HOST = {"Host": f"127.0.0.1:{PORT}"}
REPORTER = f"{DRIVER}/enforcer"
MADE = list[Changes]()
"""Those of the test that runs."""


class Listing(Iterator[Object]):
    version, outdated = "1", False

    def __init__(self, items: Iterator[Object]) -> None:
        self._items = items

    def __next__(self) -> Object:
        return next(self._items)


class Watched(Cluster):
    """``hidden`` are kinds that may be listed in namespaces only."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: set[str] = set()
        self.news: dict[str, SimpleQueue[tuple[str, Object] | Exception]] = {}
        self.listed: list[str] = []

    def listing(self, where: str, **query: str) -> Iterator[Object]:
        kind = where.rpartition("/")[2]
        self.listed.append(where)
        if kind in self.hidden and "/namespaces/" not in where:
            raise forbidden("list", kind)
        return Listing(super().listing(where, **query))

    def watch(self, where: str, _version: str, **_query: str) -> Iterator[tuple[str, Object]]:
        news = self.news.setdefault(where.rpartition("/")[2], SimpleQueue())
        while True:
            found = news.get()
            if isinstance(found, Exception):
                raise found
            yield found

    def change(self, event: str, kind: str, item: Object) -> None:
        """Tell the watch of a kind of an event."""
        item["metadata"].setdefault("resourceVersion", "2")
        self.news.setdefault(kind, SimpleQueue()).put((event, item))


class Logged(Watched):
    """``folders`` are the state directories of nodes, whose logs the export reads."""

    folders: dict[str, Path]
    exports: int = 0
    broken: ClusterError | None = None

    def run(self, pod: str, _namespace: str, _container: str, command: Sequence[str], **more: float) -> Iterator[bytes]:
        if "export" not in command:
            yield from super().run(pod, _namespace, _container, command, **more)
            return
        self.exports += 1
        if self.broken:
            raise self.broken
        for file in segments(self.folders[pod.removeprefix("enforcer-")] / "audit"):
            yield file.read_bytes()


def forbidden(verb: str, kind: str, namespace: str = "") -> ClusterError:
    where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
    said = f'{kind} is forbidden: User "x" cannot {verb} resource "{kind}" in API group ""{where}'
    return ClusterError(said, 403)


def pod(namespace: str, name: str, node: str = "") -> Object:
    container = {"name": "model", "resources": {"claims": [{"name": "gpu-share", "request": "model"}]}}
    named = [{"name": "gpu-share", "resourceClaimName": f"{name}-claim"}]
    running: list[Object] = [{"name": each, "state": {"running": {}}} for each in ("model", SIDECAR)]
    status = {"phase": "Running", "containerStatuses": running[:1], "initContainerStatuses": running[1:]}
    return {
        "metadata": {
            "namespace": namespace, "name": name, "uid": f"uid-{name}", "labels": {MANAGED_LABEL: "true"},
            "annotations": {"gpu-share.io/memory": "4Gi"},
        },
        "spec": {"containers": [container], "resourceClaims": named, **({"nodeName": node} if node else {})},
        "status": status if node else {"phase": "Pending"},
    }  # fmt: skip


def claim(namespace: str, name: str, node: str, gpu: int, mib: int) -> Object:
    result = {
        "driver": DRIVER,
        "pool": node,
        "device": f"gpu-{gpu}",
        "request": "model",
        "consumedCapacity": {"memory": f"{mib}Mi", "compute": "25"},
        "shareID": f"share-{name}",
    }
    exactly = {"deviceClassName": DEVICE_CLASS, "capacity": {"requests": {"memory": f"{mib}Mi"}}}
    limits = [{"container": "model", "memoryMiB": mib, "computePercent": 25}]
    status = {
        "driver": DRIVER, "pool": node, "device": f"gpu-{gpu}", "shareID": f"share-{name}",
        "data": {"podUid": f"uid-{name}", "pod": name, "uuid": f"GPU-{node}-{gpu}", "limits": limits},
        "conditions": [{"type": LIMIT_IN_FORCE, "status": "True", "reason": "InForce", "message": f"{mib} MiB"}],
    }  # fmt: skip
    return {
        "metadata": {"namespace": namespace, "name": f"{name}-claim", "uid": f"claim-{name}"},
        "spec": {"devices": {"requests": [{"name": "model", "exactly": exactly}]}},
        "status": {
            "devices": [status],
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"uid-{name}"}],
        },
    }  # fmt: skip


def use(namespace: str, name: str, gpu: str, used: int, quota: int = 4096, **more: Any) -> dict[str, Any]:
    processes = [{"pid": 7, "usedMib": used}, {"pid": 8, "usedMib": 0}]
    return {
        "namespace": namespace, "pod": name, "podUid": f"uid-{name}", "container": "model", "gpu": gpu,
        "quotaMib": quota, "reservedMib": quota, "usedMib": used, "peakMib": used, "state": "Within",
        "sentence": f"{name} holds {used} MiB", "processes": processes, "mpsClients": 2, **more,
    }  # fmt: skip


def answer(node: str, *uses: dict[str, Any], used: int, gpus: int = 1, **more: Any) -> bytes:
    rows = [
        {"uuid": f"GPU-{node}-{number}", "index": number, "model": "NVIDIA A100", "memoryMib": 16384, "mode": "mps",
         "reservedMib": 0, "usedMib": 0 if number else used, "unaccountedMib": 0}
        for number in range(gpus)
    ]  # fmt: skip
    found = status(*uses, node=node, strangers=[]) | {"gpus": rows} | more
    return json.dumps(found).encode()


def fleet() -> Watched:
    """Two nodes; three tenants on the first GPU of one, of which one is over its quota; one pod waits."""
    cluster = Watched()
    cluster.add("nodes", objects.node("one"), objects.node("two"))
    cluster.add("resourceslices", objects.resource_slice("one", [16384, 16384]), objects.resource_slice("two", [8192]))
    cluster.add("namespaces", *({"metadata": {"name": name, "labels": {NAMESPACE_LABEL: "true"}}} for name in TENANTS))
    for name in TENANTS:
        cluster.add("pods", pod(name, f"{name}-0", "one"))
        cluster.add("resourceclaims", claim(name, f"{name}-0", "one", 0, 4096))
    cluster.add("pods", pod("asr", "waits"))
    cluster.lists["events"] = []
    uses = [use(name, f"{name}-0", "GPU-one-0", 1024 * number) for number, name in enumerate(TENANTS, 1)]
    over = "container model holds 9216 MiB of its 4096 MiB"
    uses[2] |= {"usedMib": 9216, "peakMib": 9216, "state": "Warned", "killIn": 3.5, "sentence": over}
    cluster.enforcer("one", answer("one", *uses, used=12800, gpus=2))
    cluster.enforcer("two", answer("two", used=0))
    installed(cluster)
    for number, name in enumerate(TENANTS, 1):
        cluster.answers[f"{name}-0"] = pod_status(1024 * number), None
    return cluster


TENANTS = ("asr", "llm", "tts")


def installed(cluster: Watched) -> None:
    """Add a webhook and enforcers that are well."""
    ready = [{"type": "Ready", "status": "True"}]
    labels = {"app.kubernetes.io/name": "gpu-share-webhook", "app.kubernetes.io/part-of": "gpu-share"}
    metadata = {"name": "gpu-share-webhook", "namespace": SYSTEM, "labels": labels}
    cluster.add("deployments", {"metadata": metadata, "spec": {"replicas": 1}})
    cluster.add("pods", {"metadata": {**metadata, "name": "webhook-1"}, "spec": {}, "status": {"phase": "Running"}})
    for each in cluster.lists["pods"]:
        if each["metadata"]["namespace"] == SYSTEM:
            each["status"]["conditions"] = ready
    for item in cluster.lists["resourceslices"]:
        report(item)


def report(item: Object, *problems: str) -> None:
    """Write an enforcer's report into a slice."""
    said = {"version": "0.1.0", "enforcing": True, "breaker": None, "auditLog": "", "problems": problems}
    item["metadata"].setdefault("annotations", {})[ENFORCER] = json.dumps(said)


def pod_status(used: int, **more: Any) -> bytes:
    now = status()["time"]
    container = {"container": "model", "gpu": "GPU-one-0", "usedMiB": used, "peakMiB": used, "quotaMiB": 4096}
    found = {"version": 1, "time": now, "ready": True, "waiting": "", "gpus": [], "messages": []}
    return json.dumps(found | {"containers": [container | {"state": "Within"} | more]}).encode()


def client(cluster: Any, namespace: str = "asr", prometheus: Prometheus | None = None, **more: Any) -> Any:
    """Return a client of the pages, which wait for what they show."""
    changes = Changes()
    MADE.append(changes)
    made = Pages(Sources(Cached(cluster, changes), None, prometheus), namespace, wait=5.0, live=True, **more)
    return application(made, changes, PORT, TOKEN).test_client()


def opened(browser: Any, name: str, **query: str) -> str:
    """Open a page and return its text."""
    found = browser.get(f"/{TOKEN}/{name}", headers=HOST, query_string=query)
    assert found.status_code == 200, (name, found.status)
    text: str = found.get_data(as_text=True)
    return text
