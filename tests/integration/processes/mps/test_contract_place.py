"""What the control daemon leaves in its directory, reads from its environment, and does where something is there."""

import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.processes.mps.conftest import until
from tests.integration.processes.mps.contract import KINDS, GpuHost, opened

pytestmark = pytest.mark.node

NOBODY = 65534
FOUND = "get_default_active_thread_percentage", "get_default_client_priority", "get_default_device_pinned_mem_limit 0"
FILES = {
    "control": (stat.S_IFSOCK, 0o666),
    "control_privileged": (stat.S_IFSOCK, 0o755),
    "control_lock": (stat.S_IFREG, 0o666),
    "log": (stat.S_IFIFO, 0o777),
}


@pytest.fixture(name="kind", params=KINDS)
def _kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(name="host")
def _host(kind: str) -> Iterator[GpuHost]:
    with opened(kind) as host:
        yield host


def test_its_directory_has_these_files_open_to_everybody_and_no_file_with_its_pid(host: GpuHost) -> None:
    modes = {each.name: each.lstat().st_mode for each in host.pipe.iterdir()}
    assert {name: (stat.S_IFMT(modes[name]), stat.S_IMODE(modes[name])) for name in FILES} == FILES
    assert [name for name in modes if name.endswith(".pid")] == []
    assert host.pids()


def test_its_log_names_every_command(host: GpuHost) -> None:
    host.say("get_server_list 77")
    until(lambda: "Cmd:get_server_list 77\n" in (host.log / "control.log").read_text())


def test_a_second_daemon_for_a_directory_is_refused_and_the_first_lives(host: GpuHost) -> None:
    pids = host.pids()
    for form in "-d", "-f":
        done = host.run(form)
        assert (done.returncode, done.stdout + done.stderr) == (1, "An instance of this daemon is already running\n")
    assert host.pids() == pids
    assert host.say("get_server_list") == [""]


def test_over_the_sockets_of_one_that_was_killed_another_starts_with_nothing_of_its_settings(host: GpuHost) -> None:
    host.say("set_default_active_thread_percentage 10", "set_default_device_pinned_mem_limit 0 3M")
    host.kill()
    assert (host.pipe / "control").is_socket()
    done = host.run(told="get_server_list\n")
    assert (done.returncode, done.stderr) == (1, "Cannot find MPS control daemon process\n")
    host.start()
    assert host.say(*FOUND) == ["100.0\n", "0\n", ""]


def test_who_connects_and_stays_silent_stops_everybody_until_he_leaves(host: GpuHost) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(host.pipe / "control"))
        with pytest.raises(subprocess.TimeoutExpired):
            host.run(told="get_server_list\n", seconds=1.0)
    assert host.say("get_server_list") == [""]


@pytest.mark.parametrize(
    ("environment", "answers"),
    [
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33.3"}, ["33.3\n", "0\n", ""]),
        ({"CUDA_MPS_CLIENT_PRIORITY": "1"}, ["100.0\n", "1\n", ""]),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G"}, ["100.0\n", "0\n", ""]),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "150"}, ["100.0\n", "0\n", ""]),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "abc"}, ["100.0\n", "0\n", ""]),
        ({"CUDA_MPS_CLIENT_PRIORITY": "7"}, ["100.0\n", "0\n", ""]),
    ],
    ids=["percentage", "priority", "the limit does not show", "no percentage", "no number", "no priority"],
)
def test_defaults_come_from_its_environment_where_they_are_proper(
    kind: str, environment: dict[str, str], answers: list[str]
) -> None:
    with opened(kind, **environment) as host:
        assert host.say(*FOUND) == answers


@pytest.mark.parametrize(("length", "code"), [(86, 0), (87, 0), (88, 1)])
def test_a_path_to_its_directory_has_87_bytes_at_most_or_it_ends_without_a_word(
    host: GpuHost, length: int, code: int
) -> None:
    pipe = host.folder / ("x" * (length - len(str(host.folder)) - 1))
    pipe.mkdir()
    there = GpuHost(host.binary, host.folder, CUDA_MPS_PIPE_DIRECTORY=str(pipe))
    done = subprocess.run([there.binary, "-d"], env=there.environment, timeout=30, check=False)
    assert done.returncode == code
    asked = there.run(told="quit\n")
    assert (asked.returncode, asked.stdout) == (code, "")


def test_a_directory_that_is_not_there_is_made(host: GpuHost) -> None:
    host.run(told="quit\n")
    until(lambda: host.pids() == [])
    shutil.rmtree(host.pipe)
    host.start()
    assert (host.pipe / "control").is_socket()


@pytest.mark.parametrize("option", ["-multiuser-server", "-M", "-S"])
def test_this_build_starts_no_daemon_for_several_users_or_partitions_without_a_gpu(option: str) -> None:
    with opened("real") as host:
        host.kill()
        assert host.run("-d", option).returncode == 1
        assert host.pids() == []


def test_another_user_may_change_the_settings_but_not_end_it() -> None:
    """The stand-in's other users come through containers: ``tests/integration/processes/test_simulator.py``."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    told = "set_default_device_pinned_mem_limit 0 1M", "set_default_active_thread_percentage 1", "start_server -uid 0"
    with opened("real") as host:
        host.folder.parent.chmod(0o755)
        theirs = GpuHost(Path(shutil.copy(host.binary, host.folder)), host.folder)
        done = theirs.run(told="\n".join((*told, "quit\n")), user=NOBODY)
        refused = f"Insufficient privileges for UID {NOBODY}\nNot enough privilege to execute quit command\n"
        assert done.stdout == f"1.0\n{refused}"
        assert host.say(*FOUND) == ["1.0\n", "0\n", "1M\n"]


def test_one_that_is_killed_leaves_its_files_where_they_were(host: GpuHost) -> None:
    assert host.pids()
    host.kill()
    assert {each.name for each in host.pipe.iterdir()} >= set(FILES)
