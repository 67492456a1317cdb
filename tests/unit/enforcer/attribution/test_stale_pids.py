"""NVML lists what a process left behind under the pid it had, and somebody else gets that pid."""

from dataclasses import dataclass, field

import pytest

from enforcer.attribution.cgroup import ContainerRef, Identity
from enforcer.attribution.usage import UsageSampler
from enforcer.detection.detector import evaluate
from enforcer.detection.types import Decision, DetectorConfig, DetectorState
from tests.support.wiring import Attribution
from tests.unit.enforcer.made import CONTAINER, GPU, POD, quota
from tests.unit.enforcer.test_loop import Reader

PID = 501


@dataclass
class Machine:
    reader: Reader = field(default_factory=lambda: Reader(used={GPU: {}}))
    starts: dict[int, int] = field(default_factory=dict)
    """Who has which pid: its start. All are in our container."""

    def __post_init__(self) -> None:
        self.watch = UsageSampler(self.reader, Attribution(self.identify))

    def identify(self, pid: int) -> Identity | None:
        start = self.starts.get(pid)
        return (
            None
            if start is None
            else Identity(pid=pid, start=start, owner=ContainerRef(POD, CONTAINER), cgroup_inode=7)
        )

    def used(self, listed: int | None, start: int | None) -> int | None:
        """MiB the container is charged with; ``None`` when blind. ``listed``: under the pid; ``start``: who has it."""
        self.reader.used[GPU] = {} if listed is None else {PID: listed}
        self.starts = {} if start is None else {PID: start}
        (view,) = self.watch.sample()
        reading = view.reading
        return None if reading is None else sum(each.used_mib for each in reading.get(CONTAINER, ()))


def test_who_gets_the_pid_of_one_that_ended_is_not_charged_with_what_that_one_left() -> None:
    machine = Machine()
    assert machine.used(9000, None) == 0
    assert [machine.used(9000, 77) for _ in range(3)] == [0, 0, 0]
    assert [each.used_mib for each in machine.watch.usages_of(quota()) or ()] == [0]


def test_nor_where_the_pid_changed_hands_between_two_looks() -> None:
    machine = Machine()
    assert machine.used(9000, 10) == 9000
    assert machine.used(9000, 77) == 0


def test_such_a_process_is_never_ended_however_long_it_lasts() -> None:
    machine, state, text = Machine(), DetectorState(), list[Decision]()
    machine.used(9000, None)
    for look in range(60):
        machine.used(9000, 77)
        (view,) = machine.watch.latest
        state, decisions = evaluate(state, (quota(),), {GPU: view.reading}, 1000 + look / 2, DetectorConfig())
        text += [decision.decision for decision in decisions]
    assert text == []


def test_what_it_takes_itself_it_is_charged_with() -> None:
    machine = Machine()
    machine.used(300, None)
    assert machine.used(9300, 77) == 9000
    assert machine.used(9300, 77) == 9000


def test_nobody_hides_behind_what_was_given_back() -> None:
    machine = Machine()
    machine.used(5000, None)
    assert machine.used(5000, 77) == 0
    assert machine.used(1000, 77) == 0
    assert machine.used(9000, 77) == 8000, "of what was left only 1000 were there still"


def test_once_it_is_off_the_list_the_pid_is_like_any_other() -> None:
    machine = Machine()
    machine.used(9000, None)
    assert machine.used(None, None) == 0
    assert machine.used(9000, 77) == 9000


def test_one_after_the_other_leaves_what_is_listed_then() -> None:
    machine = Machine()
    machine.used(3000, None)
    assert machine.used(8000, 77) == 5000
    machine.used(8000, None)
    assert machine.used(8000, 99) == 0


@pytest.mark.parametrize("start", [None, 77])
def test_blindness_does_not_make_it_somebody_elses(start: int | None) -> None:
    machine = Machine()
    machine.used(9000, None)
    machine.used(9000, start)
    machine.reader.broken = {GPU}
    assert machine.used(9000, 77) is None
    machine.reader.broken = set()
    assert machine.used(9000, 77) == 0


def test_who_has_the_pid_after_a_time_in_which_nobody_looked_is_charged_with_it() -> None:
    machine = Machine()
    machine.used(9000, 10)
    machine.reader.broken = {GPU}
    machine.used(9000, 77)
    machine.reader.broken = set()
    assert machine.used(9000, 77) == 9000, "minutes may have passed, and the first one's memory with them"
