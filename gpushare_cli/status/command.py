"""``gpu-share status``: what the containers of one pod use, from inside its sidecar."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpushare.contract import SIDECAR
from gpushare.errors import GpuShareError
from gpushare_cli.node_status import now, state_word
from gpushare_cli.terminal import cell, show, table, warn
from sidecar import files, pod_status
from sidecar.pod_status import Status, Use

STALE_SECONDS: Final = 60.0
"""The enforcer writes every few seconds; a restart of it takes less than this."""
HEADERS: Final = ("CONTAINER", "GPU", "MEM/QUOTA", "PEAK", "STATE")
ELSEWHERE: Final = f"in a pod with a share: kubectl exec POD -c {SIDECAR} -- gpu-share status"


def run(args: argparse.Namespace) -> int:
    """Show it. Returns 1 when the share is not ready, or when the enforcer does not run."""
    data, status = _read(args.status / pod_status.FILE)
    show(args.output, json.loads(data), lines(status))
    age = None if status.written is None else now().timestamp() - status.written
    if age is None or age > STALE_SECONDS:
        when = "at an unknown time" if age is None else f"{age:.0f} s ago"
        warn(f"the enforcer wrote this status {when} and is not running now")
        return 1
    return 0 if status.ready else 1


def lines(status: Status) -> Iterator[str]:
    """Lay a pod's status out: what it waits for, the containers, the messages."""
    if not status.ready:
        yield f"the share of the GPU is not ready: {status.waiting or 'the enforcer gives no reason'}"
    if status.uses:
        yield from table(HEADERS, [_row(use) for use in sorted(status.uses, key=lambda use: (use.container, use.gpu))])
    yield from map(str, status.messages)


def _read(file: Path) -> tuple[bytes, Status]:
    data = files.read(str(file), pod_status.MAX_BYTES)
    status = None if data is None else pod_status.parse(data)
    if data is None or status is None:
        removed = "if that fails too, somebody removed the file's folder on the node: create the pod again"
        raise GpuShareError(f"cannot read {file}; run this command {ELSEWHERE}; {removed}")
    return data, status


def _row(use: Use) -> tuple[object, ...]:
    memory = f"{cell(use.used_mib)}/{use.quota_mib}"
    return use.container, use.gpu, memory, use.peak_mib, state_word(use.state, use.used_mib, use.quota_mib)
