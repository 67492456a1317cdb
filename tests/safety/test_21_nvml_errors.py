"""Test 21: everything that NVML's calls can answer, hang over or die of. Nobody is killed by blind eyes.

Through the real nvidia-ml-py in the enforcer's own child process, over a library that is scripted.
"""

import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from enforcer.detection.nvml_outage import Transition
from enforcer.nvml.validation import ERRORS
from gpushare.reasons import Reason
from tests.fakes.gpu.build import BUILT
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.state import Fault
from tests.safety.seeing import PATIENT, Bed, Look, bed
from tests.support import extent

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]
COMPUTE, GRAPHICS, MPS = (f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute"))
TOTALS: Final = "nvmlDeviceGetMemoryInfo_v2"
EACH_LOOK: Final = (TOTALS, COMPUTE, GRAPHICS, MPS)
AFRESH: Final = (
    "nvmlInitWithFlags", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID",
)  # fmt: skip
"""Calls made after the library was let go of: another failure comes before them."""
OPENER: Final = Fault(call=TOTALS, error=999, times=1)
FOREVER: Final = 0
LASTS: Final = 6
LOST: Final = {15, 16}
HANDLED: Final = {
    **{(call, code): (1, 3, FOREVER) for call in (COMPUTE, GRAPHICS, MPS) for code in (13,)},
    **{(TOTALS, code): (1, 3, FOREVER) for code in (3, 13)},
    **{(call, 7): (1, 3) for call in (COMPUTE, GRAPHICS, MPS)},
    **{
        (call, code): (1, 3, FOREVER)
        for call in ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID")
        for code in LOST
    },
}
"""What costs nobody his sight: older names, a list read again, a lost card that is as it was."""


@pytest.fixture(name="made")
def _made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    with bed(tmp_path, need_library(), monkeypatch) as found:
        yield found


def is_sound(made: Bed, look: Look) -> bool:
    """Nobody is killed by blind eyes, and what is seen is so."""
    return not look.kills if look.seen is None else look.seen == made.truth


def tell(what: str, looks: list[Look]) -> None:
    blind = [look.kills for look in looks if look.seen is None]
    extent.figure("21", what, f"{sum(blind)} in {len(blind)}")


def sees_again(made: Bed, looks: list[Look]) -> None:
    """The first look after the fault sees, and the victim's end comes no later."""
    made.sim.fail()
    last = made.look()
    assert last.seen == made.truth
    assert [look.kills for look in (*looks, last)].count(True) == 1


def cell(made: Bed, call: str, code: int, times: int) -> int:
    """Try one of them; returns the looks that were blind."""
    made.begin()
    fault = Fault(call=call, error=code, times=times or None)
    made.sim.fail(*([OPENER, fault] if call in AFRESH else [fault]))
    looks = [made.look() for _ in range(LASTS if times == FOREVER else times + 1)]
    assert all(is_sound(made, look) for look in looks)
    own = [error for _, error in made.reader.failures if "999" not in error.message or code == 999]
    failed = len(made.reader.failures) - (call in AFRESH)
    assert (failed == 0) == (times in HANDLED.get((call, code), ())), (call, code, times, made.reader.failures)
    assert {error.reason for error in own} <= {ERRORS[code][0], ERRORS[999][0], Reason.IMPLAUSIBLE_SAMPLE}
    blind = sum(look.seen is None for look in looks)
    if blind == LASTS:
        [told] = [change for look in looks for change in look.changes if change.transition is Transition.STAYS_LOST]
        assert told.outage.reason is ERRORS[code][0]
    sees_again(made, looks)
    return blind


def test_31_errors_of_10_calls_once_three_times_and_forever(made: Bed) -> None:
    cells = list(product((*EACH_LOOK, *AFRESH), ERRORS))
    assert len(cells) == 310
    tried, blind = 0, Counter[str]()
    for _, (call, code), times in product(range(extent.trials(1, 20)), cells, (1, 3, FOREVER)):
        blind[call] += cell(made, call, code, times)
        tried += 1
    assert all(blind[call] > 0 for call in EACH_LOOK)
    extent.figure(
        "21",
        "kills while NVML is unavailable, over 31 errors x 10 calls (once, three times, forever)",
        f"0 in {tried} cells",
    )
    extent.figure("21", "NVML readable again with the first sample after the error ends", f"{tried} of {tried}")


@pytest.mark.parametrize("call", [COMPUTE, "nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID"])
@pytest.mark.parametrize(("seconds", "deadlines"), [(1, 0.5), (10, 5), (60, 30)])
def test_a_driver_that_hangs_stops_no_look_and_is_heard_when_it_wakes(
    made: Bed, call: str, seconds: int, deadlines: float
) -> None:
    made.begin()
    fault = Fault(call=call, hold=1)
    made.sim.fail(*([OPENER, fault] if call in AFRESH else [fault]))
    # One fortieth of the product's 2 s until a caller is told, and 60 s until a silent process is killed.
    made.reader._waits = replace(PATIENT, deadline=0.05, patience=1.5)
    first, end = made.reader._kept, time.monotonic() + 0.05 * deadlines
    looks, took = list[Look](), list[float]()
    while len(looks) <= deadlines or time.monotonic() < end:
        begun = time.monotonic()
        looks.append(made.look())
        took.append(time.monotonic() - begun)
    assert all(is_sound(made, look) for look in looks)
    if seconds > 1:
        assert {error.reason for _, error in made.reader.failures} <= {Reason.NVML_HUNG, Reason.NVML_UNAVAILABLE}
        assert Reason.NVML_HUNG in {error.reason for _, error in made.reader.failures}
        assert sorted(took)[len(took) // 2] < 0.05, "most looks waited for as long as the deadline, or longer"
    if seconds == 60:
        assert made.reader._kept is not first
    made.reader._waits = PATIENT
    sees_again(made, looks)
    tell(f"driver that hangs for {seconds} s (scaled): kills in samples without NVML, {call}", looks)


def test_the_process_that_hangs_ends_with_the_enforcer_all_the_same(made: Bed) -> None:
    made.begin()
    made.sim.fail(Fault(call=COMPUTE, hold=1))
    made.reader._waits = replace(PATIENT, deadline=0.1)
    kept = made.reader._kept
    assert made.look().seen is None
    assert kept is not None
    kept._socket.shutdown(socket.SHUT_RDWR)  # as when the enforcer is killed
    assert kept._process.wait(60) == 0


@pytest.mark.parametrize("call", [TOTALS, COMPUTE, "nvmlInitWithFlags"])
@pytest.mark.parametrize("times", [1, 3, 12])
def test_a_library_that_crashes_takes_its_own_process_and_nothing_else(made: Bed, call: str, times: int) -> None:
    made.begin()
    made.reader._crashes.clear()
    if call in AFRESH:
        made.reader.close()
    made.sim.fail(Fault(call=call, signal=11))
    looks = [made.look() for _ in range(times)]
    assert all(look.seen is None and not look.kills for look in looks)
    assert {error.reason for _, error in made.reader.failures} == {Reason.NVML_CRASHED}
    if times > 3:  # the enforcer waits for a moment before it starts the next process, so often in a minute
        made.sim.fail()
        while (look := made.look()).seen is None:
            looks.append(look)
        assert (look.seen, look.kills) == (made.truth, True)
    else:
        sees_again(made, looks)
    tell(f"library that crashes {times} times: kills in samples without NVML, {call}", looks)


def test_a_count_that_lies_and_a_list_that_never_fits_are_no_list(made: Bed) -> None:
    for fault in (Fault(lie=COMPUTE, more=9), Fault(lie=MPS, more=1), Fault(call=COMPUTE, error=7)):
        made.begin()
        made.sim.fail(fault)
        looks = [made.look() for _ in range(LASTS)]
        assert all(look.seen is None and not look.kills for look in looks)
        sees_again(made, looks)


def without(folder: Path, *symbols: str) -> Path:
    """A library in which these functions cannot be found."""
    [name] = [each for each in BUILT if "nvidia-ml" in each]
    data = (need_library() / name).read_bytes()
    for symbol in symbols:
        assert data.count(symbol.encode() + b"\0") >= 1
        data = data.replace(symbol.encode() + b"\0", symbol.encode()[:-1] + b"?\0")
    folder.mkdir()
    (folder / name).write_bytes(data)
    return folder


def names(name: str) -> tuple[str, str]:
    return name, name.replace("_v3", "_v2")


@pytest.mark.parametrize(
    ("symbols", "reads"),
    [((COMPUTE,), True), (names(MPS), True), (names(GRAPHICS), True), ((TOTALS,), True), (names(COMPUTE), False),
     (("nvmlInitWithFlags",), False), (("nvmlDeviceGetHandleByUUID",), False)],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_library_that_lacks_a_function_is_read_without_it_or_not_at_all(
    made: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, symbols: tuple[str, ...], *, reads: bool
) -> None:
    made.begin()
    made.reader.close()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(without(tmp_path / "poor", *symbols)))
    looks = [made.look() for _ in range(LASTS)]
    assert [look.seen for look in looks] == [made.truth if reads else None] * LASTS
    assert any(look.kills for look in looks) is reads
    if not reads:
        assert {error.reason for _, error in made.reader.failures} == {Reason.DRIVER_MISMATCH}
    made.reader.close()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(need_library()))
    sees_again(made, looks)
