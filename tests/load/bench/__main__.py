"""``python -m tests.load.bench``: requests per second, latency and memory of the webhook; and where the time goes.

``ready`` as first argument: how long pods take to be Ready on a real node (``ready.py``).
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.load.bench import plot
from tests.load.bench.client import Load, Measured, drive
from tests.load.bench.parts import parts
from tests.support import reviews
from tests.support.webhook import Webhook, serving

TICKS = os.sysconf("SC_CLK_TCK")
CONNECTIONS = (1, 8)
COLUMNS = "{:<12} {:>7} {:>3} {:>11} {:>8} {:>8} {:>8} {:>12} {:>8}"


def pods() -> dict[str, dict[str, Any]]:
    """A typical pod: two containers, a volume of each common kind; and one with 400 variables."""
    pod = reviews.pod()
    [main] = pod["spec"]["containers"]
    main["env"] = [{"name": f"SETTING_{number}", "value": f"value {number}"} for number in range(8)]
    mounts = [{"name": name, "mountPath": f"/mnt/{name}"} for name in ("cache", "config", "token")]
    main["volumeMounts"] = mounts
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 10, "timeoutSeconds": 1}
    main["livenessProbe"] = main["readinessProbe"] = probe
    proxy = {**reviews.pod()["spec"]["containers"][0], "name": "proxy", "image": "registry.example/proxy:1"}
    volumes = [
        {"name": "cache", "emptyDir": {}},
        {"name": "config", "configMap": {"name": "model", "defaultMode": 420}},
    ]
    volumes.append({"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})
    pod["spec"] |= {
        "containers": [main, proxy],
        "volumes": volumes,
        "serviceAccountName": "model",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [
            {
                "key": "node.kubernetes.io/not-ready",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
        ],
    }
    many = reviews.pod()
    many["spec"]["containers"][0]["env"] = [{"name": f"SETTING_{n}", "value": f"value {n}"} for n in range(400)]
    return {"typical": pod, "400 env": many}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def measure(webhook: Webhook, body: bytes, connections: int, seconds: float) -> tuple[Measured, float]:
    """One load; with it the worker's CPU seconds per request."""
    [worker] = webhook.worker_pids()
    load = Load(webhook.port, webhook.authority.bundle.decode(), body, connections, seconds)
    before, answered = cpu_seconds(worker), webhook.metric("gpu_share_admission_duration_seconds_count")
    measured = drive(load)
    requests = webhook.metric("gpu_share_admission_duration_seconds_count") - answered
    return measured, (cpu_seconds(worker) - before) / requests


def middle(runs: list[tuple[Measured, float]]) -> tuple[Measured, float]:
    """The middle of the runs, by their median latency."""
    return sorted(runs, key=lambda run: run[0].quantile(0.5))[len(runs) // 2]


def row(name: str, body: bytes, connections: int, run: tuple[Measured, float], rss: float) -> str:
    """One line of the table."""
    measured, cpu = run
    quantiles = [f"{measured.quantile(share) * 1e3:.2f} ms" for share in (0.5, 0.99, 1.0)]
    size, rate = f"{len(body) / 1000:.1f} kB", f"{measured.rate:.0f}/s"
    return COLUMNS.format(name, size, connections, rate, *quantiles, f"{cpu * 1e6:.0f} us", f"{rss:.0f} MiB")


def main(argv: list[str]) -> int:
    if argv[:1] == ["ready"]:
        from tests.load.bench import ready  # noqa: PLC0415 - needs what a real node needs

        return ready.main(argv[1:])
    parser = argparse.ArgumentParser("python -m tests.load.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each run (default 4)")
    parser.add_argument("--runs", type=int, default=3, help="runs of which the middle one is shown (default 3)")
    parser.add_argument("--write", action="store_true", help="put result and picture into docs/pictures")
    options = parser.parse_args(argv)
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load average {load:.1f} before; kept-alive connections over TLS 1.3")
    print(COLUMNS.format("POD", "BODY", "C", "REQUESTS", "P50", "P99", "MAX", "CPU/REQUEST", "RSS"))
    spent: dict[str, list[float]] = {}
    found: dict[tuple[str, int], Measured] = {}
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as webhook:
        for name, pod in pods().items():
            body = reviews.as_sent(pod)
            for connections in CONNECTIONS:
                runs = [measure(webhook, body, connections, options.seconds) for _ in range(options.runs)]
                rss = resident_mib(webhook.worker_pids()[0])
                print(row(name, body, connections, middle(runs), rss), flush=True)
                found[name, connections] = middle(runs)[0]
                spent.setdefault(name, []).extend(cpu for _, cpu in runs)
            time.sleep(0.2)
    for name, pod in pods().items():
        print(f"\nwhere the CPU of one request goes, {name} pod:")
        known = parts(pod)
        rest = statistics.median(spent[name]) - sum(known.values())
        for part, seconds in {**known, "TLS, HTTP, log, kernel": rest}.items():
            print(f"  {part:<24}{seconds * 1e6:>6.0f} us")
    if options.write:
        print(*plot.write(plot.result(found)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
