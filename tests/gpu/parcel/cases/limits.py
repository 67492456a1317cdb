"""Cases 2 to 4: a limit that prevents, a quota that is held by a kill, and memory that stands in no row."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from gpushare import contract
from tests.e2e.site import restarts
from tests.gpu.parcel import tenants
from tests.gpu.parcel.cases.measures import has
from tests.gpu.parcel.scene import Scene

TORCH: Final = """
import json, os, torch
blocks, refused = [], ""
torch.zeros(1, device="cuda")
free, total = torch.cuda.mem_get_info()
try:
    while len(blocks) < 400:
        blocks.append(torch.ones(64 << 20, dtype=torch.float32, device="cuda"))
except torch.OutOfMemoryError as error:
    refused = str(error)[:300]
held = 256 * len(blocks)
blocks.clear()
torch.cuda.empty_cache()
a = torch.ones(1024, 1024, device="cuda")
works = (a @ a).sum().item() == 1024 ** 3
seen = {"free_mib": free >> 20, "total_mib": total >> 20}
print(json.dumps({"held_mib": held, "refused": refused, "works": works, **seen}))
"""


def framework_refused(scene: Scene) -> str:
    """PyTorch takes memory until CUDA refuses, and works on; nobody is killed."""
    scene.ensure_installed()
    torch = not scene.simulated and has("torch")
    program = f"exec python3 - <<'E'{TORCH}E" if torch else scene.programs.grow(1024, 9000)
    with scene.namespace("refused") as namespace:
        site = scene.site
        site.create(namespace, tenants.pod("torch", program, "4Gi", restart="Never"))
        phase = scene.ended(namespace, "torch", 50)
        text = site.logs(namespace, "torch", tenants.MAIN)
        assert not site.records(namespace, "torch"), f"it was killed: {site.records(namespace, 'torch')}"
        scene.figures |= {"phase": phase, "log": text[-1500:]}
        if not torch:
            assert tenants.OUT_OF_MEMORY in text.lower().replace("_", " "), text
            return "refused"
        said: dict[str, Any] = json.loads(next(line for line in text.splitlines() if line.startswith("{")))
        scene.figures |= said
        assert said["refused"] and said["works"] and phase == "Succeeded", said
        assert said["held_mib"] <= 4096, said
        return f"PyTorch was refused with {said['held_mib']} of 4,096 MiB held, saw {said['total_mib']} MiB, worked on"


def several_processes(scene: Scene) -> str:
    """Two processes within their limits are over the quota together: killed; a neighbour computes on."""
    scene.ensure_installed()
    site, programs = scene.site, scene.programs
    with scene.namespace("several", **{contract.GRACE_PERIOD: "2s"}) as namespace:
        site.create(namespace, tenants.pod("neighbour", programs.compute(1024), "4Gi"))
        site.running(namespace, "neighbour")
        began = time.monotonic()
        site.create(namespace, tenants.pod("greedy", programs.several(2, 3000), "4Gi"))
        outcome = site.record(namespace, "greedy", "OUTCOME")
        scene.figures["create_to_outcome_s"] = round(time.monotonic() - began, 2)
        records = site.records(namespace, "greedy")
        kinds = [each["kind"] for each in records]
        assert kinds[:4] == ["GRACE_STARTED", "WARNED", "INTENT", "OUTCOME"], kinds
        scene.figures["restarts"] = restarts(site.bed.pod(namespace, "greedy"))
        scene.figures["events"] = site.events(namespace, "greedy")
        site.remove(namespace, "greedy", grace=0)
        verified = site.in_enforcer("gpu-share audit verify")
        assert "ok:" in verified, verified
        assert set(restarts(site.bed.pod(namespace, "neighbour")).values()) == {0}, "the neighbour was hurt"
        lines = scene.lines(namespace, "neighbour")
        if not scene.simulated:
            wrong = [each for each in lines if "error" in each or each.get("ok") is False]
            assert not wrong and sum("ok" in each for each in lines) > 3, lines[-3:]
        scene.figures |= {"records": records, "outcome": outcome, "verify": verified.strip(), "neighbour": lines[-2:]}
        times = {each["kind"]: each.get("time") for each in records}
        return f"killed {scene.figures['create_to_outcome_s']} s after it was created; the neighbour went on: {times}"


UNACCOUNTED: Final = "gpu_share_gpu_memory_unaccounted_bytes"
HOLDER: Final = """
import json, os, socket, subprocess, sys, time
mine, theirs = socket.socketpair()
maker = subprocess.Popen([sys.executable, "/gpu-share/programs/exporter.py", str(theirs.fileno()), "5", "2048"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=[theirs.fileno()])
print(maker.stdout.readline(), flush=True)
held = [socket.recv_fds(mine, 1, 1)[1] for _ in range(5)]
maker.kill(); maker.wait()
print(json.dumps({"holding": 5 * 2048}), flush=True)
time.sleep(1000)
"""


def hidden_memory(scene: Scene) -> str:
    """Memory that descriptors alone hold: what is said of it, that its holder is killed, that it goes with its pod."""
    scene.ensure_installed()
    site, before = scene.site, int(scene.truth()["used_mib"])
    with scene.namespace("hidden", **{contract.GRACE_PERIOD: "2s"}) as namespace:
        if scene.simulated:
            holder = _simulated_holder()
        else:
            site.create(namespace, tenants.pod("holder", f"exec python3 - <<'E'{HOLDER}E", "4Gi"))
            site.running(namespace, "holder")
            site.until("it holds", lambda: any("holding" in each for each in scene.lines(namespace, "holder")), 30)
        seen, began = scene.truth(), time.monotonic()
        site.until("the metric shows it", lambda: _gauge(scene.metrics(), UNACCOUNTED) > 4 * 2**30, 20)
        scene.figures |= {"truth": seen, "metric_mib": _gauge(scene.metrics(), UNACCOUNTED) / 2**20}
        if scene.simulated:
            holder.kill()
            holder.wait()
        else:
            site.until("its holder is killed", lambda: "OUTCOME" in _kinds(scene, namespace), 25)
            scene.figures["held_to_outcome_s"] = round(time.monotonic() - began, 2)
        scene.figures |= {"records": site.records(namespace, "holder"), "events": site.events(namespace, "holder")}
        scene.figures["status"] = site.status()
    left = scene.wait_mib(before + 700)
    scene.figures["left_mib"] = left
    shown = f"metric {scene.figures['metric_mib']:.0f} MiB, killed after {scene.figures.get('held_to_outcome_s')} s"
    return f"{seen['used_mib'] - before} MiB in no row, {shown}; {left} MiB at the end"


def _kinds(scene: Scene, namespace: str) -> list[str]:
    return [each["kind"] for each in scene.site.records(namespace, "holder")]


def _gauge(text: str, name: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name + "{"))


def _simulated_holder() -> subprocess.Popen[bytes]:
    state = Path("/var/lib/gpu-share/simulator/state")
    command = [sys.executable, "-m", "tests.fakes.gpu.tenant", "--mib", "0", "--hidden", "6144"]
    return subprocess.Popen(command, env={**os.environ, "GPU_SHARE_SIM": str(state)})
