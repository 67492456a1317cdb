"""Whether a limit is in force: every state, what may never be reported, and how often something has to be seen."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.limits.backend import Backend
from enforcer.limits.environ_limits import EnvironLimit
from enforcer.limits.verification import BAD, Evidence, Process, VerificationHistory, debounce, verify_limit
from enforcer.quota.types import LimitStatus
from gpushare.reasons import Reason

QUOTA, CEILING = 4096, 4352
LIMITED = EnvironLimit(QUOTA)
STATES = (Reason.IN_FORCE, Reason.PER_PROCESS_ONLY, Reason.NOT_APPLIED, Reason.LIMIT_ESCAPED, Reason.UNKNOWN)


def client(pid: int = 1, **changes: Any) -> Process:
    values: dict[str, Any] = {"pid": pid, "used_mib": 1000, "environ": LIMITED, "client": True}
    return Process(**(values | changes))


def seen(*processes: Process, backend: Backend = Backend.MPS_V2, **changes: Any) -> Evidence:
    values: dict[str, Any] = {"quota_mib": QUOTA, "ceiling_mib": CEILING, "reserved_mib": QUOTA, "processes": processes}
    return Evidence(backend=backend, **(values | changes))


def by_cgroup(*processes: Process, **changes: Any) -> Evidence:
    return seen(*processes, backend=Backend.DRIVER_CGROUP, **({"applied_mib": QUOTA} | changes))


@pytest.mark.parametrize(
    ("evidence", "state", "words"),
    [
        (seen(client()), Reason.IN_FORCE, "4096 MiB"),
        (seen(client(environ=EnvironLimit(1000))), Reason.IN_FORCE, "or less"),
        (seen(client(7, environ=None)), Reason.UNKNOWN, "environment of a process"),
        (seen(client(1), client(2)), Reason.PER_PROCESS_ONLY, "2 processes"),
        (
            seen(client(), client(7, environ=EnvironLimit())),
            Reason.NOT_APPLIED,
            "process 7 started without the MPS limit in its environment",
        ),
        (
            seen(client(7, environ=EnvironLimit(QUOTA, "1"))),
            Reason.LIMIT_ESCAPED,
            "process 7 names a GPU that the process does not see",
        ),
        (seen(client(7, environ=EnvironLimit(9000))), Reason.LIMIT_ESCAPED, "with a limit of 9000 MiB, not 4096"),
        (seen(client(7, client=False)), Reason.LIMIT_ESCAPED, "process 7 holds GPU memory but is not an MPS client"),
        (seen(client(7, used_mib=CEILING + 1)), Reason.LIMIT_ESCAPED, "holds 4353 MiB, although its limit is 4096 MiB"),
        (
            seen(client(7, environ=EnvironLimit(5000), used_mib=4900), reserved_mib=5000),
            Reason.NOT_APPLIED,
            "limit of 5000 MiB and keeps",
        ),
        (seen(client(7, environ=EnvironLimit(5001)), reserved_mib=5000), Reason.LIMIT_ESCAPED, "with a limit of 5001"),
        (seen(client(client=None)), Reason.UNKNOWN, "cannot list the clients of the GPU's MPS daemon"),
        (seen(), Reason.UNKNOWN, "holds no GPU memory"),
        (seen(processes=None), Reason.UNKNOWN, "cannot read the GPU"),
        # A namespace's limit holds whatever a process says, except that it names a GPU it does not see.
        (by_cgroup(), Reason.IN_FORCE, "the NVIDIA driver limits the container's cgroup to 4096 MiB"),
        (by_cgroup(client(1), client(2, environ=EnvironLimit(), client=False)), Reason.IN_FORCE, "cgroup"),
        (by_cgroup(applied_mib=None), Reason.NOT_APPLIED, "no GPU memory limit is set"),
        (by_cgroup(applied_mib=9000), Reason.NOT_APPLIED, "9000 MiB, not 4096"),
        (by_cgroup(client(used_mib=3000), client(2, used_mib=3000)), Reason.LIMIT_ESCAPED, "6000 MiB"),
        (by_cgroup(unread="the driver is away"), Reason.UNKNOWN, "the driver is away"),
        (by_cgroup(processes=None), Reason.UNKNOWN, "cannot read the GPU"),
        (seen(client(), backend=Backend.WATCH_ONLY), Reason.NOT_APPLIED, "neither MPS nor the driver limits"),
        (seen(client(), backend=Backend.MIG_INSTANCE), Reason.IN_FORCE, "instance"),
        (seen(processes=None, backend=Backend.MIG_INSTANCE), Reason.UNKNOWN, "cannot read the GPU"),
    ],
)
def test_each_state_has_its_evidence(evidence: Evidence, state: Reason, words: str) -> None:
    found = verify_limit(evidence)
    assert (found.state, found.backend) == (state, str(evidence.backend))
    assert words in found.sentence


def test_several_processes_are_named_with_what_they_hold_the_largest_first() -> None:
    found = verify_limit(seen(*(client(pid, used_mib=100 * pid) for pid in range(1, 8))))
    assert found.sentence == (
        "MPS limits each process alone: each of the container's 7 processes (when verified: pid 7: 700 MiB, "
        "pid 6: 600 MiB, pid 5: 500 MiB, pid 4: 400 MiB, pid 3: 300 MiB, and 2 more) may hold 4096 MiB"
    )


TOLERATED = "; the enforcer tolerates up to 256 MiB more"


@pytest.mark.parametrize("evidence", [seen(client(used_mib=CEILING)), by_cgroup(client(used_mib=CEILING))])
def test_within_the_tolerance_a_limit_is_reported_to_be_in_force_and_how_much_that_is(evidence: Evidence) -> None:
    found = verify_limit(evidence)
    assert found.state is Reason.IN_FORCE
    assert found.sentence.endswith(f"{QUOTA} MiB{TOLERATED}") or found.sentence.endswith(
        f"{QUOTA} MiB or less{TOLERATED}"
    )


@pytest.mark.parametrize("evidence", [seen(client(), ceiling_mib=QUOTA), by_cgroup(client(), ceiling_mib=QUOTA)])
def test_where_nothing_is_tolerated_nothing_is_reported_of_it(evidence: Evidence) -> None:
    assert verify_limit(evidence).state is Reason.IN_FORCE
    assert "acted upon" not in verify_limit(evidence).sentence


TEXT = st.none() | st.builds(EnvironLimit, st.none() | st.integers(1, 9999), st.none() | st.just("1"))
PROCESSES = st.builds(
    Process, pid=st.integers(1, 9), used_mib=st.integers(0, 9999), environ=TEXT, client=st.none() | st.booleans()
)
EVIDENCE = st.builds(
    Evidence, backend=st.sampled_from(Backend), quota_mib=st.just(QUOTA), ceiling_mib=st.just(CEILING),
    reserved_mib=st.sampled_from([QUOTA, 6000]),
    processes=st.none() | st.lists(PROCESSES, max_size=4).map(tuple),
    applied_mib=st.none() | st.integers(1, 9999), unread=st.none() | st.just("away"),
)  # fmt: skip


@given(EVIDENCE)
def test_in_force_is_only_reported_where_nothing_speaks_against_it_and_the_back_end_speaks_for_it(
    found: Evidence,
) -> None:
    if verify_limit(found).state is not Reason.IN_FORCE:
        return
    assert found.processes is not None
    assert found.backend is not Backend.WATCH_ONLY
    if found.backend.by_mps:
        assert [each.client for each in found.processes] == [True]
        assert found.processes[0].used_mib <= CEILING
        assert found.processes[0].environ is not None
        assert found.processes[0].environ.unseen is None
    if found.backend is Backend.DRIVER_CGROUP:
        assert (found.applied_mib, found.unread) == (QUOTA, None)


@given(st.lists(PROCESSES, min_size=1, max_size=4).map(tuple), TEXT)
def test_an_environment_can_only_speak_against_a_limit(
    processes: tuple[Process, ...], text: EnvironLimit | None
) -> None:
    """Whatever a tenant writes into its environment, it gets no better a state than by saying its true limit."""
    order = (Reason.IN_FORCE, Reason.PER_PROCESS_ONLY, Reason.UNKNOWN, Reason.NOT_APPLIED, Reason.LIMIT_ESCAPED)
    first, *rest = processes
    honest = verify_limit(seen(_with(first, LIMITED), *rest)).state
    assert order.index(verify_limit(seen(_with(first, text), *rest)).state) >= order.index(honest)


def _with(process: Process, text: EnvironLimit | None) -> Process:
    return Process(pid=process.pid, used_mib=process.used_mib, environ=text, client=process.client)


def proven(state: Reason) -> LimitStatus:
    return LimitStatus(state=state, backend="mps-v2", sentence="")


def reported(*states: Reason, idle: bool = False) -> list[Reason | None]:
    known, found = VerificationHistory(), []
    for state in states:
        known = debounce(known, proven(state), idle=idle)
        found.append(None if known.reported is None else known.reported.state)
    return found


def test_well_is_reported_at_once() -> None:
    assert reported(Reason.IN_FORCE) == [Reason.IN_FORCE]
    assert reported(Reason.LIMIT_ESCAPED, Reason.LIMIT_ESCAPED, Reason.IN_FORCE)[-1] is Reason.IN_FORCE


@pytest.mark.parametrize("state", [*sorted(BAD), Reason.PER_PROCESS_ONLY])
def test_bad_is_reported_when_it_was_seen_twice_in_a_row(state: Reason) -> None:
    assert reported(Reason.IN_FORCE, state, state)[1:] == [Reason.IN_FORCE, state]
    assert reported(state, state) == [None, state]
    assert reported(Reason.IN_FORCE, state, Reason.IN_FORCE, state)[-1] is Reason.IN_FORCE


def test_two_different_doubts_are_not_one_seen_twice() -> None:
    assert reported(Reason.IN_FORCE, Reason.LIMIT_ESCAPED, Reason.NOT_APPLIED)[-1] is Reason.IN_FORCE


def test_one_silent_moment_makes_nothing_unknown_and_idleness_never_does() -> None:
    assert reported(Reason.IN_FORCE, Reason.UNKNOWN)[-1] is Reason.IN_FORCE
    assert reported(Reason.IN_FORCE, Reason.UNKNOWN, Reason.UNKNOWN)[-1] is Reason.UNKNOWN
    assert reported(Reason.IN_FORCE, Reason.UNKNOWN, Reason.UNKNOWN, idle=True)[-1] is Reason.IN_FORCE
    assert reported(Reason.UNKNOWN, Reason.UNKNOWN, idle=True) == [None, None]
    assert reported(Reason.LIMIT_ESCAPED, Reason.LIMIT_ESCAPED, Reason.UNKNOWN, idle=True)[-1] is None


@given(st.lists(st.sampled_from(STATES), min_size=1, max_size=12))
def test_nothing_bad_is_reported_that_was_not_seen_twice_in_a_row(states: list[Reason]) -> None:
    pairs = {first for first, second in pairwise(states) if first is second}
    assert {each for each in reported(*states) if each in BAD} <= pairs
