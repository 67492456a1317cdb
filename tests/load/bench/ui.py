"""``python -m tests.load.bench ui``: seconds from the command ``gpu-share ui`` to its first page, by size of the fleet.

Nodes, their GPUs and one claim for each GPU are objects on a real API server; there are no enforcers. The first page is
the fleet, which the address leads to. Each round starts the command anew.
"""

import argparse
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from gpushare.contract import CLAIM, DEVICE_CLASS, DRIVER, OWN_CLAIMS
from gpushare.kube_client import CORE_V1, RESOURCE_V1, path
from tests.integration.controlplane.bed import CLAIMS, SLICES, Bed
from tests.integration.controlplane.objects import Object
from tests.load.bench import report
from tests.support.ui import opened
from tests.testbed.cluster.controlplane import ControlPlane, sweep

SIZES: Final = (50, 500)
"""Nodes."""
GPUS: Final = 8
GPU_MIB: Final = 81920
OWN: Final = {OWN_CLAIMS: "any"}
CALLERS: Final = 8
PLANES: Final = report.FOLDER / "planes"
COLUMNS: Final[report.Columns] = {
    "nodes": lambda row: f"{row['nodes']}",
    "GPUs": lambda row: f"{row['nodes'] * GPUS:,}",
    "first page, median s": lambda row: f"{row['median_s']:.2f}",
    "min to max s": lambda row: f"{row['min_s']:.2f} to {row['max_s']:.2f}",
    "CPU s": lambda row: f"{row['cpu_s']:.2f}",
    "most memory, MiB": lambda row: f"{row['kib'] / 1024:.0f}",
}


@dataclass(frozen=True, slots=True)
class First:
    """A first page: its text, seconds until it was there, seconds of a processor until then, most KiB of memory."""

    text: str
    seconds: float
    cpu: float
    kib: int


def main(argv: list[str]) -> int:
    """Run it; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tests.load.bench ui", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="starts for each size (default 7)")
    report.with_page(parser)
    asked = parser.parse_args(argv)
    sweep(PLANES)
    plane = ControlPlane.start(PLANES / str(os.getpid()))
    try:
        bed = Bed(plane=plane, cluster=plane.cluster())
        found = report.result("ui", asked, rows=[])
        for nodes in SIZES:
            with fleet(bed, nodes):
                first_page(plane.kubeconfig())  # not counted: it writes the bytecode
                found["rows"].append(row(nodes, [first_page(plane.kubeconfig()) for _ in range(asked.rounds)]))
    finally:
        plane.stop()
    report.publish(found, COLUMNS, asked.write)
    return 0


def row(nodes: int, found: list[First]) -> dict[str, float]:
    """Return a row of the table."""
    seconds = [each.seconds for each in found]
    return {
        "nodes": nodes, "median_s": median(seconds), "min_s": min(seconds), "max_s": max(seconds),
        "cpu_s": median(each.cpu for each in found), "kib": max(each.kib for each in found),
    }  # fmt: skip


def first_page(kubeconfig: Path) -> First:
    """Start the command, open the address that it prints, and end it."""
    began = time.monotonic()
    with opened(kubeconfig, PYTHONDONTWRITEBYTECODE="") as browser:
        text = browser.page()
        return First(text, time.monotonic() - began, browser.seconds, browser.kib)


@contextmanager
def fleet(bed: Bed, nodes: int) -> Iterator[None]:
    """Nodes of eight GPUs, with one claim on each GPU, until the end of the block."""
    names, namespace = [f"fleet-{number:03}" for number in range(nodes)], bed.namespace("fleet", annotations=OWN)
    with ThreadPoolExecutor(CALLERS) as pool:
        try:
            list(pool.map(lambda name: _add(bed, name, namespace), names))
            yield
        finally:
            list(pool.map(lambda name: _remove(bed, name, namespace), names))


def _add(bed: Bed, name: str, namespace: str) -> None:
    bed.node(name, *[GPU_MIB] * GPUS)
    for number in range(GPUS):
        made = bed.cluster.create(path(RESOURCE_V1, CLAIMS, namespace=namespace), _claim(name, number))
        bed.cluster.replace(path(RESOURCE_V1, CLAIMS, made["metadata"]["name"], namespace) + "/status", made | {
            "status": {"allocation": {"devices": {"results": [_result(name, number)]}}}
        })  # fmt: skip


def _claim(node: str, number: int) -> Object:
    exactly = {"deviceClassName": DEVICE_CLASS, "capacity": {"requests": {"memory": "4Gi"}}}
    spec = {"devices": {"requests": [{"name": CLAIM, "exactly": exactly}]}}
    metadata = {"name": f"{node}-{number}"}
    return {
        "apiVersion": RESOURCE_V1.removeprefix("/apis/"),
        "kind": "ResourceClaim",
        "metadata": metadata,
        "spec": spec,
    }


def _result(node: str, number: int) -> Object:
    return {
        "driver": DRIVER, "pool": node, "device": f"gpu-{number}", "request": CLAIM, "shareID": str(uuid.uuid4()),
        "consumedCapacity": {"memory": "4Gi", "compute": "25", "clients": "1"},
    }  # fmt: skip


def _remove(bed: Bed, name: str, namespace: str) -> None:
    for number in range(GPUS):
        bed.remove(path(RESOURCE_V1, CLAIMS, f"{name}-{number}", namespace))
    bed.remove(path(CORE_V1, "nodes", name))
    bed.remove(path(RESOURCE_V1, SLICES, f"{name}-{DRIVER}"))
