"""What is to be seen only while it lasts: once a second, memory, daemons, admission, tenants, the enforcer's looks."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Self

from tests.rehearsal import processes
from tests.rehearsal.amounts import mib
from tests.rehearsal.api import CORE, CREATED, Api
from tests.rehearsal.state import Object, uid

EVERY: Final = 1.0
STATE: Final = "var/lib/gpu-share"
MEMORY: Final = "gpu-share.io/memory"
ENFORCER: Final = b"--poll-seconds"
"""Stands in its command line and in no other."""
UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One cluster of one node.

    Attributes:
        api: its API server.
        node: the node's name; ``home``: where its files are on this machine; ``cgroup``: name of its control group;
            ``holder``: pid of the process that holds its namespaces.
        namespace: of the tenants; it opted in.
        probe: a sharing pod for dry runs.
    """

    api: Api
    node: str
    home: Path
    cgroup: str
    holder: int
    namespace: str
    probe: Object

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
        announced: since when the node has a taint that says that pods have to leave; ``None``: it had none.
        refused: seconds for which a sharing pod was refused or admitted without a share.
        unwatched: the longest time without a look of the enforcer at its GPUs, in seconds.
        templates: by name of a claim template, when a pod was seen last that uses it; also before the step.
        waited: seconds from creation until ready, of the slowest pod that became ready.
    """

    daemons: dict[str, dict[int, None]] = field(default_factory=dict)
    over: dict[str, float] = field(default_factory=dict)
    alive: dict[str, float] = field(default_factory=dict)
    announced: float | None = None
    refused: float = 0.0
    unwatched: float = 0.0
    waited: float = 0.0
    templates: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.time)


class Sampler:
    """Samples a place in two threads of its own: the API server may be slow or away."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._over: dict[str, float] = {}
        self._quotas: dict[str, int] = {}
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._follow, args=(each,)) for each in (self._node, self._cluster)]
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
        self._over.clear()
        living = {place: dict.fromkeys(found) for place, found in processes.serving(self._place.cgroup).items()}
        self.seen = Seen(daemons=living, templates=self.seen.templates)

    def _follow(self, sample: Callable[[float], None]) -> None:
        last = time.monotonic()
        while not self._ended.wait(EVERY):
            now = time.monotonic()
            with suppress(OSError, ValueError, LookupError):
                sample(now - last)
            last = now

    def _node(self, _: float) -> None:
        seen, place = self.seen, self._place
        for where, found in processes.serving(place.cgroup).items():
            seen.daemons.setdefault(where, {}).update(dict.fromkeys(found))
        lines = [processes.read(pid, "cmdline") for pid in processes.pids(place.cgroup)]
        self._weigh(seen, used(place.home), time.monotonic(), watched=any(ENFORCER in line for line in lines))
        status = json.loads((place.home / STATE / "status.json").read_text())
        seen.unwatched = max(seen.unwatched, time.time() - max(seen.began, moment(status["time"])))

    def _weigh(self, seen: Seen, held: Mapping[str, int], now: float, *, watched: bool) -> None:
        for pod, quota in list(self._quotas.items()):
            if not watched or held.get(pod, 0) <= quota:
                self._over.pop(pod, None)
            else:
                lasted = now - self._over.setdefault(pod, now)
                seen.over[pod] = max(lasted, seen.over.get(pod, 0.0))

    def _cluster(self, passed: float) -> None:
        seen, place = self.seen, self._place
        if place.admitted() != "share":
            seen.refused += passed
        now, pods = time.time(), place.pods()
        self._quotas = {uid(pod): mib(pod["metadata"].get("annotations", {}).get(MEMORY, "0")) for pod in pods}
        for pod in pods:
            seen.templates |= dict.fromkeys(templates(pod), now)
            if _steady(pod):
                seen.alive[uid(pod)] = now
            seen.waited = max(seen.waited, _waited(pod, seen.began))
        spec = place.api.get(f"{CORE}/nodes/{place.node}")["spec"]
        if any(each["key"] == UNSCHEDULABLE for each in spec.get("taints") or ()):
            seen.announced = seen.announced or now


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
