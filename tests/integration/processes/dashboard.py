"""``make pictures``: draw the dashboard of the chart for the documentation.

A real Prometheus scrapes the real webhook, enforcer and sidecars for some minutes. The GPU is simulated: one tenant
stays within its quota, one exceeds it and is killed. Each row of the dashboard becomes a picture in docs/pictures.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from tests.integration.processes.containers import wait_for
from tests.integration.processes.enforcing import Node
from tests.integration.processes.monitored import panels, pod, scraped, service, sidecar
from tests.support import helm, reviews
from tests.support.pictures.panels import Panel, Series, row, series
from tests.support.pictures.svg import FOLDER
from tests.support.prometheus import Prometheus, concrete
from tests.support.webhook import Webhook, serving
from tests.testbed.cluster.ports import free_ports

TENANTS: Final = {
    "tts": ("127.9.4.3", ("--mib", "3072")),
    "notebook": ("127.9.4.5", ("--mib", "2048", "--grow-to", "9216", "--after")),
}
"""By pod: address, and what its program does; the last one grows after half of the time."""
QUOTA_MIB: Final = 4096
GRACE: Final = 5.0
INTERVAL: Final = "20s"
"""For rates, where Prometheus scrapes every second."""
REPORT: Final = "Report"
"""The last row, which adds up hours."""
NOTE: Final = "{minutes:.0f} min of a simulated GPU of 16 GiB; one of two tenants exceeds its quota. A real Prometheus."


def main(argv: list[str]) -> int:
    """Play, ask, draw."""
    options = argparse.ArgumentParser(prog="make pictures", description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seconds", type=float, default=180.0, help="how long it plays (default 180)")
    options.add_argument("--into", type=Path, default=FOLDER, help="folder of the pictures (default docs/pictures)")
    chosen = options.parse_args(argv)
    helm.need()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, svg in drawn(folder, stack, chosen.seconds):
            (chosen.into / name).write_text(svg, encoding="utf-8")
            print(chosen.into / name)
    return 0


def drawn(folder: Path, stack: ExitStack, seconds: float) -> Iterator[tuple[str, str]]:
    """Yield the name and the picture of each row of the dashboard."""
    (port,) = free_ports(1)
    (folder / "webhook").mkdir()
    webhook = stack.enter_context(serving(folder / "webhook"))
    services = [service("gpu-share-enforcer", port), service("gpu-share-webhook", webhook.admin_port)]
    sidecars = [pod(address, name) for name, (address, _) in TENANTS.items()]
    turn = play(folder, stack, port, seconds / 2)
    prometheus = stack.enter_context(scraped(folder, services, sidecars))
    wait_for(lambda: prometheus.answers("count(up == 1) == 4"), 60)
    begin = time.time()
    while time.time() - begin < seconds:
        turn()
        admit(webhook, int(time.time() - begin))
        time.sleep(1)
    note = NOTE.format(minutes=seconds / 60)
    for title, found in rows(prometheus, begin, time.time()):
        yield f"dashboard-{title.lower()}.svg", row(title, found, note)


def play(folder: Path, stack: ExitStack, port: int, after: float) -> Callable[[], None]:
    """Start the node and its tenants; returns what keeps their kernels running."""
    node, run = Node(folder, stack), folder / "run"
    stack.callback(node.end)
    quotas, processes = [], []
    for name, (address, options) in TENANTS.items():
        container = node.container()
        growing = options[-1] == "--after"
        processes.append(container.tenant(node.sim, *options, *([str(after)] if growing else [])))
        quotas.append(container.quota(
            node.gpu, QUOTA_MIB, pod=name, reserved_mib=QUOTA_MIB, clients=1, grace_seconds=GRACE,
        ))  # fmt: skip
        sidecar(stack, run / "status" / container.pod_uid, address)
    node.allow(*quotas)
    node.start(
        "--run", str(run), f"--metrics=127.0.0.1:{port}", "--limit-verification-seconds=1", "--mode=time-slicing"
    )

    def turn() -> None:
        for process in processes:
            if process.poll() is None:
                node.sim.run_kernel(process.pid, node.gpu)

    return turn


def admit(webhook: Webhook, second: int) -> None:
    """Have a pod admitted; every tenth one asks for an impossible amount and is denied."""
    asked = reviews.pod()
    if second % 10 == 0:
        asked["metadata"]["annotations"]["gpu-share.io/memory"] = "lots"
    webhook.post(reviews.encoded(asked))


def rows(prometheus: Prometheus, begin: float, end: float) -> Iterator[tuple[str, list[Panel]]]:
    """Yield each row of the dashboard with what its panels show."""
    title, found = "", list[Panel]()
    for panel in takewhile(lambda panel: panel["title"] != REPORT, panels()):
        if panel["type"] == "row":
            if found:
                yield title, found
            title, found = panel["title"], []
        else:
            found.append(shown(prometheus, panel, begin, end))
    yield title, found


def shown(prometheus: Prometheus, panel: dict[str, Any], begin: float, end: float) -> Panel:
    """Ask the queries of a panel: at the end where it shows one moment, else over the whole time."""
    found = list[Series]()
    for target in panel["targets"]:
        query, when = concrete(target["expr"], INTERVAL), {"time": f"{end:.3f}"}
        if not target.get("instant"):
            when = {"start": f"{begin:.3f}", "end": f"{end:.3f}", "step": "2"}
        where = "query" if target.get("instant") else "query_range"
        found += series(prometheus.get(where, query=query, **when), target.get("legendFormat", ""))
    columns, hidden = organized(panel)
    return Panel(panel["title"], panel["type"], panel["fieldConfig"]["defaults"]["unit"], found, columns, hidden)


def organized(panel: dict[str, Any]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the columns of a table that have a place or a heading, each with its heading, and those it leaves out."""
    options: dict[str, Any] = next(
        (each["options"] for each in panel.get("transformations", ()) if each["id"] == "organize"), {}
    )
    places, headings = options.get("indexByName", {}), options.get("renameByName", {})
    columns = [(name, headings.get(name, name)) for name in sorted(places, key=places.get)]
    return columns, [name for name, out in options.get("excludeByName", {}).items() if out]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
