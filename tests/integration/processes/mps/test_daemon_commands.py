"""What ``Client`` sets is what it reads back: the real program and the stand-in."""

import os
from pathlib import Path

import pytest

from enforcer.mps.daemon_commands import DaemonCommands
from gpushare.errors import ConfigError, MpsError
from gpushare.reasons import Reason
from tests.fakes.gpu.state import MpsFault, Sim
from tests.integration.processes.mps.conftest import Make

pytestmark = pytest.mark.node


@pytest.fixture(name="client")
def _client(binary: Path, make: Make) -> DaemonCommands:
    daemon = make(binary)
    daemon.start()
    return daemon.client


@pytest.mark.parametrize("mib", [1, 511, 512, 1023, 1024, 1536, 4608, 16384, 143771, 196608])
def test_limits_are_set_and_read_back(client: DaemonCommands, mib: int) -> None:
    client.set_limit(mib)
    client.check_limit(mib)
    with pytest.raises(MpsError) as caught:
        client.check_limit(mib + 1024)
    assert caught.value.reason is Reason.MPS_LIMIT_NOT_APPLIED


def test_percentages_are_set_and_read_back(client: DaemonCommands) -> None:
    assert client.percentage() == 100.0
    for percent in (0.5, 33.3, 100.0):
        client.set_percentage(percent)
        assert client.percentage() == percent


def test_what_the_daemon_would_misread_is_never_sent(client: DaemonCommands) -> None:
    before = client.percentage()
    for wrong in (0.0, -1.0, 100.5, float("nan")):
        with pytest.raises(ConfigError, match="write "):
            client.set_percentage(wrong)
    with pytest.raises(ConfigError, match="at least 1 MiB"):
        client.set_limit(0)
    assert client.percentage() == before


def test_a_server_is_asked_by_its_pid(client: DaemonCommands) -> None:
    for server in client.servers():
        assert client.clients(server) == ()
    with pytest.raises(MpsError):
        client.clients(1)
    assert client.terminate(1, os.getpid()) is not None


def test_a_daemon_that_keeps_no_setting_is_found_out(stand_in: Path, make: Make, sim: Sim) -> None:
    daemon = make(stand_in)
    daemon.start()
    sim.fail_mps(
        MpsFault(command="get_default_device_pinned_mem_limit", answer="700M\n"),
        MpsFault(command="set_default_active_thread_percentage", answer="100.0\n"),
    )
    with pytest.raises(MpsError, match="reports '700M'"):
        daemon.client.set_limit(1024)
    with pytest.raises(MpsError, match=r"reports '100\.0'"):
        daemon.client.set_percentage(50)


def test_nobody_there_is_an_error_whatever_is_asked(stand_in: Path, make: Make) -> None:
    client = make(stand_in).client
    for ask in (client.percentage, client.servers, client.quit):
        with pytest.raises(MpsError):
            ask()
