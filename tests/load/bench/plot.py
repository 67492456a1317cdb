"""What the benchmark of the webhook found, as JSON and as a picture made from that JSON."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gpushare.version import installed
from tests.load.bench.client import Measured
from tests.support.pictures.chart import WIDE, Axis, Line, drawn
from tests.support.pictures.panels import marks
from tests.support.pictures.svg import FOLDER, document, words

SHARES: Final = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
CAPTION: Final = 24
"""Pixels below the chart."""
TITLE: Final = "Latency of an admission review, by its share of all reviews"


def result(runs: Mapping[tuple[str, int], Measured]) -> dict[str, Any]:
    """Return what was measured, by pod and number of connections, with the machine and the versions."""
    return {
        "machine": f"{os.cpu_count()} cores, {processor()}",
        "versions": {"gpu-share": installed(), "Python": platform.python_version(), "Linux": platform.release()},
        "runs": [
            {
                "pod": pod, "connections": connections, "requestsPerSecond": round(found.rate, 1),
                "latencyMs": {str(share): round(found.quantile(share) * 1e3, 3) for share in SHARES},
            }
            for (pod, connections), found in runs.items()
        ],
    }  # fmt: skip


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name the processor, or its architecture where the kernel has no name for it."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def picture(found: Mapping[str, Any]) -> str:
    """Draw a result."""
    across = Axis("share of reviews that are faster, %", range(len(SHARES)), [f"{100 * each:g}" for each in SHARES])
    lines = [_line(each) for each in found["runs"]]
    up = marks(max(y for line in lines for _, y in line.points), "none")
    body = drawn(TITLE, across, Axis("latency, ms", up.marks, up.labels), lines, WIDE)
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    caption = words(f"{found['machine']}; {versions}", WIDE.left, WIDE.height + 8)
    return document(TITLE, (WIDE.width, WIDE.height + CAPTION), [*body, caption])


def write(found: Mapping[str, Any], folder: Path = FOLDER) -> Sequence[Path]:
    """Write result and picture; returns their paths."""
    paths = folder / "webhook-latency.json", folder / "webhook-latency.svg"
    paths[0].write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    paths[1].write_text(picture(json.loads(paths[0].read_text(encoding="utf-8"))), encoding="utf-8")
    return paths


def _line(run: Mapping[str, Any]) -> Line:
    points = [(float(at), run["latencyMs"][str(share)]) for at, share in enumerate(SHARES)]
    noun = "client" if run["connections"] == 1 else "clients"
    return Line(f"{run['pod']}, {run['connections']} {noun}", points)
