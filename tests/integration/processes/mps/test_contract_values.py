"""What the control daemon makes of values: it exits 0 and reads another one than was meant. The stand-in does the same.

So our own client sends the few forms that are read as meant; each value that people may write goes through it here.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from enforcer.mps.control_program import ControlProgram
from enforcer.mps.daemon_commands import DaemonCommands
from gpushare.errors import MpsError
from gpushare.reasons import Reason
from tests.integration.processes.mps.contract import KINDS, GpuHost, opened

pytestmark = pytest.mark.node

TABLE = Path(__file__).parents[3] / "unit/gpushare/quantities.jsonl"
PERCENTAGE, LIMIT, PRIORITY = (
    "default_active_thread_percentage",
    "default_device_pinned_mem_limit",
    "default_client_priority",
)
INVALID = "Invalid priority value - must be 0 or 1!\n"
LIMITS = {
    "512M": "512M", "1023M": "1023M", "1G": "1G", "10G": "10G", "10g": "10G", "512m": "512M", "07M": "7M",
    "1024M": "1G", "1536M": "1G", "2047M": "1G", "4608M": "4G", "143771M": "140G",
    "10.5G": "10M", "1.5M": "1M", "10 G": "10M", "5M 6M": "5M", "1T": "1M", "1024K": "1G", "4K5M": "4M", "5": "5M",
    "1073741824": "1048576G", "10Gi": "10G", "512MB": "512M", "512Mi": "512M", "2048M,": "2G", "+5M": "5M",
    "-1G": "17179869183G", "-5M": "17179869183G", "99999999999G": "14100654079G", "17179869185G": "1G",
    "99999999999999999999M": "17179869183G",
}  # fmt: skip
"""Value and what is read back: exact below 1 GiB, floored to GiB from there on, and the traps."""
REMOVING = ["0G", "0M", "0", "", "G", "M", "abc", "0x10M", "- 5M", "17592186044416M", "17179869184G"]
PERCENTAGES = {
    "33.3": "33.3", "100": "100.0", "100.0": "100.0", "0.1": "0.1", ".5": "0.5", "1e1": "10.0", "+5": "5.0",
    "33.33333": "33.3", "12.345": "12.3", "99.96": "100.0", "0.04": "0.0", "33,3": "33.0", "50%": "50.0",
    "10 20": "10.0", "0x10": "16.0",
}  # fmt: skip
REFUSED = ["0", "-1", "100.1", "150", "nan", "inf", "", "x", "%"]
PRIORITIES = {"0": "0", "1": "1", "": "0", "x": "0", "1.5": "1", "1 0": "1", "01": "1", "+1": "1", "4294967296": "0"}


@pytest.fixture(name="host", params=KINDS, scope="module")
def _host(request: pytest.FixtureRequest) -> Iterator[GpuHost]:
    with opened(request.param) as host:
        yield host


def thirds(host: GpuHost, *lines: tuple[str, str, str]) -> list[list[str]]:
    """The answers to lines that belong together three by three, all said in one run."""
    answers = host.say(*(each for three in lines for each in three))
    return [answers[index : index + 3] for index in range(0, len(answers), 3)]


def test_a_limit_is_read_by_its_digits_and_what_follows_them_at_once(host: GpuHost) -> None:
    lines = [(f"set_{LIMIT} 0 3M", f"set_{LIMIT} 0 {value}", f"get_{LIMIT} 0") for value in LIMITS]
    read = dict(zip(LIMITS, thirds(host, *lines), strict=True))
    assert read == {value: ["", "", f"{shown}\n"] for value, shown in LIMITS.items()}


def test_a_limit_that_is_nothing_or_no_number_removes_the_limit_without_a_word(host: GpuHost) -> None:
    lines = [(f"set_{LIMIT} 0 3M", f"set_{LIMIT} 0 {value}", f"get_{LIMIT} 0") for value in REMOVING]
    read = dict(zip(REMOVING, thirds(host, *lines), strict=True))
    assert read == dict.fromkeys(REMOVING, [""] * 3)


@pytest.mark.parametrize("device", ["GPU-00000000-0000-0000-0000-000000000000", "x", "", "0,1", "0G", "0=6M"])
def test_a_device_that_is_no_number_prints_nothing_and_takes_the_limit_of_device_0_away(
    host: GpuHost, device: str
) -> None:
    lines = (
        f"set_{LIMIT} 0 3M",
        f"get_{LIMIT} 0",
        f"set_{LIMIT} {device} 2G" if device else f"set_{LIMIT}",
        f"get_{LIMIT} 0",
    )
    assert host.say(*lines) == ["", "3M\n", "", ""]


@pytest.mark.parametrize(("device", "kept"), [("7", "6M\n"), ("31", "6M\n"), ("32", ""), ("-1", "")])
def test_32_devices_have_limits_of_their_own_whether_they_exist_or_not(host: GpuHost, device: str, kept: str) -> None:
    lines = f"set_{LIMIT} 0 3M", f"set_{LIMIT} {device} 6M", f"get_{LIMIT} {device}", f"get_{LIMIT} 0"
    assert host.say(*lines) == ["", "", kept, "3M\n"]


def test_a_limit_is_asked_of_device_0_where_no_other_is_named(host: GpuHost) -> None:
    assert host.say(f"set_{LIMIT} 0 3M", *(f"get_{LIMIT}{more}" for more in ("", " x", " GPU-0", " 0 1"))) == [
        "", *["3M\n"] * 4,
    ]  # fmt: skip


def test_a_percentage_is_echoed_as_it_is_read_with_one_decimal(host: GpuHost) -> None:
    lines = [(f"set_{PERCENTAGE} 20", f"set_{PERCENTAGE} {value}", f"get_{PERCENTAGE}") for value in PERCENTAGES]
    told = dict(zip(PERCENTAGES, thirds(host, *lines), strict=True))
    assert told == {value: ["20.0\n", f"{shown}\n", f"{shown}\n"] for value, shown in PERCENTAGES.items()}


def test_a_percentage_outside_its_range_changes_nothing_and_the_old_one_is_echoed(host: GpuHost) -> None:
    lines = [(f"set_{PERCENTAGE} 20", f"set_{PERCENTAGE} {value}", f"get_{PERCENTAGE}") for value in REFUSED]
    told = dict(zip(REFUSED, thirds(host, *lines), strict=True))
    assert told == dict.fromkeys(REFUSED, ["20.0\n"] * 3)


@pytest.mark.parametrize("before", ["0", "1"])
def test_a_priority_is_set_without_a_word_and_what_is_no_number_means_0(host: GpuHost, before: str) -> None:
    lines = [(f"set_{PRIORITY} {before}", f"set_{PRIORITY} {value}", f"get_{PRIORITY}") for value in PRIORITIES]
    told = dict(zip(PRIORITIES, thirds(host, *lines), strict=True))
    assert told == {value: ["", "", f"{shown}\n"] for value, shown in PRIORITIES.items()}


@pytest.mark.parametrize("before", ["0", "1"])
def test_another_priority_is_refused_with_a_word_and_changes_nothing(host: GpuHost, before: str) -> None:
    for value in "2", "-1", "10", "256":
        lines = f"set_{PRIORITY} {before}", f"set_{PRIORITY} {value}", f"get_{PRIORITY}"
        assert host.say(*lines) == ["", INVALID, f"{before}\n"]


def accepted(kind: str) -> list[int]:
    """What the table's texts of a kind mean, in MiB or percent, each once and in order."""
    rows = map(json.loads, TABLE.read_text("utf-8").splitlines())
    return sorted({row["verdict"] for row in rows if row["kind"] == kind and row["verdict"] is not None})


class Spoken(ControlProgram):
    """Keeps what our client says, and answers as if all were well, so that many lines make one run of the program."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.answers: Iterator[str] = iter(())

    def ask(self, command: str, deadline: object = None, moot: object = None) -> str:
        self.lines.append(command)
        return next(self.answers)


@pytest.mark.parametrize("mib", accepted("memory")[::12])
def test_our_client_sets_an_amount_that_people_may_write_and_reads_it_back(host: GpuHost, mib: int) -> None:
    DaemonCommands(cast("ControlProgram", host)).set_limit(mib)
    with pytest.raises(MpsError) as caught:
        DaemonCommands(cast("ControlProgram", host)).check_limit(mib + 1024)
    assert caught.value.reason is Reason.MPS_LIMIT_NOT_APPLIED


def test_every_amount_of_the_table_of_quantities_is_read_back_as_far_as_the_answer_allows(host: GpuHost) -> None:
    amounts = accepted("memory")
    spoken = Spoken()
    for mib in amounts:
        spoken.answers = iter(["", f"{mib}M" if mib < 1024 else f"{mib // 1024}G"])
        DaemonCommands(spoken).set_limit(mib)
    answers = host.say(*spoken.lines)
    assert len(answers) == 2 * len(amounts) >= 150
    for index, mib in enumerate(amounts):
        spoken.answers = iter(answers[2 * index : 2 * index + 2])
        DaemonCommands(spoken).set_limit(mib)


def test_every_percentage_of_the_table_of_quantities_is_read_back(host: GpuHost) -> None:
    percentages = accepted("percent")
    assert len(percentages) >= 10
    for percent in percentages:
        DaemonCommands(cast("ControlProgram", host)).set_percentage(percent)
        assert DaemonCommands(cast("ControlProgram", host)).percentage() == percent
