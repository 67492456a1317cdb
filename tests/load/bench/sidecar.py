"""``python -m tests.load.bench.sidecar``: what the sidecar costs a pod: memory; time to start and stop."""

import argparse
import json
import os
import selectors
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "gpushare_cli", "sidecar")
COLUMNS = "{:<34} {:>9} {:>9} {:>9}"
TICKS = os.sysconf("SC_CLK_TCK")
CPU_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a sidecar. Seconds, and KiB."""

    started: float
    stopped: float
    rss: int
    peak: int
    pss: int
    private: int


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.load.bench.sidecar", description=__doc__)
    parser.add_argument("--runs", type=int, default=7, help="lives of a sidecar (default 7)")
    parser.add_argument("--beside", type=int, default=4, help="others that run meanwhile, for PSS (default 4)")
    options = parser.parse_args(argv)
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before; {options.beside} sidecars run beside")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        others = [start(folder) for _ in range(options.beside)]
        try:
            runs = [live(folder) for _ in range(options.runs)]
            share = cpu_share(others[0]) if others else 0.0
        finally:
            for other in others:
                stop(other)
    show(runs)
    print(f"CPU while the file changes at every look: {share * 100:.2f} % of a core" if others else "")
    return 0


def show(runs: list[Run]) -> None:
    print(COLUMNS.format("", "MEDIAN", "MIN", "MAX"))
    rows: list[tuple[str, list[float], float, str]] = [
        ("resident memory, VmRSS", [run.rss for run in runs], 1024, "MiB"),
        ("  its peak, VmHWM", [run.peak for run in runs], 1024, "MiB"),
        ("  proportional to sharers, Pss", [run.pss for run in runs], 1024, "MiB"),
        ("  of its own alone, Private", [run.private for run in runs], 1024, "MiB"),
        ("start to first line", [run.started for run in runs], 1e-3, "ms"),
        ("SIGTERM to its end", [run.stopped for run in runs], 1e-3, "ms"),
    ]
    for what, measured, unit, name in rows:
        values = [value / unit for value in measured]
        figures = (statistics.median(values), min(values), max(values))
        print(COLUMNS.format(what, *(f"{value:.1f} {name}" for value in figures)))


def live(folder: Path) -> Run:
    """Start one, let it work, measure, stop it."""
    begun = time.perf_counter()
    process = start(folder)
    first_line(process)
    started = time.perf_counter() - begun
    for number in range(3):
        write(folder, number)
        time.sleep(0.5)
    status, rollup = (fields(process.pid, name) for name in ("status", "smaps_rollup"))
    private = rollup["Private_Clean"] + rollup["Private_Dirty"]
    stopped = stop(process)
    return Run(started, stopped, status["VmRSS"], status["VmHWM"], rollup["Pss"], private)


def start(folder: Path) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "--status", str(folder), "--listen", "127.0.0.1:0"]
    as_in_the_image = {**os.environ, "PYTHONOPTIMIZE": "2"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, env=as_in_the_image)


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(30), "the sidecar says nothing"
    return process.stdout.readline()


def stop(process: subprocess.Popen[bytes]) -> float:
    """Seconds from SIGTERM to the end."""
    begun = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    code = process.wait(10)
    took = time.perf_counter() - begun
    assert code == 0, code
    assert process.stdout is not None
    process.stdout.close()
    return took


def write(folder: Path, number: int) -> None:
    """A full status: two containers, two GPUs, twenty messages; another at every call."""
    gpus = [f"GPU-{index}a000000-0000-4000-8000-000000000000" for index in range(2)]
    uses: list[Any] = [
        {"container": f"c{index}", "gpu": gpu, "usedMiB": number, "quotaMiB": 4096, "state": "Within"}
        for index, gpu in enumerate(gpus)
    ]
    told = [{"time": f"2026-11-20T22:16:{n:02}Z", "text": "OverQuota: " + "x" * 200} for n in range(20)]
    about = [{"uuid": gpu, "model": "NVIDIA", "memoryMiB": 81008, "usedByOthersMiB": number} for gpu in gpus]
    content = {"version": 1, "ready": True, "gpus": about, "containers": uses, "messages": told}
    (folder / "new").write_text(json.dumps(content))
    (folder / "new").rename(folder / "status.json")


def cpu_share(process: subprocess.Popen[bytes]) -> float:
    """Share of a core that one takes while its file changes all the time."""
    before, begun = cpu(process.pid), time.monotonic()
    number = 0
    while time.monotonic() - begun < CPU_SECONDS:
        number += 1
        write(process_folder(process), number)
        time.sleep(0.5)
    return (cpu(process.pid) - before) / (time.monotonic() - begun)


def process_folder(process: subprocess.Popen[bytes]) -> Path:
    words = list(map(str, process.args))  # type: ignore[arg-type] # a list: so it was started
    return Path(words[words.index("--status") + 1])


def cpu(pid: int) -> float:
    row = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(row[11]) + int(row[12])) / TICKS


def fields(pid: int, name: str) -> dict[str, int]:
    """Figures of a file of /proc in KiB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/{name}").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) == 3 and words[2] == "kB"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
