"""Cases 9 and 10: what the views say against the driver, and what a share costs."""

import importlib.util
import json
import statistics
from pathlib import Path
from typing import Any, Final

from tests.gpu.parcel import tenants
from tests.gpu.parcel.cases import dashboard
from tests.gpu.parcel.scene import Scene

NEAR_MIB: Final = 64
TORCH: Final = """
import json, time
import torch
began = time.perf_counter()
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
context = 1000 * (time.perf_counter() - began)
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
def work(seconds):
    count, end, begun = 0, time.perf_counter() + seconds, time.perf_counter()
    while time.perf_counter() < end:
        for _ in range(50):
            a @ a
        torch.cuda.synchronize()
        count += 50
    return count / (time.perf_counter() - begun)
work(0.5)
print(json.dumps({"context_ms": round(context, 1), "per_s": round(work(2.0), 1)}))
"""
ROUNDS: Final = 3
USED: Final = "gpu_share_container_memory_used_bytes"


def views(scene: Scene) -> str:
    """``top``, ``explain``, metrics and the dashboard's queries for a container that holds memory."""
    scene.ensure_installed()
    site = scene.site
    with scene.namespace("viewed") as namespace:
        pod = site.run(namespace, tenants.pod("holder", scene.programs.hold(3000), "8Gi"))
        site.until("the metric shows it", lambda: _metric(scene, namespace) > 2900, 20)
        rows = scene.truth()["processes"]
        true = sum(rows.get(pid, 0) for pid in _pids(pod["metadata"]["uid"]))
        metric = _metric(scene, namespace)
        (status,) = [each["usedMib"] for each in site.status()["containers"] if each["namespace"] == namespace]
        scene.figures |= {"driver_mib": true, "metric_mib": metric, "status_mib": status}
        scene.figures["top"] = site.in_enforcer("gpu-share top")
        scene.figures["top_here"] = site.shell("gpu-share top -A", check=False)
        scene.figures["top_tenant"] = site.shell(f"gpu-share top -n {namespace}", check=False)
        scene.figures["explain"] = site.shell(f"gpu-share explain {namespace}/holder", check=False)
        panel, empty = dashboard.ask(scene, namespace)
        scene.figures |= {"dashboard_mib": panel, "queries_without_series": empty}
        values = {"metric": metric, "status": status, "dashboard": panel}
        off = {name: value for name, value in values.items() if abs(value - true) > NEAR_MIB}
        assert not off or (scene.simulated and not true), f"the driver says {true} MiB: {off}"
        assert "holder" in scene.figures["top"], scene.figures["top"]
        assert set(empty) <= dashboard.EMPTY_UNDER_MPS, empty
    return f"driver {true} MiB, metric {metric:.0f}, status {status}, dashboard {panel:.0f}; no series: {empty}"


def _metric(scene: Scene, namespace: str) -> float:
    wanted = f'namespace="{namespace}"'
    lines = [line for line in scene.metrics().splitlines() if line.startswith(f"{USED}{{") and wanted in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines) / 2**20


def _pids(uid: str) -> list[str]:
    """Processes of a pod, by its name in their control groups."""
    wanted = (uid, uid.replace("-", "_"))
    files = Path("/proc").glob("[0-9]*/cgroup")
    return [each.parent.name for each in files if any(word in _text(each) for word in wanted)]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def overhead(scene: Scene) -> str:
    """The same program in a plain pod and in a share, in turn."""
    scene.ensure_installed()
    program = f"exec python3 - <<'E'{TORCH}E" if has("torch") else tenants.client("gemm 1024 1s", "gemm 1024 2s")
    if scene.simulated:
        program = "exec gpu-share-tenant hold 1Gi --for 1s"
    found: dict[str, list[dict[str, Any]]] = {"plain": [], "share": []}
    with scene.namespace("overhead") as namespace:
        for turn in range(ROUNDS):
            for kind in ("plain", "share"):
                name = f"{kind}-{turn}"
                alone = "sleep 1" if scene.simulated else program
                made = tenants.plain(name, alone) if kind == "plain" else tenants.pod(name, program, "8Gi", "Never")
                with scene.timed(f"{name}_s"):
                    scene.site.create(namespace, made)
                    phase = scene.ended(namespace, name, 30)
                assert phase == "Succeeded", scene.site.logs(namespace, name, tenants.MAIN)
                found[kind].append(_measured(scene, namespace, name))
    scene.figures |= found
    seconds = {kind: _median(scene.figures[f"{kind}-{turn}_s"] for turn in range(ROUNDS)) for kind in found}
    if scene.simulated:
        return f"a plain pod took {seconds['plain']} s, a share {seconds['share']} s"
    context = {kind: _median(each["context_ms"] for each in rows) for kind, rows in found.items()}
    work = {kind: _median(each["per_s"] for each in rows) for kind, rows in found.items()}
    return (
        f"pod {seconds['plain']} and {seconds['share']} s, first call {context['plain']} and {context['share']} ms, "
        f"products {work['plain']} and {work['share']} a second ({100 * work['share'] / work['plain'] - 100:+.1f} %)"
    )


def _median(values: Any) -> float:
    return round(float(statistics.median(values)), 2)


def _measured(scene: Scene, namespace: str, name: str) -> dict[str, Any]:
    lines = scene.lines(namespace, name)
    if scene.simulated:
        return {"lines": len(lines)}
    if "per_s" in lines[-1]:
        return lines[-1]
    ready = next(each for each in lines if each.get("ready"))
    product = [each for each in lines if "repeats" in each][-1]
    assert product["ok"], json.dumps(product)
    per_s = round(1000 * product["repeats"] / product["ms"], 1)
    return {"context_ms": ready["context_ms"], "per_s": per_s}


def has(module: str) -> bool:
    """Whether this machine's Python has it."""
    return importlib.util.find_spec(module) is not None
