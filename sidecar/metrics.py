"""The pod's figures as text for Prometheus.

Written by hand: the client library would add 13 MiB to every sharing pod for six lines of text.
"""

from collections.abc import Iterator

from sidecar.status import Status

MIB = 1024 * 1024
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(status: Status | None, *, messages: int, rss_bytes: int) -> bytes:
    """Render all metrics. ``messages``: lines printed so far; ``rss_bytes``: this process's own memory."""
    return ("\n".join(_lines(status or Status(), status is not None, messages, rss_bytes)) + "\n").encode()


def _lines(status: Status, known: bool, messages: int, rss_bytes: int) -> Iterator[str]:  # noqa: FBT001 - private
    yield from _gauge("gpu_share_status_readable", "Whether the node agent's status file can be read.")
    yield f"gpu_share_status_readable {int(known)}"
    yield from _gauge("gpu_share_ready", "Whether the share is ready to be used.")
    yield f"gpu_share_ready {int(status.ready)}"
    yield from _gauge("gpu_share_memory_used_bytes", "GPU memory a container holds.")
    yield from (f'gpu_share_memory_used_bytes{{container="{u.container}"}} {u.used_mib * MIB}' for u in status.uses)
    yield from _gauge("gpu_share_memory_quota_bytes", "GPU memory a container may hold.")
    yield from (f'gpu_share_memory_quota_bytes{{container="{u.container}"}} {u.quota_mib * MIB}' for u in status.uses)
    yield from _gauge("gpu_share_state", "1 for the state a container is in.")
    yield from (f'gpu_share_state{{container="{u.container}",state="{u.state}"}} 1' for u in status.uses)
    yield from _help("gpu_share_messages_total", "Warnings and kills printed to the log.", "counter")
    yield f"gpu_share_messages_total {messages}"
    yield from _gauge("process_resident_memory_bytes", "Memory of the sidecar itself.")
    yield f"process_resident_memory_bytes {rss_bytes}"


def _gauge(name: str, text: str) -> Iterator[str]:
    return _help(name, text, "gauge")


def _help(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
