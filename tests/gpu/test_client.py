"""The CUDA client, command by command, on the simulated driver: plain processes, without MPS."""

import ast
import ctypes
import ctypes.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu import world
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.programs import CLIENT, GpuHost, host
from tests.fakes.gpu.state import Fault
from tests.gpu.client import PTX, Product

pytestmark = pytest.mark.node
CARD, CONTEXT = 16384 - 512, 300
SET_LIMIT = """
import sys, pynvml as n
n.nvmlInit()
gpu = n.nvmlDeviceGetHandleByUUID(sys.argv[1])
limits = n.c_nvmlSetMemoryLimits_v1_t(sys.argv[2].encode(), 0, int(sys.argv[3]))
n.nvmlDeviceSetMemoryLimits_v1(gpu, limits)
"""


@pytest.fixture(name="here")
def _here() -> Iterator[GpuHost]:
    with host(need_library()) as made:
        yield made


def test_it_says_that_it_is_ready_and_leaves_nothing_behind(here: GpuHost) -> None:
    client = here.start()
    assert client.hello["ready"] is True
    assert (client.hello["pid"], client.hello["gpu"]) == (client.pid, here.gpus[0])
    assert (client.hello["driver"], client.hello["context_ms"] > 0) == (12080, True)
    assert here.rows(client.pid) == [("compute", CONTEXT)]
    assert client.quit() == 0
    assert here.sim.processes() == {}


def test_the_end_of_its_input_ends_it(here: GpuHost) -> None:
    client = here.start()
    assert client.hello["ready"]
    assert client.process.communicate()[0].endswith(b'{"quit": true}\n')


def test_memory_is_taken_and_given_back(here: GpuHost) -> None:
    client = here.start()
    first, second = client.ask("alloc 1000"), client.ask("alloc 24")
    assert (first["mib"], first["how"], second["id"] != first["id"]) == (1000, "plain", True)
    assert here.rows(client.pid) == [("compute", CONTEXT + 1024)]
    assert client.ask("meminfo") == {"free_mib": CARD - CONTEXT - 1024, "total_mib": CARD, "held_mib": 1024}
    assert client.ask(f"free {first['id']}") == {"freed": first["id"], "mib": 1000}
    assert client.ask(f"free {first['id']}")["error"] == -1
    assert here.sim.used(here.gpus[0]) == CONTEXT + 24


def test_a_killed_process_holds_nothing(here: GpuHost) -> None:
    client = here.start()
    client.ask("alloc 1000")
    client.kill()
    assert here.sim.used(here.gpus[0]) == 0


def test_managed_memory_is_in_the_total_and_in_no_row(here: GpuHost) -> None:
    client = here.start()
    assert client.ask("alloc 500 managed")["how"] == "managed"
    assert here.rows(client.pid) == [("compute", CONTEXT)]
    assert here.sim.used(here.gpus[0]) == CONTEXT + 500
    world.change(here.sim, managed_counted=1)
    client.ask("alloc 500 managed")
    assert sum(mib or 0 for _, mib in here.rows(client.pid)) == CONTEXT + 1000


def test_managed_memory_is_bounded(here: GpuHost) -> None:
    client = here.start("--managed-cap", "100")
    assert client.ask("alloc 101 managed")["error"] == -1
    assert "id" in client.ask("alloc 100 managed")
    other = here.start("--managed-cap", "1000000")
    assert "what is free" in other.ask(f"alloc {CARD} managed")["name"]


def test_attributes(here: GpuHost) -> None:
    assert here.start("--gpu", "1").ask("attributes") == {
        "name": "NVIDIA A100-SXM4-16GB", "uuid": here.gpus[1], "devices": here.gpus, "sm_count": 74, "cc": "8.0",
        "driver": 12080, "memory_mib": CARD,
    }  # fmt: skip


@pytest.mark.parametrize("n", [2, 3, 128, 129, 200])
def test_products_are_right(here: GpuHost, n: int) -> None:
    said = here.start().ask(f"gemm {n} 3")
    assert (said["ok"], said["wrong"], said["repeats"], said["n"]) == (True, 0, 3, n)
    assert 0 < said["median_ms"] <= said["p99_ms"] <= said["max_ms"] <= said["ms"]


def test_products_for_a_while(here: GpuHost) -> None:
    client = here.start()
    said = client.ask("gemm 64 0.2s")
    assert said["repeats"] > 1
    assert said["ok"]
    assert client.ask("gemm 64 0") | {"repeats": 0, "ms": 0} == client.ask("gemm 64 0")
    assert client.ask("meminfo")["held_mib"] == 0.0
    assert client.ask("gemm 512 1")["ok"]
    assert client.ask("meminfo")["held_mib"] == 3.0, "the buffers of the last size, and no others"


def test_a_wrong_product_is_seen_every_time(here: GpuHost) -> None:
    client = here.start()
    assert client.ask("gemm 64 1")["ok"]
    here.sim.strike(client.pid, here.gpus[0], 0, wrong=True)
    said = client.ask("gemm 64 4")
    assert (said["ok"], said["wrong"]) == (False, 4)


def test_it_fills_the_card_and_says_what_refused_it(here: GpuHost) -> None:
    client = here.start()
    said = client.ask("fill 1024")
    assert (said["mib"], said["steps"], said["refused"]) == (15 * 1024, 15, 2)
    assert said["refused_name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert client.ask(f"free {said['id']}")["mib"] == 15 * 1024
    capped = client.ask("fill 100 950")
    assert (capped["mib"], capped["refused"]) == (900, 0)
    assert here.sim.used(here.gpus[0]) == CONTEXT + 900


def test_two_processes_share_a_card_and_not_more(here: GpuHost) -> None:
    first, second = here.start(), here.start()
    kept = first.ask("alloc 15000")["id"]
    refused = second.ask("alloc 1000")
    assert refused == {"error": 2, "name": "CUDA_ERROR_OUT_OF_MEMORY", "call": "cuMemAlloc_v2"}
    first.ask(f"free {kept}")
    assert "id" in second.ask("alloc 1000")
    assert first.ask("meminfo")["free_mib"] == CARD - 2 * CONTEXT - 1000


def test_a_full_card_takes_no_context(here: GpuHost) -> None:
    here.start().ask(f"alloc {CARD - CONTEXT - 100}")
    late = here.start()
    assert (late.hello["error"], late.hello["call"]) == (2, "cuDevicePrimaryCtxRetain")
    assert late.process.wait(10) == 1


@pytest.mark.parametrize(("mode", "admitted"), [(0, 2), (2, 0), (3, 1)])
def test_the_compute_mode_is_obeyed(here: GpuHost, mode: int, admitted: int) -> None:
    here.sim.set_compute_mode(here.gpus[0], mode)
    said = [here.start().hello for _ in range(2)]
    assert [each["error"] for each in said if "error" in each] == [46] * (2 - admitted)
    assert here.start("--gpu", "1").hello["ready"], "the other GPU has a mode of its own"


@pytest.mark.parametrize(
    ("visible", "seen"),
    [("0", [0]), ("1", [1]), ("1,0", [1, 0]), ("GPU1", [1]), ("GPU1,GPU0", [1, 0]), ("0,7,1", [0]), ("0,1", [0, 1])],
)
def test_visible_devices_are_ordinals_or_uuids(here: GpuHost, visible: str, seen: list[int]) -> None:
    for index, uuid in enumerate(here.gpus):
        visible = visible.replace(f"GPU{index}", uuid)
    client = here.start(CUDA_VISIBLE_DEVICES=visible)
    assert client.ask("attributes")["devices"] == [here.gpus[each] for each in seen]
    assert client.hello["gpu"] == here.gpus[seen[0]]


@pytest.mark.parametrize("visible", ["", "-1", "7", "GPU-00000000-0000-4000-8000-000000000000"])
def test_no_visible_device_is_an_error(here: GpuHost, visible: str) -> None:
    hello = here.start(CUDA_VISIBLE_DEVICES=visible).hello
    assert (hello["error"], hello["name"], hello["call"]) == (100, "CUDA_ERROR_NO_DEVICE", "cuInit")


def test_a_gpu_is_chosen_by_uuid_and_must_be_seen(here: GpuHost) -> None:
    assert here.start("--gpu", here.gpus[1]).hello["gpu"] == here.gpus[1]
    assert here.start("--gpu", "2").hello["error"] == -1
    hidden = here.start("--gpu", here.gpus[1], CUDA_VISIBLE_DEVICES="0").hello
    assert (hidden["error"], here.gpus[0] in hidden["name"]) == (-1, True)


def test_memory_is_shared_by_ipc(here: GpuHost) -> None:
    owner, guest = here.start(), here.start()
    kept = owner.ask("alloc 1000")["id"]
    handle = owner.ask(f"export {kept}")["handle"]
    said = guest.ask(f"import {handle}")
    assert (said["mib"], said["word"]) == (1000, kept)
    assert here.rows(guest.pid) == [("compute", CONTEXT)], "it is its exporter's while that lives"
    assert here.sim.used(here.gpus[0]) == 2 * CONTEXT + 1000
    owner.kill()
    assert sum(mib or 0 for _, mib in here.rows(guest.pid)) == CONTEXT + 1000
    assert here.sim.used(here.gpus[0]) == CONTEXT + 1000
    assert guest.ask(f"free {said['id']}")["mib"] == 1000
    assert here.rows(guest.pid) == [("compute", CONTEXT)]


def test_imported_memory_may_count_for_the_owner_alone(here: GpuHost) -> None:
    world.change(here.sim, ipc_counted=0)
    owner, guest = here.start(), here.start()
    guest.ask(f"import {owner.ask('export ' + str(owner.ask('alloc 100')['id']))['handle']}")
    assert here.rows(guest.pid) == [("compute", CONTEXT)]


def test_an_import_that_cannot_be(here: GpuHost) -> None:
    owner, guest = here.start(), here.start()
    handle = owner.ask(f"export {owner.ask('alloc 10')['id']}")["handle"]
    assert owner.ask(f"import {handle}")["name"] == "CUDA_ERROR_INVALID_CONTEXT"
    assert here.start("--gpu", "1").ask(f"import {handle}")["error"] == 1
    owner.kill()
    assert guest.ask(f"import {handle}")["error"] == 1
    for junk in ("xx:1", handle[:-3], "00" * 64, "00" * 63 + ":1"):
        assert guest.ask(f"import {junk}")["error"] == -1


def test_a_fault_sticks_and_the_process_lives(here: GpuHost) -> None:
    client, neighbour = here.start(), here.start()
    neighbour.ask("alloc 10")
    assert client.ask("fault")["name"] == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert [client.ask(each)["error"] for each in ("sync", "alloc 1", "gemm 8 1", "meminfo")] == [700] * 4
    assert neighbour.ask("gemm 8 1")["ok"], "plain processes do not share their faults"
    assert (here.sim.folder / "xid").read_text() == f"gpu={here.gpus[0]}\txid=31\n"
    assert client.quit() == 0


@pytest.mark.parametrize(
    "command",
    [
        *("", "bogus", "alloc", "alloc x", "alloc 0", "alloc -1", "alloc 1 pinned", "alloc 1 managed more", "free"),
        *("free 9", "free x", "fill 0", "fill", "gemm 1 1", "gemm 5000 1", "gemm 8", "gemm 8 x", "gemm 8 xs"),
        *("export 9", "import", "sleep soon", "setenv A", "__init__", "answer x", "quit now"),
    ],
)
def test_what_makes_no_sense_is_reported_and_nothing_ends(here: GpuHost, command: str) -> None:
    client = here.start()
    assert client.ask(command)["error"] == -1
    assert client.ask("sync") == {"synchronised": True}


def test_an_empty_fill_cannot_be_exported(here: GpuHost) -> None:
    client = here.start()
    assert client.ask(f"export {client.ask('fill 100 10')['id']}")["error"] == -1


def test_any_call_can_be_made_to_fail(here: GpuHost) -> None:
    here.sim.fail(Fault(call="cuMemAlloc_v2", error=999, times=1), Fault(call="*", error=15))
    client = here.start()
    assert client.ask("alloc 1") == {"error": 999, "name": "CUDA_ERROR_UNKNOWN", "call": "cuMemAlloc_v2"}
    assert "id" in client.ask("alloc 1")
    here.sim.fail(Fault(call="cuMemAlloc_v2", error=12345, after=2))
    stopped = client.ask("fill 1")
    assert (stopped["error"], stopped["mib"], stopped["name"]) == (12345, 2, "CUDA error 12345")
    here.sim.fail(Fault(call="cuInit", error=805))
    assert here.start().hello["error"] == 805


def test_sleep_and_setenv(here: GpuHost) -> None:
    client = here.start("--setenv", "CUDA_VISIBLE_DEVICES=1")
    assert client.hello["gpu"] == here.gpus[1], "it counts from before the driver is loaded"
    assert client.ask("sleep 0.01") == {"slept": 0.01}
    assert client.ask("setenv CUDA_VISIBLE_DEVICES 0") == {"set": "CUDA_VISIBLE_DEVICES", "value": "0"}
    assert client.ask("attributes")["devices"] == [here.gpus[1]], "and now no more"


def test_a_limit_per_cgroup_is_obeyed_and_shows_as_the_total() -> None:
    with host(need_library(), "mixed") as here:
        cgroup = next(each[3:] for each in Path("/proc/self/cgroup").read_text().splitlines() if each[:3] == "0::")
        limit = [here.gpus[2], cgroup, str(4096 << 20)]
        environment = dict(os.environ) | here.sim.environment(need_library())
        subprocess.run([sys.executable, "-c", SET_LIMIT, *limit], env=environment, check=True)
        client = here.start("--gpu", here.gpus[2])
        assert client.ask("fill 256")["mib"] == 3840
        assert client.ask("meminfo")["total_mib"] == 4096


def test_terminated_by_a_signal_it_takes_its_memory_along(here: GpuHost) -> None:
    client = here.start()
    client.ask("alloc 10")
    client.process.send_signal(signal.SIGTERM)
    assert client.process.wait(10) == -signal.SIGTERM
    assert here.sim.processes() == {}


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    if ctypes.util.find_library("cuda"):
        pytest.skip("this machine has a driver")
    done = subprocess.run([sys.executable, str(CLIENT)], env={}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert '"error": -2' in done.stdout
    shutil.copy(need_library() / "libnvidia-ml.so.1", tmp_path / "libcuda.so.1")
    strange = {"LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, str(CLIENT)], env=strange, capture_output=True, text=True, check=False)
    assert '"error": -2' in done.stdout
    assert "cuInit" in done.stdout


def test_it_is_one_file_of_the_standard_library(here: GpuHost) -> None:
    tree = ast.parse(CLIENT.read_text())
    names = [each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names]
    names += [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)
    assert here.start(prefix=(sys.executable, "-I", "-S", str(CLIENT))).ask("gemm 8 1")["ok"]


def test_the_kernels_are_for_every_gpu_that_mps_serves() -> None:
    assert PTX.startswith(".version 6.0\n.target sm_70\n.address_size 64\n")
    assert PTX.isascii(), "the assembler takes no others"


PLAYED_IN_PYTHON = ("mps_clients.py", "mps_daemon.py")


def test_every_switch_of_the_world_has_one_default_and_an_effect() -> None:
    folder = Path(world.__file__).parent
    sources = "".join(each.read_text() for each in sorted(folder.glob("*.c")))
    in_c = dict(re.findall(r'sim_world\("(\w+)", (\w+)\)', sources)) | {"mps_clients_listed": "compute,mps"}
    in_c["fault_neighbour_error"] = in_c["fault_neighbour_error"].replace("ILLEGAL_ADDRESS", "700")
    assert in_c.items() <= world.DEFAULTS.items()
    programs = sources + "".join((folder / name).read_text() for name in PLAYED_IN_PYTHON)
    foreign = {each for each in world.DEFAULTS if each.startswith("foreign_uid_may_")}
    assert {each for each in world.DEFAULTS.keys() - foreign if each not in programs} == set()


def test_a_switch_that_does_not_exist_is_refused(here: GpuHost) -> None:
    with pytest.raises(ValueError, match="no switch gravity"):
        world.change(here.sim, gravity=0)
    world.change(here.sim, sm_count=20, kernel_us=1)
    world.change(here.sim, sm_count=0)
    assert (here.sim.folder / "world").read_text() == "kernel_us=1\n"
    assert here.start().ask("attributes")["sm_count"] == 74


class DeadGpu:
    """Computes one product and then nothing any more, while no call fails."""

    def __init__(self) -> None:
        self.driver, self.memory, self.launches = self, b"", 0

    def out(self, *_: object) -> int:
        return 1

    def call(self, name: str, *arguments: Any) -> None:
        if name == "cuMemcpyDtoH_v2":
            ctypes.memmove(arguments[0], self.memory, len(self.memory))

    def launch(self, name: str, side: int, *arguments: Any) -> None:
        seed = arguments[-1].value
        if self.launches == 0:
            a = [[i + k + seed for k in range(side)] for i in range(side)]
            b = [[k + 2 * j + 1 for j in range(side)] for k in range(side)]
            cells = (
                sum(x * y for x, y in zip(row, column, strict=True)) for row in a for column in zip(*b, strict=True)
            )
            self.memory = b"".join(cell.to_bytes(4, sys.byteorder) for cell in cells)
        self.launches += 1


def test_what_is_left_of_the_last_product_is_no_right_answer() -> None:
    product = Product(DeadGpu(), 20)  # type: ignore[arg-type]
    assert product.compute()[1]
    assert not product.compute()[1]
