"""How GPUs are shared: who says it, and when it changes."""

import threading
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from enforcer.attribution.snapshot import GpuSnapshot
from enforcer.mps.supervisor import MpsSupervisor, takes_clients
from enforcer.quota.driver_upgrade import DriverUpgrade
from enforcer.quota.sharing_mode import SharingModes, mode_for, parse_mode
from enforcer.quota.sharing_mode_controller import SharingModeController
from enforcer.quota.types import Mode
from enforcer.resourceslices.availability import GpuAvailability
from gpushare.contract import NODE_MODE
from gpushare.errors import ConfigError
from gpushare.reasons import Reason
from tests.support.wiring import PreparedClaims, fixed_modes, label_modes, limits, sampler
from tests.unit.enforcer.made import GPU, OTHER_GPU
from tests.unit.enforcer.test_loop import card

INSTANCE = "MIG-00000000-0000-0000-0000-000000000003"


def labelled(value: str | None = None) -> dict[str, Any]:
    return {"metadata": {"labels": {} if value is None else {NODE_MODE: value}}}


@pytest.mark.parametrize("default", Mode)
def test_the_label_wins_over_the_operators_default(default: Mode) -> None:
    assert parse_mode(labelled(), default) is default
    assert parse_mode({"metadata": {}}, default) is default
    assert [parse_mode(labelled(str(mode)), default) for mode in Mode] == list(Mode)


@pytest.mark.parametrize("value", ["", "MPS", "mps ", "timeslicing", "time_slicing", "true", "x" * 1000])
def test_a_label_that_is_mistyped_is_an_error_that_says_what_there_is(value: str) -> None:
    with pytest.raises(
        ConfigError, match=r"gpu-share.io/mode: '.*is not a mode; write one of mps, time-slicing, mig"
    ) as error:
        parse_mode(labelled(value), Mode.MPS)
    assert len(error.value.message) < 300


def test_a_node_with_instances_shares_its_other_gpus_through_mps() -> None:
    assert [mode_for(GPU, mode) for mode in (*Mode, None)] == [Mode.MPS, Mode.TIME_SLICING, Mode.MPS, None]
    assert [mode_for(INSTANCE, mode) for mode in (*Mode, None)] == [None, None, Mode.MIG, None]


def test_a_gpu_in_use_is_shared_as_it_was_and_offers_nothing_new_in_another_way() -> None:
    ways = SharingModes(Mode.TIME_SLICING, {GPU: Mode.MPS, INSTANCE: Mode.MIG})
    assert [ways.of(gpu) for gpu in (GPU, OTHER_GPU, INSTANCE)] == [Mode.MPS, Mode.TIME_SLICING, Mode.MIG]
    assert (
        ways.objection(GPU)
        == "the sharing mode changes from mps to time-slicing when the last prepared claim on the GPU is unprepared"
    )
    assert (
        ways.objection(INSTANCE)
        == "the sharing mode changes from mig to not shared when the last prepared claim on the GPU is unprepared"
    )
    assert ways.objection(OTHER_GPU) is None
    assert SharingModes(Mode.MPS, {GPU: Mode.MPS}).objection(GPU) is None
    assert SharingModes(None, {}, "no such mode").objection(GPU) == "no such mode"
    assert SharingModes(None).objection(GPU) == "the enforcer does not know the sharing mode of the node yet"


def test_nothing_is_known_before_label_and_claims_were_read() -> None:
    claims = PreparedClaims()
    modes = SharingModeController(claims, Mode.MPS, threading.Event())
    assert (modes.of(GPU), modes.update_from_node(labelled()).of(GPU)) == (None, None), "claims may hold it in any way"
    claims.prepared = {}
    assert modes.of(GPU) is Mode.MPS
    unread = label_modes({GPU: Mode.TIME_SLICING})
    assert [unread.of(gpu) for gpu in (GPU, OTHER_GPU)] == [Mode.TIME_SLICING, None]


def test_a_mistyped_label_is_a_problem_and_shares_nothing_again() -> None:
    changed = threading.Event()
    modes = label_modes({GPU: Mode.MPS}, changed=changed)
    modes.update_from_node(labelled("mpss"))
    assert changed.is_set()
    changed.clear()
    for _ in range(3):
        ways = modes.update_from_node(labelled("mpss"))
        assert (ways.of(GPU), ways.of(OTHER_GPU)) == (Mode.MPS, None)
        assert ways.objection(GPU) == ways.objection(OTHER_GPU) == modes.problem
    assert not changed.is_set()
    assert (modes.update_from_node(labelled("mps")).of(OTHER_GPU), modes.problem) == (Mode.MPS, None)


def test_what_was_read_first_is_never_taken_after_what_was_read_later() -> None:
    """Two threads read the node. The API server answers the first one late, with the label as it was."""
    modes, answer = label_modes({}), threading.Event()
    reads = [labelled("mpss"), labelled("time-slicing")]

    def late() -> dict[str, Any]:
        node = reads.pop(0)
        answer.wait(5)
        return node

    first = threading.Thread(target=modes.read_node, args=(late,))
    first.start()
    second = threading.Thread(target=modes.read_node, args=(lambda: reads.pop(0),))
    second.start()
    second.join(0.2)
    answer.set()
    first.join()
    second.join()
    assert (reads, modes.of(GPU), modes.problem) == ([], Mode.TIME_SLICING, None)


def test_whoever_keeps_daemons_is_woken_by_a_change_alone() -> None:
    changed = threading.Event()
    modes = label_modes({}, changed=changed)
    for value, expected in ((None, True), (None, False), ("time-slicing", True), ("time-slicing", False), ("x", True)):
        changed.clear()
        modes.update_from_node(labelled(value))
        assert changed.is_set() is expected, value


def test_what_is_kept_stays_until_the_last_has_let_go() -> None:
    modes = label_modes({})
    modes.update_from_node(labelled())
    with modes.hold([GPU]) as first:
        modes.update_from_node(labelled("time-slicing"))
        with modes.hold([GPU, OTHER_GPU]) as second:
            assert (first, second) == ({GPU: Mode.MPS}, {GPU: Mode.MPS, OTHER_GPU: Mode.TIME_SLICING})
        assert modes.of(GPU) is Mode.MPS
    assert modes.of(GPU) is Mode.TIME_SLICING


def test_a_fixed_mode_heeds_no_label() -> None:
    modes = fixed_modes(Mode.TIME_SLICING)
    assert modes.update_from_node(labelled("mps")).of(GPU) is Mode.TIME_SLICING
    assert modes.update_from_node(labelled("nonsense")).objection(GPU) is None


def test_reasons_are_distinguished() -> None:
    with pytest.raises(ConfigError) as error:
        parse_mode(labelled("x"), Mode.MPS)
    assert error.value.reason is Reason.INVALID_VALUE


def serving(gpu: str | None) -> MpsSupervisor:
    """A keeper of daemons, of which that GPU's alone takes clients."""
    found: Any = SimpleNamespace(is_ready=lambda asked: asked == gpu)
    return cast("MpsSupervisor", found)


def test_a_pod_waits_for_a_daemon_only_where_its_gpu_is_shared_through_one() -> None:
    for mode in Mode:
        usable = partial(takes_clients, fixed_modes(mode), serving(None))
        assert [usable(gpu) for gpu in (GPU, INSTANCE)] == [mode is Mode.TIME_SLICING, mode is Mode.MIG], mode
    usable = partial(takes_clients, fixed_modes(), serving(GPU))
    assert [usable(gpu) for gpu in (GPU, OTHER_GPU)] == [True, False]
    assert takes_clients(label_modes(None), serving(GPU), GPU), "what served before the label was read"
    assert takes_clients(fixed_modes(), None, GPU), "nobody waits for a daemon where there are to be none"


def test_what_is_notified_of_the_gpus_says_how_each_is_shared() -> None:
    parent = card(OTHER_GPU, 1)._replace(mig_enabled=True)
    views = [
        GpuSnapshot(gpu=card(GPU, 0)),
        GpuSnapshot(gpu=parent),
        GpuSnapshot(gpu=card(INSTANCE, 2)._replace(parent=OTHER_GPU)),
    ]
    watch = sampler(lambda: views)
    found = GpuAvailability(None, None, fixed_modes(Mode.MIG), limits(), watch, DriverUpgrade()).cached()
    assert found.modes == {GPU: "mps", INSTANCE: "mig"}
    assert GpuAvailability(None, None, label_modes(None), limits(), watch, DriverUpgrade()).cached().modes == {}
