"""What is to be seen only while it lasts: once a second, memory, daemons, admission, tenants, the enforcer's looks."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, Self

from tests.rehearsal import processes
from tests.rehearsal.amounts import mib
from tests.rehearsal.api import CORE, CREATED, Api
from tests.rehearsal.state import REPLICA, Object, at, is_ready, kind, node_of, uid

EVERY: Final = 1.0
STATE: Final = "var/lib/gpu-share"
MEMORY: Final = "gpu-share.io/memory"
ENFORCER: Final = b"--poll-seconds"
"""Stands in its command line and in no other."""
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One node.

    ``home``: where its files are on this machine; ``cgroup``: name of its control group; ``holder``: pid of the process
    that holds its namespaces.
    """

    name: str
    home: Path
    cgroup: str
    holder: int

    def serving(self) -> dict[str, list[int]]:
        """By MPS directory, the control daemons that serve it now."""
        return {at(self.name, where): found for where, found in processes.serving(self.cgroup).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One cluster.

    Attributes:
        api: its API server.
        machines: its nodes.
        namespace: of the tenants; it opted in.
        probe: a sharing pod for dry runs.
        deployment: whether there is a Deployment among the tenants.
    """

    api: Api
    machines: tuple[Machine, ...]
    namespace: str
    probe: Object
    deployment: bool = False

    def pods(self) -> list[Object]:
        """Return the tenants' pods."""
        return self.api.items(f"{CORE}/namespaces/{self.namespace}/pods")

    def admitted(self) -> str:
        """Say what becomes of a sharing pod in a dry run: ``share``, ``open`` (without a claim) or ``refused``."""
        status, pod = self.api.post(f"{CORE}/namespaces/{self.namespace}/pods?dryRun=All", self.probe)
        if status != CREATED:
            return "refused"
        return "share" if pod["spec"].get("resourceClaims") else "open"


@dataclass(slots=True)
class Seen:
    """What was seen since a step began.

    Attributes:
        daemons: by MPS directory, the pids of control daemons that have served it.
        over: by pod UID, for how many seconds without a break it was over its quota while an enforcer ran, at most.
        alive: by pod UID, when it ran last and was not on its way out, in seconds since 1970.
        announced: by node, since when it has a taint that says that pods have to leave.
        fewest: how many pods of the Deployment were ready at once, at least; ``None``: there is no Deployment.
        refused: seconds for which a sharing pod was refused or admitted without a share.
        unwatched: the longest time without a look of an enforcer at its GPUs, in seconds.
        templates: by name of a claim template, when a pod was seen last that uses it; also before the step.
        waited: seconds from creation until ready, of the slowest pod that became ready.
    """

    daemons: dict[str, dict[int, None]] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)
    alive: dict[str, float] = field(default_factory=dict)
    announced: dict[str, float] = field(default_factory=dict)
    fewest: int | None = None
    refused: float = 0.0
    unwatched: float = 0.0
    waited: float = 0.0
    templates: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.time)


class Sampler:
    """Samples a place in threads of its own, one for each node and one that asks the API server, which may be away."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._since: dict[str, float] = {}
        self._quotas: dict[str, dict[str, int]] = {}
        self._ended = threading.Event()
        samples = [self._cluster, *(partial(self._node, each) for each in place.machines)]
        self._threads = [threading.Thread(target=self._follow, args=(each,)) for each in samples]
        self.seen = Seen()

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def begin(self) -> None:
        """Begin a step: of the daemons only those count that live."""
        self._since.clear()
        living = [row for machine in self._place.machines for row in machine.serving().items()]
        self.seen = Seen(
            daemons={where: dict.fromkeys(found) for where, found in living}, templates=self.seen.templates
        )

    def _follow(self, sample: Callable[[float], None]) -> None:
        last = time.monotonic()
        while not self._ended.wait(EVERY):
            now = time.monotonic()
            with suppress(OSError, ValueError, LookupError):
                sample(now - last)
            last = now

    def _node(self, machine: Machine, _: float) -> None:
        seen = self.seen
        for where, found in machine.serving().items():
            seen.daemons.setdefault(where, {}).update(dict.fromkeys(found))
        lines = [processes.read(pid, "cmdline") for pid in processes.pids(machine.cgroup)]
        watched = any(ENFORCER in line for line in lines)
        self._weigh(seen, machine.name, used(machine.home) if watched else {}, time.monotonic())
        status = json.loads((machine.home / STATE / "status.json").read_text())
        seen.unwatched = max(seen.unwatched, time.time() - max(seen.began, moment(status["time"])))

    def _weigh(self, seen: Seen, node: str, held: Mapping[str, int], now: float) -> None:
        for pod, quota in self._quotas.get(node, {}).items():
            if held.get(pod, 0) <= quota:
                self._since.pop(pod, None)
            else:
                lasted = now - self._since.setdefault(pod, now)
                seen.over[pod] = max(lasted, seen.over.get(pod, 0.0))

    def _cluster(self, passed: float) -> None:
        seen, place = self.seen, self._place
        if place.admitted() != "share":
            seen.refused += passed
        now, pods = time.time(), place.pods()
        self._quotas = {machine.name: quotas(pods, machine.name) for machine in place.machines}
        if place.deployment:
            ready = sum(kind(pod) == REPLICA and is_ready(pod) for pod in pods)
            seen.fewest = ready if seen.fewest is None else min(seen.fewest, ready)
        for pod in pods:
            seen.templates |= dict.fromkeys(templates(pod), now)
            if _steady(pod):
                seen.alive[uid(pod)] = now
            seen.waited = max(seen.waited, _waited(pod, seen.began))
        for node in place.api.items(f"{CORE}/nodes"):
            if any(each["key"] == UNSCHEDULABLE for each in node["spec"].get("taints") or ()):
                seen.announced.setdefault(node["metadata"]["name"], now)


def quotas(pods: Iterable[Object], node: str) -> dict[str, int]:
    """MiB that each pod of a node may use."""
    mine = [pod for pod in pods if node_of(pod) == node]
    return {uid(pod): mib(pod["metadata"].get("annotations", {}).get(MEMORY, "0")) for pod in mine}


def used(home: Path) -> dict[str, int]:
    """MiB of each pod, from the simulated cards' own books."""
    found: dict[str, int] = {}
    for file in (home / STATE / "simulator/state/processes").glob("[0-9]*"):
        pod = processes.pod_of(int(file.name))
        if pod:
            rows = [dict(part.split("=", 1) for part in line.split("\t")) for line in file.read_text().splitlines()]
            found[pod] = found.get(pod, 0) + sum(int(row.get("memory_mib", 0)) for row in rows)
    return found


def templates(pod: Object) -> Iterator[str]:
    """Name the claim templates that a pod uses."""
    for entry in pod["spec"].get("resourceClaims") or ():
        if "resourceClaimTemplateName" in entry:
            yield entry["resourceClaimTemplateName"]


def moment(when: str) -> float:
    """Return an RFC 3339 time in seconds since 1970."""
    return datetime.fromisoformat(when).timestamp()


def _steady(pod: Object) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and (pod.get("status") or {}).get("phase") == "Running"


def _waited(pod: Object, since: float) -> float:
    """Seconds from its creation until it was ready; zero for a pod of before, and for one that never was."""
    made = moment(pod["metadata"]["creationTimestamp"])
    ready = [each for each in (pod.get("status") or {}).get("conditions") or () if each["type"] == "Ready"]
    if made < since or not ready or ready[0]["status"] != "True":
        return 0.0
    return moment(ready[0]["lastTransitionTime"]) - made
