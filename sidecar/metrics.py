"""The pod's figures as text for Prometheus. Names are those of the enforcer's metrics (``enforcer.status.metrics``).

Written by hand: the client library would add 13 MiB to every sharing pod for a few lines of text.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gpushare.version import installed
from sidecar.pod_status import Gpu, Status, Use

MIB = 1024 * 1024
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_AMOUNTS: Final[Sequence[tuple[str, str, Callable[[Use], int | None]]]] = (
    ("gpu_share_container_memory_used_bytes", "GPU memory that a container uses.", lambda use: use.used_mib),
    (
        "gpu_share_container_memory_peak_bytes",
        "Highest GPU memory that the enforcer has measured for a container.",
        lambda use: use.peak_mib,
    ),
    ("gpu_share_container_memory_quota_bytes", "Quota of a container.", lambda use: use.quota_mib),
)


def render(status: Status | None, *, messages: int, rss_bytes: int) -> bytes:
    """Render all metrics. ``messages``: lines printed so far; ``rss_bytes``: this process's own memory."""
    return ("\n".join(_lines(status or Status(), status is not None, messages, rss_bytes)) + "\n").encode()


def _lines(status: Status, known: bool, messages: int, rss_bytes: int) -> Iterator[str]:  # noqa: FBT001 - private
    yield from _one(
        "gpu_share_status_readable", "1 if the sidecar can read the enforcer's status file, else 0.", int(known)
    )
    yield from _one("gpu_share_ready", "1 if the share is ready, else 0.", int(status.ready))
    written = status.written
    if written is not None:
        yield from _one(
            "gpu_share_status_timestamp_seconds",
            "Time at which the enforcer wrote the status file (Unix time).",
            written,
        )
    yield from _uses(status.uses)
    yield from _gpus(status.gpus)
    yield from _one("gpu_share_messages_total", "Warnings and kills that the sidecar logged.", messages, "counter")
    yield from _one("process_resident_memory_bytes", "Resident memory of the sidecar.", rss_bytes)
    yield from _help("gpu_share_build_info", "Version of gpu-share and Python; always 1.")
    yield f'gpu_share_build_info{{version="{installed()}",python="{sys.version.split()[0]}"}} 1'


def _uses(uses: Sequence[Use]) -> Iterator[str]:
    for name, text, amount in _AMOUNTS:
        yield from _help(name, text)
        for use in uses:
            if (mib := amount(use)) is not None:
                yield f"{name}{{{_of(use)}}} {mib * MIB}"
    yield from _help("gpu_share_container_state", "1 for the current state of a container.")
    yield from (f'gpu_share_container_state{{{_of(use)},state="{use.state}"}} 1' for use in uses)


def _gpus(gpus: Sequence[Gpu]) -> Iterator[str]:
    yield from _help("gpu_share_gpu_memory_usable_bytes", "GPU memory that shares of a GPU can reserve.")
    yield from (f'gpu_share_gpu_memory_usable_bytes{{gpu="{gpu.uuid}"}} {gpu.memory_mib * MIB}' for gpu in gpus)
    yield from _help("gpu_share_gpu_memory_used_by_others_bytes", "GPU memory that other pods and processes use.")
    for gpu in gpus:
        if gpu.others_mib is not None:
            yield f'gpu_share_gpu_memory_used_by_others_bytes{{gpu="{gpu.uuid}"}} {gpu.others_mib * MIB}'


def _of(use: Use) -> str:
    return f'container="{use.container}",gpu="{use.gpu}"'


def _one(name: str, text: str, value: float, kind: str = "gauge") -> Iterator[str]:
    yield from _help(name, text, kind)
    yield f"{name} {value}"


def _help(name: str, text: str, kind: str = "gauge") -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
