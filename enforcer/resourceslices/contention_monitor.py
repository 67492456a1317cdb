"""Finding out, again and again, which of this node's GPUs somebody else offers as well."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from enforcer.nvml.types import Gpu
from enforcer.resourceslices.contention import UNKNOWN, Allocatable, claimed_by_plugins, claimed_by_slices
from enforcer.status.events import EventRecorder, NodeEvent
from gpushare.contract import NODE_GPUS
from gpushare.errors import ClusterError, KubeletError
from gpushare.kube_client import RESOURCE_V1, KubeClient, path
from gpushare.reasons import Reason

log = structlog.get_logger()

FRESH: Final = 5.0
"""Seconds for which an answer will do: several threads ask."""
QUIET: Final = 30.0
"""Seconds nobody else may have offered a GPU before it is ours: a plugin that restarts offers nothing meanwhile."""
KUBELET: Final = "the kubelet's PodResources"
SLICES: Final = "other drivers' ResourceSlices"


class ContentionMonitor:
    """Which GPUs are contended. While a source does not answer, its last answer counts; before the first, all are.

    Args:
        cluster: to read ResourceSlices from.
        node: this node's name.
        allocatable: asks the kubelet what device plugins offer; raises ``KubeletError``.
        reporter: tells the operator what changed.
        changed: set when daemons may have to be started.
    """

    def __init__(
        self,
        cluster: KubeClient,
        node: str,
        allocatable: Callable[[], Allocatable],
        reporter: EventRecorder,
        changed: threading.Event,
    ) -> None:
        self._cluster, self._node, self._allocatable, self._reporter = cluster, node, allocatable, reporter
        self._changed = changed
        self._lock = threading.Lock()
        self._known: dict[str, Mapping[str, str]] = {}
        self._failed: dict[str, str] = {}
        self._looked: float | None = None
        self._seen: dict[str, tuple[float, str]] = {}
        """When each GPU was last offered by somebody else, and by whom."""
        self.current: Mapping[str, str] = {}
        """By UUID, who else offers a contended GPU, as a sentence."""
        self._reported: Mapping[str, str] = {}

    def check(self, gpus: Sequence[Gpu]) -> Mapping[str, str]:
        """Look at both sources, and say what changed."""
        with self._lock:
            now = time.monotonic()
            if self._looked is None or now - self._looked >= FRESH:
                self._ask(KUBELET, lambda: claimed_by_plugins(gpus, self._allocatable()))
                self._ask(SLICES, lambda: claimed_by_slices(gpus, self._slices()))
                self._looked = now
                found = {gpu: why for known in self._known.values() for gpu, why in known.items()}
                self._seen |= {gpu: (now, why) for gpu, why in found.items()}
                self._take({gpu: why for gpu, (when, why) in self._seen.items() if now - when <= QUIET} | found)
                self._add_unknown(gpus)
            return self.current

    def problems(self) -> Iterator[str]:
        """Say which source does not answer, and what is assumed meanwhile."""
        for source, error in list(self._failed.items()):
            meanwhile = (
                "its last answer stays valid"
                if source in self._known
                else f"no GPU is published until {source} can be read"
            )
            yield f"the enforcer cannot read {source}: {error}; {meanwhile}"

    def _slices(self) -> list[dict[str, object]]:
        items, _ = self._cluster.list(path(RESOURCE_V1, "resourceslices"), fieldSelector=f"spec.nodeName={self._node}")
        return items

    def _ask(self, source: str, ask: Callable[[], Mapping[str, str]]) -> None:
        try:
            self._known[source] = ask()
            self._failed.pop(source, None)
        except (ClusterError, KubeletError) as error:
            if source not in self._failed:
                log.warning("contended GPUs unknown", reason=str(error.reason), source=source, error=error.message)
            self._failed[source] = error.message

    def _take(self, found: Mapping[str, str]) -> None:
        before, self._reported = self._reported, dict(found)
        for gpu in found.keys() - before.keys():
            note = (
                f"GPU {gpu} gets no new shares from gpu-share: {found[gpu]}; running pods keep theirs. Remove the "
                f"GPU from the other driver or device plugin, or leave it out of the node's annotation {NODE_GPUS}."
            )
            self._reporter.record_on_node(NodeEvent(Reason.CONTENDED, note))
        for gpu in before.keys() - found.keys():
            note = f"no other driver offers GPU {gpu} any more: the GPU gets new shares again"
            self._reporter.record_on_node(NodeEvent(Reason.RECOVERED, note, warning=False))

    def _add_unknown(self, gpus: Sequence[Gpu]) -> None:
        """Until a source has answered once, it may offer any of them: at boot, plugins may be slower than we are."""
        silent = next((source for source in (KUBELET, SLICES) if source not in self._known), None)
        unsure = {} if silent is None else {gpu.uuid: f"{silent} {UNKNOWN}" for gpu in gpus}
        if self.current.keys() - unsure.keys() - self._reported.keys():
            self._changed.set()
        self.current = {**unsure, **self._reported}
