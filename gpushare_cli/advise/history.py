"""The most that containers used in the last two weeks, also those of pods that are gone, by Prometheus."""

from typing import Final

from gpushare.quantity import MIB
from gpushare_cli.advise.advice import Place
from gpushare_cli.prometheus import JOB, Prometheus, matcher

PEAK: Final = "max by (namespace, pod, container) (max_over_time({}[14d]))"
METRIC: Final = "gpu_share_container_memory_peak_bytes"
"""An enforcer's own peak: a series of what is in use lacks what came and went between two scrapes."""


def peaks(server: Prometheus, namespace: str, now: float) -> dict[Place, int]:
    """Return the peaks in MiB before a Unix time, of one namespace, or of all where that is empty.

    Raises:
        GpuShareError: Prometheus cannot be asked.
    """
    where = [matcher("namespace", namespace)] if namespace else []
    found = server.at(PEAK.format(server.selector(METRIC, JOB, *where)), now)
    names = [(each.labels.get(key, "") for key in ("namespace", "pod", "container")) for each in found]
    return {(*of,): round(each.points[0][1] / MIB) for of, each in zip(names, found, strict=True) if each.points}
