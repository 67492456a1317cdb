"""The CUDA client under MPS, on the simulated driver: limits, faults, kills, users, and the contrary of each belief."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu import world
from tests.fakes.gpu.mps_binary import need_mps_control
from tests.fakes.gpu.mps_daemon import Daemon
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.programs import CLIENT, GpuHost, Program, host
from tests.gpu.kit.setup import python_of_others

pytestmark = pytest.mark.node
CONTEXT, SERVER, TENANT, NOBODY = 300, 66, 65533, 65534
LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
LAUNCH = str(Path(__file__).parent / "kit" / "launch.py")
EXCLUSIVE = 3
root = pytest.mark.skipif(os.getuid() != 0, reason="other users' processes are root's to start")


@pytest.fixture(name="here")
def _here() -> Iterator[GpuHost]:
    with host(need_library()) as made:
        yield made


@pytest.fixture(name="pipe")
def _pipe(here: GpuHost) -> Path:
    return here.daemon()


@pytest.fixture(name="user")
def _user(here: GpuHost, tmp_path: Path) -> Callable[..., Program]:
    """Starts a program of another user."""
    interpreter = python_of_others()
    if not interpreter or os.getuid() != 0:
        pytest.skip("no Python that other users can run, or not root")
    here.sim.open_to_all()
    shutil.copytree(need_library(), here.folder / "lib")
    shutil.copy(CLIENT, here.folder / "client.py")

    def start(uid: int, pipe: Path) -> Program:
        libraries = str(here.folder / "lib")
        prefix = (sys.executable, LAUNCH, "--uid", str(uid), "--", interpreter, str(here.folder / "client.py"))
        return here.start(prefix=prefix, pipe=pipe, LD_LIBRARY_PATH=libraries)

    return start


def server(here: GpuHost, pipe: Path) -> int:
    return int(here.control(pipe, "get_server_list"))


def status(here: GpuHost, pipe: Path) -> str:
    return here.control(pipe, f"get_server_status {server(here, pipe)}").strip()


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def test_a_daemon_behind_the_pipe_directory_makes_it_a_client(here: GpuHost, pipe: Path) -> None:
    client = here.start(pipe=pipe)
    client.ask("alloc 100")
    assert here.rows(client.pid) == [("mps", CONTEXT + 100)]
    assert here.control(pipe, f"get_client_list {server(here, pipe)}") == f"{client.pid}\n"
    assert f"NEW CLIENT {client.pid} from user {os.getuid()}" in (pipe / "control.log").read_text()
    assert client.ask("gemm 64 2")["ok"]
    assert client.quit() == 0
    assert here.control(pipe, f"get_client_list {server(here, pipe)}") == ""


def test_a_session_outlives_its_daemon(here: GpuHost, pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = threading.Timer(0.3, here.control, (pipe, "quit"))
    with monkeypatch.context() as patched:
        patched.setattr(here, "control", lambda *_: late.start())
        here.close()
    left = (pipe / "log").exists()
    late.join()
    assert not left, "the daemon was still about to take its files away"


def test_a_client_sees_the_daemon_s_gpu_and_no_other(here: GpuHost) -> None:
    pipe = here.daemon(1)
    assert here.start(pipe=pipe).ask("attributes")["devices"] == [here.gpus[1]]
    assert here.start(pipe=pipe, CUDA_VISIBLE_DEVICES=here.gpus[0]).hello["error"] == 100
    assert here.start("--gpu", here.gpus[1], pipe=pipe, CUDA_VISIBLE_DEVICES="0").hello["ready"]


def test_a_pipe_directory_without_a_daemon_fails_open(here: GpuHost, pipe: Path) -> None:
    lost = here.start(pipe=pipe / "misspelled", env={LIMIT: "0=1G"})
    assert lost.ask("fill 1024")["mib"] == 15 * 1024
    assert here.rows(lost.pid)[0][0] == "compute"
    world.change(here.sim, missing_pipe_runs_plain=0)
    assert here.start(pipe=pipe / "misspelled").hello["name"] == "CUDA_ERROR_MPS_CONNECTION_FAILED"


@pytest.mark.parametrize(
    ("default", "variable", "switches", "mib"),
    [
        (None, None, {}, 15360),
        (None, "0=4G", {}, 3584),
        (None, "0=4096M", {}, 3584),
        (None, "UUID=4G", {}, 3584),
        ("4096M", None, {}, 3584),
        ("4096M", "0=2G", {}, 1536),
        ("4096M", "0=8G", {}, 3584),
        ("4096M", "0=8G", {"env_limit_raises": 1}, 7680),
        ("4096M", "0=2G,1=4G", {}, 15360),
        ("4096M", "0=2G,1=4G", {"escape_by_unseen_entry": 0}, 1536),
        ("4096M", "GPU-00000000-0000-4000-8000-000000000000=2G", {}, 15360),
        ("4096M", "nonsense", {}, 3584),
    ],
)
def test_the_pinned_limit(
    here: GpuHost, pipe: Path, default: str | None, variable: str | None, switches: dict[str, int], mib: int
) -> None:
    world.change(here.sim, **switches)
    if default:
        here.control(pipe, f"set_default_device_pinned_mem_limit 0 {default}")
    variables = {} if variable is None else {LIMIT: variable.replace("UUID", here.gpus[0])}
    client = here.start(pipe=pipe, env=variables)
    said = client.ask("fill 256")
    assert (said["mib"], said["refused"]) == (mib, 2)


def test_a_default_reaches_the_next_server_only(here: GpuHost, pipe: Path) -> None:
    here.control(pipe, f"start_server -uid {os.getuid()}")
    here.control(pipe, "set_default_device_pinned_mem_limit 0 1G")
    assert here.start(pipe=pipe).ask("fill 512 2048")["refused"] == 0
    here.programs[-1].quit()
    here.control(pipe, f"shutdown_server {server(here, pipe)}")
    assert here.start(pipe=pipe).ask("fill 512 2048")["mib"] == 512


def test_a_limit_is_per_process_and_shows_as_free(here: GpuHost, pipe: Path) -> None:
    first, second = (here.start(pipe=pipe, env={LIMIT: "0=2G"}) for _ in range(2))
    assert first.ask("meminfo")["free_mib"] == 2048 - CONTEXT
    assert [each.ask("fill 256")["mib"] for each in (first, second)] == [1536, 1536]
    said = first.ask("meminfo")
    assert (said["free_mib"], said["total_mib"]) == (2048 - CONTEXT - 1536, 16384 - 512)
    assert first.ask("alloc 3000 managed")["error"] == -1, "more than is free is not asked of the driver"


def test_a_limit_is_read_once(here: GpuHost, pipe: Path) -> None:
    client = here.start("--setenv", f"{LIMIT}=0=1G", pipe=pipe, env={LIMIT: "0=2G"})
    client.ask(f"setenv {LIMIT} 0=8G")
    assert client.ask("fill 256 2048")["mib"] == 512, "what stood there when the driver was loaded"
    world.change(here.sim, late_setenv_counts=1)
    assert client.ask("fill 256 2048")["mib"] == 2048


@pytest.mark.parametrize(("default", "own", "count"), [("100", "", 74), ("50", "", 36), ("50", "25", 18)])
def test_the_thread_percentage_is_a_number_of_sms(
    here: GpuHost, pipe: Path, default: str, own: str, count: int
) -> None:
    here.control(pipe, f"set_default_active_thread_percentage {default}")
    own = own or "100"
    assert here.start(pipe=pipe, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=own).ask("attributes")["sm_count"] == count
    assert here.start(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=own).ask("attributes")["sm_count"] == 74, "only under MPS"


def test_a_terminated_client_lives_on_with_an_error(here: GpuHost, pipe: Path) -> None:
    client, neighbour = here.start(pipe=pipe), here.start(pipe=pipe)
    client.ask("alloc 1000")
    neighbour.ask("alloc 10")
    assert here.control(pipe, f"terminate_client {server(here, pipe)} {client.pid}") == "0\n"
    assert client.ask("alloc 1")["name"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"
    assert client.ask("sync")["error"] == 810
    assert here.sim.used(here.gpus[0]) == CONTEXT + 10 + SERVER
    client.kill()
    assert neighbour.ask("gemm 64 2")["ok"]
    assert here.control(pipe, f"terminate_client {server(here, pipe)} {client.pid}") == "201\n"


@pytest.mark.parametrize(("harm", "said"), [(1, {"error": 719}), (2, {"ok": False})])
def test_a_world_in_which_ending_one_hurts_the_others(
    here: GpuHost, pipe: Path, harm: int, said: dict[str, int]
) -> None:
    world.change(here.sim, terminate_hurts_neighbours=harm, terminate_xid=45)
    client, neighbour = here.start(pipe=pipe), here.start(pipe=pipe)
    assert client.ask("gemm 16 1")["ok"]
    assert neighbour.ask("gemm 16 1")["ok"]
    here.control(pipe, f"terminate_client {server(here, pipe)} {client.pid}")
    assert said.items() <= neighbour.ask("gemm 16 1").items()
    assert "xid=45" in (here.sim.folder / "xid").read_text()


@pytest.mark.parametrize(("harm", "said"), [(0, {"ok": True}), (1, {"error": 719}), (2, {"ok": False})])
def test_a_client_killed_by_signal_hurts_those_who_are_there_or_nobody(
    here: GpuHost, pipe: Path, harm: int, said: dict[str, int]
) -> None:
    world.change(here.sim, sigkill_hurts_neighbours=harm)
    client, neighbour = here.start(pipe=pipe), here.start(pipe=pipe)
    assert client.ask("gemm 16 1")["ok"]
    assert neighbour.ask("gemm 16 1")["ok"]
    client.kill()
    assert said.items() <= neighbour.ask("gemm 16 1").items()
    neighbour.kill()
    assert here.start(pipe=pipe).ask("gemm 16 1")["ok"]


def test_a_fault_strikes_all_clients_of_the_gpu_until_the_last_is_gone(here: GpuHost, pipe: Path) -> None:
    elsewhere = here.start(pipe=here.daemon(1))
    culprit, neighbour = here.start(pipe=pipe), here.start(pipe=pipe)
    assert neighbour.ask("gemm 16 1")["ok"]
    assert culprit.ask("fault")["error"] == 700
    assert neighbour.ask("gemm 16 1")["error"] == 700
    assert elsewhere.ask("gemm 16 1")["ok"]
    assert status(here, pipe) == "FAULT"
    assert here.start(pipe=pipe).hello["name"] == "CUDA_ERROR_MPS_SERVER_NOT_READY"
    neighbour.kill()
    assert status(here, pipe) == "FAULT"
    culprit.kill()
    assert status(here, pipe) == "ACTIVE"
    assert here.start(pipe=pipe).ask("gemm 16 1")["ok"]


def test_a_fault_may_be_contained_or_named_differently(here: GpuHost, pipe: Path) -> None:
    world.change(here.sim, fault_contained=1, fault_xid=0)
    first, second, third = (here.start(pipe=pipe) for _ in range(3))
    assert [each.ask("sync") for each in (first, second, third)] == [{"synchronised": True}] * 3
    assert first.ask("fault")["error"] == 700
    assert second.ask("gemm 16 1")["ok"]
    world.change(here.sim, fault_contained=0, fault_neighbour_error=719)
    assert second.ask("fault")["error"] == 700
    assert third.ask("sync")["error"] == 719


def test_without_its_server_a_client_is_lost(here: GpuHost, pipe: Path) -> None:
    first, second = here.start(pipe=pipe), here.start(pipe=pipe)
    assert [first.ask("alloc 1")["mib"], second.ask("alloc 1")["mib"]] == [1, 1]
    os.kill(server(here, pipe), signal.SIGKILL)
    until(lambda: first.ask("sync") == {"error": 806, "name": "CUDA_ERROR_MPS_RPC_FAILURE", "call": "cuCtxSynchronize"})
    assert here.control(pipe, f"shutdown_server {server(here, pipe)} -f") == ""
    assert second.ask("sync")["error"] == 806
    assert here.sim.used(here.gpus[0]) == 0


def test_a_server_told_to_end_waits_for_its_clients(here: GpuHost, pipe: Path) -> None:
    client = here.start(pipe=pipe)
    first = client.ask("sync") and server(here, pipe)
    here.control(pipe, f"shutdown_server {first}")
    assert client.ask("gemm 16 1")["ok"]
    client.quit()
    assert here.start(pipe=pipe).ask("sync")
    assert server(here, pipe) != first


def test_exclusive_mode_lets_mps_in_and_keeps_others_out(here: GpuHost, pipe: Path) -> None:
    here.sim.set_compute_mode(here.gpus[0], EXCLUSIVE)
    here.control(pipe, f"start_server -uid {os.getuid()}")
    assert here.start().hello["name"] == "CUDA_ERROR_DEVICE_UNAVAILABLE", "an idle server holds it"
    assert [here.start(pipe=pipe).hello["ready"] for _ in range(2)] == [True, True]
    assert here.start(pipe=pipe / "misspelled").hello["error"] == 46, "and the wrong directory fails closed"


def test_without_a_server_a_plain_process_takes_the_card(here: GpuHost, pipe: Path) -> None:
    here.sim.set_compute_mode(here.gpus[0], EXCLUSIVE)
    world.change(here.sim, idle_server_holds_gpu=0, server_mib=0)
    here.control(pipe, f"start_server -uid {os.getuid()}")
    thief = here.start()
    assert thief.hello["ready"]
    assert here.start(pipe=pipe).hello["error"] == 46
    thief.kill()
    assert here.start(pipe=pipe).hello["ready"]


def test_there_are_only_so_many_clients(here: GpuHost, pipe: Path) -> None:
    world.change(here.sim, max_clients=2)
    first, second = here.start(pipe=pipe), here.start(pipe=pipe)
    assert first.hello["ready"]
    assert second.hello["ready"]
    assert here.start(pipe=pipe).hello["name"] == "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED"
    first.kill()
    assert here.start(pipe=pipe).hello["ready"]


@root
def test_another_user_waits_until_the_first_is_gone(here: GpuHost, pipe: Path, user: Callable[..., Program]) -> None:
    first = user(TENANT, pipe)
    assert first.ask("alloc 10")["mib"] == 10
    before = server(here, pipe)
    second = user(NOBODY, pipe)
    with pytest.raises(TimeoutError):
        second.read(0.5)
    first.quit()
    assert second.ask("gemm 16 1")["ok"]
    assert server(here, pipe) != before, "a server of its own"
    world.change(here.sim, foreign_uid_waits=0)
    assert user(TENANT, pipe).hello["error"] == 807


@root
def test_a_daemon_for_several_users_serves_them_together(here: GpuHost, user: Callable[..., Program]) -> None:
    pipe = here.daemon(0, "-multiuser-server")
    assert [user(uid, pipe).ask("gemm 16 1")["ok"] for uid in (TENANT, NOBODY)] == [True, True]


def test_a_driver_may_know_no_multi_user_mode(here: GpuHost) -> None:
    world.change(here.sim, multiuser_supported=0)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        here.daemon(0, "-multiuser-server")
    assert refused.value.returncode == 1


@pytest.mark.parametrize("lists", ["compute,mps", "mps", "compute", "none"])
def test_which_of_nvml_s_lists_show_a_client_is_a_switch(here: GpuHost, pipe: Path, lists: str) -> None:
    world.change(here.sim, mps_clients_listed=lists, server_mib=0)
    client = here.start(pipe=pipe)
    assert client.ask("alloc 1")
    ask = "import sys, pynvml as n; n.nvmlInit(); g = n.nvmlDeviceGetHandleByUUID(sys.argv[1])\n"
    ask += "for f in (n.nvmlDeviceGetComputeRunningProcesses, n.nvmlDeviceGetMPSComputeRunningProcesses):\n"
    ask += "    print(*(p.pid for p in f(g)))"
    environment = dict(os.environ) | here.sim.environment(need_library())
    said = subprocess.run([sys.executable, "-c", ask, here.gpus[0]], env=environment, capture_output=True, check=True)
    shown = [name for name, line in zip(("compute", "mps"), said.stdout.splitlines(), strict=True) if line]
    assert shown == [each for each in lists.split(",") if each != "none"]


def test_plain_processes_take_turns_and_clients_do_not(here: GpuHost, pipe: Path) -> None:
    world.change(here.sim, kernel_us=300_000)

    def both(through: Path | None) -> float:
        pair = [here.start(pipe=through) for _ in range(2)]
        for each in pair:
            assert each.ask("sync")
        begun = time.monotonic()
        for each in pair:
            assert each.process.stdin is not None
            each.process.stdin.write(b"gemm 16 2\n")
            each.process.stdin.flush()
        assert all(each.read()["ok"] for each in pair)
        return time.monotonic() - begun

    together, apart = both(pipe), both(None)
    assert together < 1.1, "two kernels of 300 ms each, side by side"
    assert apart >= 1.2, "and one after the other"


FOREIGN = [("quit", ""), ("start_server -uid 0", ""), ("terminate_client 1 2", "terminate"), ("ps", "")]
FOREIGN += [("shutdown_server 5 -f", "shutdown"), ("set_default_active_thread_percentage 50", "set")]


@root
@pytest.mark.parametrize(("command", "switch"), FOREIGN)
def test_another_user_is_answered_as_the_real_daemon_does(here: GpuHost, command: str, switch: str) -> None:
    real, pipe = here.folder / "real", here.folder / "real-pipe"
    shutil.copy(need_mps_control(), real)
    real.chmod(0o755)
    pipe.mkdir()

    def ask(*arguments: str, text: str = "", **how: Any) -> str:
        folders = {"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "CUDA_MPS_LOG_DIRECTORY": str(pipe)}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [real, *arguments],
            env=folders,
            input=text,
            text=True,
            stdout=subprocess.PIPE,
            check=True,
            timeout=20,
            **how,
        )
        return done.stdout

    ask("-d")
    try:
        said = ask(text=f"{command}\n", user=NOBODY, group=NOBODY, extra_groups=[])
    finally:
        ask(text="quit\n")
    daemon = Daemon(here.sim, here.gpus[0])
    assert daemon.answer(command, NOBODY) == said
    if switch:
        world.change(here.sim, **{f"foreign_uid_may_{switch}": 0})
        assert "nsufficient privileges" in daemon.answer(command, NOBODY)
    assert "privilege" not in daemon.answer(command, 0)
