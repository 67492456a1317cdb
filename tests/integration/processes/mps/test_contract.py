"""Every command that the fetched control program knows, asked where there is no server: it and the stand-in alike.

The list is not ours: the program's own words are tried on its own daemon, so a build with another command fails here.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.processes.mps.conftest import until
from tests.integration.processes.mps.contract import KINDS, GpuHost, names, opened

pytestmark = pytest.mark.node

PERCENTAGE, LIMIT, PRIORITY = "active_thread_percentage", "device_pinned_mem_limit", "client_priority"
NEED_UID = "A user id (UID) is required to start a new server\n"
INVALID = "Invalid priority value - must be 0 or 1!\n"


def gone(server: int) -> str:
    return f"Server {server} not found\n"


def not_terminated(server: int) -> str:
    return f"{gone(server)}Server {server} not found!\n1\n"


def for_a_server(command: str) -> tuple[tuple[str, str], ...]:
    words = (("", 0), (" 1", 1), (" x", 0), (" -1", -1), (" 1 0", 1), (" 1 0 5M", 1), (" -uid 0", 0))
    return tuple((f"{command}{more}", gone(server)) for more, server in words)


CASES: dict[str, tuple[tuple[str, str], ...]] = {
    "get_server_list": (("get_server_list", ""), (" get_server_list\tx", "")),
    "start_server": tuple((f"start_server{more}", NEED_UID) for more in ("", " 1", " x", " -uid", " -uid x", " -p 1")),
    "shutdown_server": (*for_a_server("shutdown_server"), ("shutdown_server 5 -f", gone(5))),
    "get_client_list": for_a_server("get_client_list"),
    "get_device_client_list": (
        ("get_device_client_list", ""), ("get_device_client_list x", ""), ("get_device_client_list 5", gone(5)),
        ("get_device_client_list -1", gone(-1)), ("get_device_client_list 1 2", gone(1)),
    ),
    "terminate_client": tuple(
        (f"terminate_client{more}", not_terminated(server))
        for more, server in (("", 0), (" 1", 1), (" 1 2", 1), (" x y", 0), (" -1 2", -1), (" 1 2 3", 1))
    ),
    "ps": (
        ("ps", "Server not found\n"), ("ps x y", "Server not found\n"), ("ps -x", "Server not found\n"),
        ("ps -p 1", f"{gone(1)}{gone(1)}\n"), ("ps -p", f"{gone(0)}{gone(0)}\n"),
    ),
    f"get_{PERCENTAGE}": for_a_server(f"get_{PERCENTAGE}"),
    f"set_{PERCENTAGE}": for_a_server(f"set_{PERCENTAGE}"),
    f"get_{LIMIT}": for_a_server(f"get_{LIMIT}"),
    f"set_{LIMIT}": for_a_server(f"set_{LIMIT}"),
    f"get_default_{PERCENTAGE}": (
        (f"set_default_{PERCENTAGE} 100", "100.0\n"), (f"get_default_{PERCENTAGE}", "100.0\n"),
        (f"get_default_{PERCENTAGE} 5", "100.0\n"),
    ),
    f"set_default_{PERCENTAGE}": (
        (f"set_default_{PERCENTAGE} 33.3", "33.3\n"), (f"get_default_{PERCENTAGE}", "33.3\n"),
        (f"set_default_{PERCENTAGE}", "33.3\n"),
    ),
    f"get_default_{LIMIT}": (
        (f"set_default_{LIMIT} 0 0", ""),
        *((f"get_default_{LIMIT}{more}", "") for more in ("", " 0", " 9", " x", " -1", " 99")),
    ),
    f"set_default_{LIMIT}": (
        (f"set_default_{LIMIT} 0 512M", ""), (f"get_default_{LIMIT} 0", "512M\n"), (f"get_default_{LIMIT} 1", ""),
        (f"get_default_{LIMIT}", "512M\n"), (f"get_default_{LIMIT} x", "512M\n"),
    ),
    f"get_default_{PRIORITY}": (
        (f"set_default_{PRIORITY} 0", ""), (f"get_default_{PRIORITY}", "0\n"), (f"get_default_{PRIORITY} 4", "0\n"),
    ),
    f"set_default_{PRIORITY}": (
        (f"set_default_{PRIORITY} 1", ""), (f"get_default_{PRIORITY}", "1\n"), (f"set_default_{PRIORITY} 2", INVALID),
        (f"get_default_{PRIORITY}", "1\n"),
    ),
}  # fmt: skip
LATER = ("get_server_status", "device_query", "lspart", "sm_partition", "help")
"""Commands of later builds, and one of none."""


@pytest.fixture(name="host", params=KINDS, scope="module")
def _host(request: pytest.FixtureRequest) -> Iterator[GpuHost]:
    with opened(request.param) as host:
        yield host


def test_every_command_that_the_program_knows_has_cases_here(real: Path, host: GpuHost) -> None:
    candidates = [name for name in names(real) if name != "quit"]
    told = dict(zip(candidates, host.say(*candidates), strict=True))
    known = [name for name, answer in told.items() if answer != f'Unknown command "{name}"\n']
    assert known == sorted(CASES)


@pytest.mark.parametrize("command", CASES)
def test_a_command_is_answered_so_and_with_exit_code_0_whatever_is_wrong_with_it(host: GpuHost, command: str) -> None:
    told = [line for line, _ in CASES[command]]
    assert list(zip(told, host.say(*told), strict=True)) == list(CASES[command])


def test_an_unknown_command_is_named_and_exits_0(host: GpuHost) -> None:
    unknown = ["bogus", "", " ", "help me", "GET_SERVER_LIST", "get_server_list;", "quit_", "x y z"]
    answers = [f'Unknown command "{(line.split() or [""])[0]}"\n' for line in unknown]
    assert host.say(*unknown) == answers


@pytest.mark.parametrize("command", LATER)
def test_a_command_of_a_later_build_is_unknown_to_this_one(command: str) -> None:
    with opened("real") as host:
        assert host.say(f"{command} 1") == [f'Unknown command "{command}"\n']


def test_without_a_newline_the_last_line_counts_too(host: GpuHost) -> None:
    assert host.run(told="ps\nps").stdout == "Server not found\nServer not found\n"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("line", ["quit", "quit -t 5", "quit x"])
def test_quit_ends_the_daemon_and_then_nobody_is_there(kind: str, line: str) -> None:
    with opened(kind) as host:
        done = host.run(told=f"{line}\n")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        until(lambda: host.pids() == [])
        done = host.run(told="quit\n")
        assert (done.returncode, done.stdout, done.stderr) == (1, "", "Cannot find MPS control daemon process\n")
        assert not (host.pipe / "log").exists()
