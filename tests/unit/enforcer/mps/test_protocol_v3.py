"""Protocol 3 of MPS is read strictly. The answers are from NVIDIA's documentation, or seen by others on driver 615."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.mps import protocol_v3
from enforcer.mps.protocol import ServerStatus
from enforcer.mps.protocol_v3 import ServerRow, Space, SpaceRow
from gpushare.errors import ConfigError, MpsError
from gpushare.reasons import Reason

# From documentation.
SERVERS = "training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,-\n"
SPACES = "high_priority,training,Ready,4G,25,1,/run/nvidia-mps/training/high_priority\n"
CLIENTS = "51023,training,0,default,python train.py\n51087,training,0,high_priority,python eval.py\n"
# Seen by others (kai-scheduler/gpu-fractioning, driver 615): the device is a UUID, the namespace has its server.
SEEN = "3167082,srv,GPU-cc97390c-c189-71f5-1bb7-5b0af481fa0d,srv/default (0),VLLM::EngineCore\n"
TABLE = (
    "316...  srv           GPU-cc97390c-c189-71f5-1bb7-5b0af481fa0d       srv/default (0)           VLLM::EngineCore\n"
)


def test_servers() -> None:
    row = ServerRow(name="training", pid=48201, status=ServerStatus.ACTIVE, pipe="/run/nvidia-mps/training")
    assert protocol_v3.parse_servers(SERVERS) == (row,)
    assert protocol_v3.parse_servers("") == ()
    several = SERVERS.replace("GPU-abcd-1234", "GPU-abcd-1234,GPU-efgh-5678")
    assert protocol_v3.parse_servers(several) == (row,)


@pytest.mark.parametrize(
    ("word", "status"), [("Ready", "ACTIVE"), ("FAULT", "FAULT"), ("Initializing", "INITIALIZING"), ("Draining", None)]
)
def test_the_state_of_a_server_and_words_that_are_not_documented(word: str, status: str | None) -> None:
    (row,) = protocol_v3.parse_servers(SERVERS.replace("Ready", word))
    assert row.status == status


@pytest.mark.parametrize("pid", ["-", "0", ""])
def test_a_server_that_does_not_run_has_no_pid(pid: str) -> None:
    (row,) = protocol_v3.parse_servers(SERVERS.replace("48201", pid))
    assert row.pid is None


def test_namespaces() -> None:
    (row,) = protocol_v3.parse_spaces(SPACES)
    assert row == SpaceRow("high_priority", "4G", "25", "1", "/run/nvidia-mps/training/high_priority")
    assert row.limited
    assert row.has(Space(memory_mib=4096, percentage=25, priority=1))
    for other in (Space(8192, 25, 1), Space(4096, 50, 1), Space(4096, 25, 0)):
        assert not row.has(other)


@pytest.mark.parametrize("limit", ["-", "", "0", "0G", "0M", "unlimited", "none", "4096", "4.5G", "4GB", "-1G"])
def test_a_namespace_without_a_limit_that_can_be_read_has_none(limit: str) -> None:
    (row,) = protocol_v3.parse_spaces(SPACES.replace("4G", limit))
    assert not row.limited
    assert not row.has(Space(memory_mib=4096, percentage=25, priority=1))


@pytest.mark.parametrize("percentage", ["-", "", "0", "101", "25%"])
def test_a_share_of_the_processors_that_cannot_be_read_is_another(percentage: str) -> None:
    (row,) = protocol_v3.parse_spaces(SPACES.replace(",25,", f",{percentage},"))
    assert not row.has(Space(memory_mib=4096, percentage=25, priority=1))


def test_clients() -> None:
    assert protocol_v3.parse_clients(CLIENTS) == ((51023, "training"), (51087, "training"))
    assert protocol_v3.parse_clients(SEEN) == ((3167082, "srv"),)
    assert protocol_v3.parse_clients("7,srv,0,default,sh -c a,b,c\n") == ((7, "srv"),)


@pytest.mark.parametrize("answer", [TABLE, "pid,server,device,namespace,cmd\n", "0,a,0,b,c\n", "-5,a,0,b,c\n", "7,a\n"])
def test_what_is_no_list_of_clients_is_an_error(answer: str) -> None:
    with pytest.raises(MpsError, match="was expected"):
        protocol_v3.parse_clients(answer)


def test_the_head_of_a_list_is_what_tells_the_protocols_apart() -> None:
    protocol_v3.check_greeting("name,uid,pid,status,pipe-directory,allowed-devices,context-ids\n")
    protocol_v3.check_greeting("NAME, UID, PID, STATUS, PIPE-DIRECTORY\ntraining,1000,...\n")
    for silence in ("", "\n", 'Unknown command "server"\n', SERVERS):  # protocol 2 says nothing, and exits with 0
        with pytest.raises(MpsError, match="head of a list"):
            protocol_v3.check_greeting(silence)


@pytest.mark.parametrize(
    ("shown", "mib"), [("4G", 4096), ("4G", 4608), ("4608M", 4608), ("512M", 512), ("524288K", 512), ("140G", 143771)]
)
def test_limits_are_compared_in_the_unit_they_are_shown_in(shown: str, mib: int) -> None:
    protocol_v3.check_limit(f"{shown}\n", mib)
    with pytest.raises(MpsError) as caught:
        protocol_v3.check_limit(shown, mib + 1024)
    assert caught.value.reason is Reason.MPS_LIMIT_NOT_APPLIED


def test_what_is_sent() -> None:
    assert protocol_v3.set_space("s1", Space(4608, 25, 1)) == (
        "namespace", "set", "s1", "--server=gpu", "--pinned-memory-limit=4608M", "--active-thread-percentage=25",
        "--client-priority=1",
    )  # fmt: skip
    assert protocol_v3.set_default(limit_mib=1) == ("server", "set", "gpu", "--pinned-memory-limit=1M")
    assert protocol_v3.create_server("GPU-1", 0) == (
        "server", "create", "gpu", "--uid=0", "--allowed-devices=GPU-1",
    )  # fmt: skip


@pytest.mark.parametrize("wrong", [Space(0), Space(1, 0), Space(1, 101), Space(1, 100, 2)])
def test_what_would_mean_no_limit_is_never_sent(wrong: Space) -> None:
    with pytest.raises(ConfigError):
        protocol_v3.set_space("s1", wrong)
    with pytest.raises(ConfigError, match="whole one"):
        protocol_v3.set_default(percentage=33.3)


@given(st.text(max_size=64), st.text(max_size=64), st.integers(1, 10**6))
def test_names_are_what_the_daemon_takes_and_others_for_other_limits(claim: str, request: str, mib: int) -> None:
    names = [protocol_v3.space_name(claim, request, Space(each)) for each in (mib, mib, mib + 1)]
    assert [a == b for a, b in pairwise(names)] == [True, False]
    for name in names:
        assert protocol_v3.is_ours(name)
        assert name.startswith(protocol_v3.space_prefix(claim))
        assert len(name) <= 64
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_")
    assert not protocol_v3.is_ours("default")


@given(st.text())
def test_no_answer_breaks_the_readers(answer: str) -> None:
    for read in (
        protocol_v3.parse_servers, protocol_v3.parse_spaces, protocol_v3.parse_clients, protocol_v3.check_greeting,
    ):  # fmt: skip
        try:
            read(answer)
        except MpsError as error:
            assert error.message.isascii()
