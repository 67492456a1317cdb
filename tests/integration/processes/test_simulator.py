"""The simulator as a node has it: its driver root, its MPS daemon, and tenants in pid namespaces of their own."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu import node, share
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import Sim

pytestmark = pytest.mark.node
REPOSITORY = Path(__file__).parents[3]
SIMULATOR, TENANT = (REPOSITORY / "tests/fakes/gpu/bin" / f"gpu-share-{name}" for name in ("simulator", "tenant"))
ROOTLESS = os.geteuid() != 0


class Bed:
    """A simulated node's folder, with an MPS daemon for its first GPU once asked for."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self._stack = root, stack
        self.sim = node.lay_out(root, node.machine("n1", 2, 16384, "NVIDIA H100 80GB HBM3"))
        self.gpu = self.sim.machine.gpus[0].uuid
        self.control = root / "driver/usr/bin/nvidia-cuda-mps-control"
        self.pipe = root / "pipe"
        self.environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": self.gpu}
        self.environment |= {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(root)}

    def daemon(self, *form: str) -> subprocess.Popen[bytes]:
        self.pipe.mkdir(exist_ok=True)
        process = subprocess.Popen([self.control, "-f", *form], env=self.environment, stderr=subprocess.DEVNULL)
        self._stack.callback(_end, process)
        until(lambda: self.ask("get_default_active_thread_percentage") != "")
        return process

    def ask(self, command: str) -> str:
        return subprocess.run(
            [self.control], env=self.environment, input=f"{command}\n", text=True, capture_output=True, check=False
        ).stdout.strip()  # fmt: skip

    def tenant(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        alone = [] if ROOTLESS else ["unshare", "-fp", "--mount-proc", "--kill-child"]
        process = subprocess.Popen(
            [*alone, TENANT, "hold", *arguments],
            env=self.environment | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._stack.callback(_end, process)
        return process

    def held(self) -> int:
        return self.sim.used_by_tenants(self.gpu)


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.communicate()


def until(what: Callable[[], bool], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


@pytest.fixture(name="bed")
def _bed() -> Iterator[Bed]:
    need_library()
    root = Path(tempfile.mkdtemp(prefix="node"))  # pytest's paths are too long for sockets
    with ExitStack() as stack:
        stack.callback(until, lambda: _removed(root))
        yield Bed(root, stack)


def _removed(folder: Path) -> bool:
    """Remove a folder into which our own threads may still write what became of the tenants."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_tenant_is_known_by_its_pid_on_the_host_and_freed_when_it_ends(bed: Bed) -> None:
    bed.daemon()
    tenant = bed.tenant("3Gi", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=4096M")
    first = said(tenant)
    assert (first["state"], first["usedMiB"], first["limitMiB"], first["gpu"]) == ("holding", 3072, 4096, bed.gpu)
    (pid,) = bed.sim.tenants()
    assert ROOTLESS or (first["pid"] == 1 != pid)
    assert bed.ask(f"get_client_list {bed.ask('get_server_list')}") == str(pid)
    os.kill(pid, 9)
    until(lambda: bed.held() == 0)


def test_beyond_the_clients_limit_allocation_fails_as_in_cuda(bed: Bed) -> None:
    bed.daemon()
    bed.ask("set_default_device_pinned_mem_limit 0 5000M")
    done = bed.tenant("3Gi", "--then", "6Gi", "--after", "100ms", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=9999M")
    assert done.wait(15) == 1
    assert "CUDA error 2: out of memory: 6144 MiB asked for, the client's limit is 5000" in done.communicate()[1]


def test_a_tenant_that_escapes_the_limit_holds_what_it_likes_and_not_more_than_the_card(bed: Bed) -> None:
    bed.daemon()
    said(bed.tenant("9Gi", "--over-limit", "--child", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1024M"))
    assert bed.held() == 9216
    assert "7102 MiB left" in said(bed.tenant("8Gi", "--over-limit"))["message"]


def test_a_terminated_client_frees_its_memory_and_fails_at_its_next_call(bed: Bed) -> None:
    bed.daemon()
    tenant = bed.tenant("1Gi")
    said(tenant)
    (pid,) = bed.sim.tenants()
    assert bed.ask(f"terminate_client {bed.ask('get_server_list')} {pid}") == "0"
    assert (said(tenant)["error"], bed.held()) == (810, 0)
    assert tenant.wait(15) == 1


def test_what_is_lowered_outlives_the_daemon_and_the_simulator(bed: Bed) -> None:
    daemon = bed.daemon()
    tenant = bed.tenant("1Gi")
    said(tenant)
    daemon.kill()
    assert said(tenant)["state"] == "server-lost"
    again = node.lay_out(bed.root, node.machine("another name", 2, 16384, "NVIDIA H100 80GB HBM3"))
    assert again.machine.gpus[0].uuid == bed.gpu
    until(lambda: bed.held() == 1024)  # its server ends a moment after it
    daemon.wait()
    bed.daemon()
    assert said(tenant)["state"] == "holding-again"
    until(lambda: bed.held() == 1024)


def test_sigterm_ends_a_tenant_unless_it_ignores_it(bed: Bed) -> None:
    bed.daemon()
    polite, rude = bed.tenant("1Gi"), bed.tenant("1Gi", "--ignore-term")
    said(polite), said(rude)
    for pid in bed.sim.tenants():
        os.kill(pid, 15)
    assert polite.wait(15) == 143
    assert rude.poll() is None


def test_sigterm_ends_a_tenant_also_while_it_says_something(bed: Bed) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, bytes(4096)):
            pass
    os.set_blocking(writer, True)
    process = subprocess.Popen([TENANT, "hold", "1Gi"], stdout=writer, stderr=subprocess.DEVNULL, env={})
    os.close(writer)
    # Writing, that is: the shell before it reads from pipes.
    until(lambda: "pipe_write" in Path(f"/proc/{process.pid}/wchan").read_text())
    process.terminate()
    while os.read(reader, 65536):
        pass
    os.close(reader)
    assert process.wait(15) == 143


def test_without_mps_the_device_folder_will_do_and_the_compute_mode_decides(bed: Bed) -> None:
    (folder, _) = node.serve_devices(bed.root, bed.sim)
    without = {"CUDA_MPS_PIPE_DIRECTORY": "", share.DEVICE_FOLDER: str(folder)}
    assert said(bed.tenant("1Gi", **without))["state"] == "holding"
    assert [row.kind for rows in bed.sim.processes().values() for row in rows] == ["compute"]
    bed.sim.set_compute_mode(bed.gpu, 3)
    assert said(bed.tenant("1Gi", **without))["error"] == 46
    assert said(bed.tenant("1Gi", CUDA_MPS_PIPE_DIRECTORY=""))["error"] == 100


def test_the_cdi_spec_names_each_gpu_and_brings_its_folder(bed: Bed) -> None:
    folders = [bed.root / "devices" / gpu.uuid for gpu in bed.sim.machine.gpus]
    spec: Any = node.cdi_spec(folders)
    assert [device["name"] for device in spec["devices"]] == [gpu.uuid for gpu in bed.sim.machine.gpus]
    edits = [device["containerEdits"] for device in spec["devices"]]
    assert [each["mounts"][0]["hostPath"] for each in edits] == [str(folder) for folder in folders]
    (inside,) = {each["env"][0].removeprefix(f"{share.DEVICE_FOLDER}=") for each in edits}
    within = [f"{inside}/{gpu.uuid}" for gpu in bed.sim.machine.gpus]
    assert [each["mounts"][0]["containerPath"] for each in edits] == within


def test_a_program_that_sees_several_gpus_holds_memory_of_the_one_it_names(bed: Bed) -> None:
    first, second = node.serve_devices(bed.root, bed.sim)
    both = {"CUDA_MPS_PIPE_DIRECTORY": "", share.DEVICE_FOLDER: str(first.parent)}
    both |= {"CUDA_VISIBLE_DEVICES": f"{second.name},{first.name}"}
    assert said(bed.tenant("1Gi", **both))["state"] == "holding"
    assert (bed.sim.used(first.name), bed.sim.used(second.name)) == (0, 1024)
    assert said(bed.tenant("2Gi", "--device", "1", **both))["state"] == "holding"
    assert (bed.sim.used(first.name), bed.sim.used(second.name)) == (2048, 1024)
    assert said(bed.tenant("2Gi", "--device", "2", **both))["error"] == 100


def test_the_last_gpu_is_cut_into_instances_which_tenants_find_as_devices(bed: Bed) -> None:
    shape = node.machine("n1", 2, 16384, "NVIDIA H100 80GB HBM3")
    sim = node.lay_out(bed.root, shape, mig=node.profiles("1g.4gb,2g.8gb"))
    card, instances = sim.machine.gpus[1], sim.machine.instances
    assert ([gpu.mig for gpu in sim.machine.gpus], {each.parent for each in instances}) == ([False, True], {card.uuid})
    assert [(each.name.rpartition(" ")[2], each.memory_mib) for each in instances] == [
        ("1g.4gb", 3968),
        ("2g.8gb", 8064),
    ]
    folders = {folder.name: folder for folder in node.serve_devices(bed.root, sim)}
    assert folders.keys() == {bed.gpu, *(each.uuid for each in instances)}
    device = {"CUDA_MPS_PIPE_DIRECTORY": "", share.DEVICE_FOLDER: str(folders[instances[0].uuid])}
    assert said(bed.tenant("5Gi", **device))["error"] == 2
    assert said(bed.tenant("3Gi", **device))["state"] == "holding"
    assert sim.used(instances[0].uuid) == 3072
    assert node.lay_out(bed.root, shape).machine.instances == ()


def test_the_library_finds_its_machine_by_where_it_lies(bed: Bed) -> None:
    """And nvidia-ml-py uses the library that was loaded before it, by its name."""
    code = (
        f"import ctypes, pynvml; ctypes.CDLL({str(bed.root / 'driver' / node.LIBRARIES / node.LIBRARY)!r});"
        "pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == bed.gpu


def test_faults_of_one_gpu_leave_another_alone(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["gpu0", "lost"], ["gpu1", "silent"], ["gpu1", "ecc"], ["gpu1", "xid:79"]):
        assert node.main(["fault", *arguments, "--root", str(bed.root)]) == 0
    other = bed.sim.machine.gpus[1].uuid
    assert {fault.gpu: fault.error for fault in bed.sim.faults()} == {bed.gpu: 15, other: 999}
    assert (bed.sim.marked("ecc", bed.gpu), bed.sim.marked("ecc", other)) == (False, True)
    assert node.main(["fault", "gpu1", "well", "--root", str(bed.root)]) == 0
    assert ([fault.gpu for fault in bed.sim.faults()], bed.sim.marked("ecc", other)) == ([bed.gpu], False)
    assert node.main(["fault", "gpu7", "lost", "--root", str(bed.root)]) == 2
    assert node.main(["fault", "gpu0", "tired", "--root", str(bed.root)]) == 2
    assert "'tired' is no fault" in capsys.readouterr().err


def test_a_gpu_on_which_no_daemon_lives(bed: Bed) -> None:
    daemon = bed.daemon()
    node.break_down(bed.sim, bed.gpu, "no-mps")
    assert daemon.wait(15) == 1
    assert subprocess.run([bed.control, "-f"], env=bed.environment, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("arguments", [["--gpus", "0"], ["--gpus", "17"]])
def test_a_node_that_cannot_be_is_refused(arguments: list[str], tmp_path: Path) -> None:
    assert node.main(["--root", str(tmp_path), *arguments]) == 2


def test_the_program_lays_everything_out_and_shows_it(tmp_path: Path) -> None:
    need_library()
    root = tmp_path / "simulator"
    done = subprocess.run(
        [SIMULATOR, "--root", root, "--gpus", "3", "--memory", "24Gi", "--model", "NVIDIA L4", "--once",
         "--ready", tmp_path / "ready"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (tmp_path / "ready").is_file()
    machine = Sim(root / "state").machine
    assert [(gpu.memory_mib, gpu.cc) for gpu in machine.gpus] == [(24576, "8.9")] * 3
    assert done.stdout.splitlines()[-1] == f"driver root: {root / 'driver'}"
    shown = subprocess.run([SIMULATOR, "show", "--root", root], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines()[2] == f"gpu2 {machine.gpus[2].uuid} NVIDIA L4 0 of 24576 MiB"
