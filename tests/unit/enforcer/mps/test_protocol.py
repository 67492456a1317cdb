"""The MPS protocol is read strictly: what the daemon really answered (535.309.01), and what must never be believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.mps import protocol
from enforcer.mps.protocol import ServerStatus
from gpushare.errors import ConfigError, MpsError
from gpushare.reasons import Reason


@pytest.mark.parametrize(
    ("answer", "pids"), [("", ()), ("\n", ()), ("29800\n", (29800,)), ("1\n22\n333\n", (1, 22, 333))]
)
def test_pid_lists(answer: str, pids: tuple[int, ...]) -> None:
    assert protocol.parse_pids(answer) == pids


@pytest.mark.parametrize(
    "answer",
    [
        "Server 1 not found\n",
        'Unknown command "x"\n',
        "0\n",
        "-1\n",
        "1.5\n",
        "12 x\n",
        "٣\n",
        "1_0\n",
        "+5\n",
        "99999999999\n",
    ],
)
def test_anything_but_pids_in_a_pid_list_is_an_error(answer: str) -> None:
    with pytest.raises(MpsError, match="instead of a list of process ids"):
        protocol.parse_pids(answer)


@pytest.mark.parametrize(
    ("answer", "done"),
    [
        *(("0\n", True), ("\n 0 \n\n", True), ("Server 1 not found\nServer 1 not found!\n1\n", False), ("", False)),
        *(("1\n", False), ("0\n1\n", False), ("700\n", False), ("00\n", False), ("10\n", False)),
        ('Unknown command "terminate_client"\n', False),
    ],
)
def test_only_a_last_line_of_zero_means_terminated(answer: str, done: bool) -> None:  # noqa: FBT001
    assert protocol.parse_terminated(answer) is done


@pytest.mark.parametrize(
    ("mib", "shown"),
    [
        (1, "1M"),
        (512, "512M"),
        (1023, "1023M"),
        (1024, "1G"),
        (1536, "1G"),
        (4608, "4G"),
        (15360, "15G"),
        (143771, "140G"),
    ],
)
def test_a_limit_is_sent_as_whole_megabytes_and_compared_as_the_daemon_shows_it(mib: int, shown: str) -> None:
    assert protocol.set_limit(mib) == f"set_default_device_pinned_mem_limit 0 {mib}M"
    protocol.check_limit(f"{shown}\n", mib)


@pytest.mark.parametrize("answer", ["", "16G\n", "15360M\n", "15G 15G\n", "No default pinned memory limit set\n"])
def test_another_limit_or_none_is_an_error(answer: str) -> None:
    with pytest.raises(MpsError) as caught:
        protocol.check_limit(answer, 15360)
    assert caught.value.reason is Reason.MPS_LIMIT_NOT_APPLIED


@pytest.mark.parametrize("mib", [0, -1])
def test_a_limit_that_would_remove_the_limit_is_never_sent(mib: int) -> None:
    with pytest.raises(ConfigError):
        protocol.set_limit(mib)


@pytest.mark.parametrize(("answer", "value"), [("100.0\n", 100.0), ("33.3\n", 33.3), ("5\n", 5.0)])
def test_percentages(answer: str, value: float) -> None:
    assert protocol.parse_percentage(answer) == value


@pytest.mark.parametrize("answer", ["", "0.0\n", "100.1\n", "nan\n", "1e1\n", "50.0\n50.0\n"])
def test_what_is_no_percentage_is_an_error(answer: str) -> None:
    with pytest.raises(MpsError, match="percentage"):
        protocol.parse_percentage(answer)


def test_server_status() -> None:
    assert protocol.parse_status("FAULT\n") is ServerStatus.FAULT
    assert protocol.parse_status('Unknown command "get_server_status"\n') is None
    with pytest.raises(MpsError, match="'Server 3 not found'"):
        protocol.parse_status("Server 3 not found\n")


@pytest.mark.parametrize(
    ("path", "fits"), [("/" + "x" * 85, True), ("/" + "x" * 86, False), ("pipe", False), ("/" + "ä" * 43, False)]
)
def test_pipe_paths_have_to_fit_a_socket_address(path: str, fits: bool) -> None:  # noqa: FBT001
    if fits:
        protocol.check_pipe_path(path)
    else:
        with pytest.raises(ConfigError, match="at most 86"):
            protocol.check_pipe_path(path)


@given(st.text())
def test_no_answer_breaks_the_readers(answer: str) -> None:
    for read in protocol.parse_pids, protocol.parse_percentage, protocol.parse_status:
        try:
            read(answer)
        except MpsError as error:
            assert error.message.isascii()
    protocol.parse_terminated(answer)
