"""What experiments conclude from what they measured: every verdict from figures alone, without a machine."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Sim
from tests.gpu.experiments import (
    bench_copies,
    bench_frameworks,
    bench_models,
    borrow,
    compute,
    h4,
    h5,
    h6,
    h7,
    h9,
    h11,
    h12,
    h13,
    h15,
)
from tests.gpu.experiments.figures import loss_percent, noise_percent, percentile, ratio, spread
from tests.gpu.experiments.loops import Loop, settle, turn, wrong
from tests.gpu.kit.client import ClientGoneError, ClientTimeoutError
from tests.gpu.kit.result import NotMeasurable, Result, Verdict

HOLDS, FAILS, NOT_MEASURED = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_MEASURED


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3.0], 99, 3.0), ([1.0, 2.0, 3.0, 4.0], 50, 2.0), ([1.0, 2.0, 3.0, 4.0], 99, 4.0), ([5.0, 1.0], 0, 1.0)],
)
def test_a_percentile_is_always_a_value_that_was_measured(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == expected


def test_spreads_ratios_and_losses() -> None:
    assert spread([]) == {"n": 0}
    assert spread([1.0, 3.0, 2.0]) == {"n": 3, "p50": 2.0, "p99": 3.0, "max": 3.0}
    assert ratio(1, 0) == 0
    assert loss_percent([100, 100], [99, 99]) == 1.0
    assert loss_percent([0.0], [1.0]) == 0
    assert noise_percent([100.0]) == 0
    assert noise_percent([100.0, 101.0, 100.0]) == 1.0


class Played:
    """A client that answers what it is told to, and then is gone."""

    pid = 1

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)

    def ask(self, command: str, timeout: float) -> object:
        answer = self._answers.pop(0) if self._answers else ClientGoneError(command, -9, "")
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"ok": True, "ms": 2.0}, None),
        ({"ok": False, "wrong": 3, "ms": 2.0}, "a wrong result"),
        ({"error": 719, "name": "CUDA_ERROR_LAUNCH_FAILED"}, "CUDA_ERROR_LAUNCH_FAILED (719)"),
        (ClientTimeoutError("late"), "no answer within 1 s (-1)"),
    ],
)
def test_whatever_becomes_of_a_client_is_an_answer(answer: object, said: str | None) -> None:
    assert turn(Played(answer), "gemm 8 1", 1.0).wrong == said  # type: ignore[arg-type]


def test_a_loop_ends_with_the_first_thing_that_is_wrong() -> None:
    loop = Loop(Played({"ok": True, "ms": 1.0}, {"ok": True, "ms": 1.0}), "gemm 8 1").start()  # type: ignore[arg-type]
    assert not settle([loop], 5.0, 3)
    assert [each.wrong is None for each in loop.stop()] == [True, True, False]
    assert not loop.right_since(0.0)
    assert wrong({"id": 1}) is None


def kill(way: str, **changes: object) -> h4.Trial:
    values = {"hurt": [], "servers": {"7": "ACTIVE"}, "same_server": True, "gone_s": 0.1, "recovery_s": 0.5}
    return h4.Trial(way=way, **(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trials", "able", "verdict", "said"),
    [
        ([kill(h4.SIGKILL), kill(h4.LADDER)], True, HOLDS, "1 of 1 harmless; SIGKILL alone: 0 of 1 did harm"),
        ([kill(h4.SIGKILL, hurt=["hung"]), kill(h4.LADDER)], True, HOLDS, "SIGKILL alone: 1 of 1 did harm"),
        ([kill(h4.LADDER, hurt=["hung"])], True, FAILS, "1 of 1 ladders did harm: 1 neighbours hurt, such as hung"),
        ([kill(h4.LADDER, servers={"7": "FAULT"})], True, FAILS, "FAULT"),
        ([kill(h4.LADDER, same_server=False)], True, FAILS, "another server"),
        ([kill(h4.LADDER, ended=False)], True, FAILS, "the victim did not end"),
        ([kill(h4.LADDER, recovery_s=None)], True, FAILS, "1 of 1"),
        ([kill(h4.LADDER)], False, FAILS, "could not be brought to compute again"),
    ],
)
def test_h4_evaluates_the_ladder_and_shows_sigkill_beside_it(
    trials: list[h4.Trial], *, able: bool, verdict: Verdict, said: str
) -> None:
    found = h4.judge_trials(trials, {}, able=able)
    assert (found.verdict, said in found.reason) == (verdict, True), found.reason


def test_h4_without_a_single_ladder_says_nothing() -> None:
    with pytest.raises(NotMeasurable):
        h4.judge_trials([kill(h4.SIGKILL)], {})
    assert h4.about([kill(h4.LADDER, hurt=["hung", "hung"])])["neighbours_hurt"] == {"hung": 2}


def excess(exposed: float | None, **changes: object) -> h5.Trial:
    return h5.Trial(**({"poll": 0.5, "exposed_s": exposed, "overshoot_mib": 9000} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("trials", "verifies", "verdict"),
    [
        ([excess(0.9), excess(9.0, poll=1.0)], True, HOLDS),
        ([excess(1.1)], True, FAILS),
        ([excess(0.3), excess(0.4), *[excess(0.8)] * 3], True, FAILS),
        ([excess(0.9), excess(0.8), *[excess(0.4)] * 3], True, HOLDS),
        ([excess(None)], True, FAILS),
        ([excess(0.9)], False, FAILS),
    ],
)
def test_h5_evaluates_the_poll_its_target_is_set_for(
    trials: list[h5.Trial], *, verifies: bool, verdict: Verdict
) -> None:
    assert h5.judge_figures(_polls(trials) | {"audit_log_verifies": verifies}).verdict is verdict


def _polls(trials: list[h5.Trial]) -> dict[str, object]:
    return {"poll 0.5 s": h5.about([each for each in trials if each.poll == 0.5])}


def test_h5_where_nobody_got_over_says_nothing() -> None:
    with pytest.raises(NotMeasurable):
        h5.judge_figures(_polls([excess(None, overshoot_mib=0)]) | {"audit_log_verifies": True})
    assert h5.between(2.0, 1.9) == 0
    assert h5.between(None, 1.9) is None


def loans(**changes: object) -> dict[str, object]:
    return {
        "borrowed_mib": 61_440, "least_spare_mib": 1900, "reclaimed": True, "second_ended": False, "second_refused": "",
        "audit_log_verifies": True,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, HOLDS),
        ({"second_refused": "CUDA_ERROR_OUT_OF_MEMORY (2)"}, FAILS),
        ({"second_ended": True}, FAILS),
        ({"reclaimed": False}, FAILS),
        ({"audit_log_verifies": False}, FAILS),
    ],
)
def test_borrow_evaluates_who_pays(changes: dict[str, object], verdict: Verdict) -> None:
    assert borrow.judge_figures(loans(**changes)).verdict is verdict


def test_borrow_without_a_loan_says_nothing() -> None:
    with pytest.raises(NotMeasurable):
        borrow.judge_figures(loans(borrowed_mib=0))


def episode(**changes: object) -> dict[str, object]:
    return {
        "culprit": "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "neighbours": ["hurt", "hurt"], "bystander": "unhurt",
        "newcomer_afterwards": "served", "served_again_s": 0.4, "ended_by_enforcer": 0,
        "cleared_with_culprit_lingering_s": None,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, HOLDS),
        ({"bystander": "CUDA_ERROR_LAUNCH_FAILED (719)"}, FAILS),
        ({"newcomer_afterwards": "CUDA_ERROR_MPS_SERVER_NOT_READY (807)"}, FAILS),
        ({"served_again_s": 30.0}, FAILS),
        ({"ended_by_enforcer": 1}, FAILS),
        ({"neighbours": ["unhurt", "hurt"]}, FAILS),
    ],
)
def test_h6_evaluates_the_vendors_promise(changes: dict[str, object], verdict: Verdict) -> None:
    found = h6.judge_episodes(h6.Plan(), episode(**changes), episode())
    assert found.verdict is verdict
    if verdict is HOLDS:
        assert "still in FAULT after 5 s" in found.reason


def test_h6_without_a_fault_says_nothing() -> None:
    with pytest.raises(NotMeasurable):
        h6.judge_episodes(h6.Plan(), episode(culprit="no error"), episode())


def test_h7_evaluates_the_eager_server() -> None:
    late = [{"plain": "the card", "served_again_s": 1.0}]
    assert h7.judge_trials(late, ["busy (46)"], "served", {}).verdict is HOLDS
    assert h7.judge_trials(late, ["busy (46)", "the card"], "served", {}).verdict is FAILS
    assert h7.judge_trials(late, ["busy (46)"], "refused", {}).verdict is FAILS


def looking(without: list[float], along: float) -> Result:
    turns = [h9.Turn(load="x", rate=0.0, per_second=each, p99_ms=1.0) for each in without]
    return h9.judge_turns(h9.Plan(), [*turns, *[h9.Turn(load="x", rate=200.0, per_second=along, p99_ms=1.0)] * 2,
                                      h9.Turn(load="x", rate=50.0, per_second=along, p99_ms=1.0)], {})  # fmt: skip


def test_h9_scales_the_cost_of_many_reads_down_to_ours() -> None:
    found = looking([100.0, 101.0, 100.0], 98.0)
    assert found.verdict is HOLDS
    assert found.figures["at_most_percent"] == {"every 0.5 s": 0.03, "every 80 ms": 0.1875}
    assert looking([100.0, 100.1], 90.0).verdict is FAILS
    assert looking([100.0, 120.0], 104.0).verdict is NOT_MEASURED


def percentages(**changes: object) -> dict[str, object]:
    alone = {"100": 1.02, "75": 0.81, "50": 0.65, "25": 0.345, "10": 0.13, "5": 0.07}
    pairs = {"50 beside 25": [0.6, 0.3], "75 beside 25": [0.7, 0.25], "25 beside three without": [0.15, 0.27, 0.27]}
    return {"alone_of_plain": alone, "pairs": pairs} | changes


def test_compute_wants_percentages_that_bind() -> None:
    assert compute.judge_compute(percentages()).verdict is HOLDS
    assert compute.judge_compute(percentages(alone_of_plain={"100": 1.0, "50": 0.9})).verdict is FAILS
    assert compute.judge_compute(percentages(alone_of_plain={"100": 0.4, "50": 0.5})).verdict is FAILS
    even = {"50 beside 25": [0.3, 0.3], "75 beside 25": [0.7, 0.2], "25 beside three without": [0.2, 0.2]}
    assert compute.judge_compute(percentages(pairs=even)).verdict is FAILS


def test_priority_fails_where_it_has_an_effect() -> None:
    assert compute.judge_priority({"large kernels": [2506, 2504], "small kernels": [10, 11]}).verdict is HOLDS
    assert compute.judge_priority({"large kernels": [2506, 2504], "small kernels": [30, 11]}).verdict is FAILS


def test_context_is_lowered_to_what_a_share_keeps() -> None:
    rows = {"100": {"sms": 132, "context_mib": 516}, "50": {"sms": 66, "context_mib": 300}}
    assert compute.judge_context(rows).verdict is HOLDS
    assert compute.judge_context(rows | {"50": {"sms": 66, "context_mib": 600}}).verdict is FAILS
    assert compute.judge_context(rows | {"100": {"sms": 132, "context_mib": 900}}).verdict is FAILS


def test_h11_evaluates_both_processes_together() -> None:
    plan, said = h11.Plan(), {"soft_mib": 0, "hard_mib": 4096, "used_mib": 4000}
    both = [{"meminfo": {"total_mib": 1}, "fill": {"mib": mib}} for mib in (3000, 900)]
    beyond: dict[str, tuple[int, str | None]] = {"managed": (6144, None), "hidden": (3072, "error 2")}
    held = h11.judge_limit(plan, both, said, beyond)
    assert held.verdict is HOLDS
    assert "6144 MiB of managed memory, and 3072 MiB behind descriptors" in held.reason
    assert (held.figures["hidden_mib"], held.figures["hidden_ended_by"]) == (3072, "error 2")
    assert h11.judge_limit(plan, [both[0], both[0]], said, beyond).verdict is FAILS
    assert h11.judge_limit(plan, both, said | {"hard_mib": 1}, beyond).verdict is FAILS


def test_h12_believes_silence_only_where_a_fault_was_heard() -> None:
    assert h12.judge_xids({"SIGKILL": [], "ladder": [43], "fault": [31]}, "x", 5).verdict is HOLDS
    assert h12.judge_xids({"SIGKILL": [], "ladder": [79], "fault": []}, "x", 5).verdict is FAILS
    with pytest.raises(NotMeasurable):
        h12.judge_xids({"SIGKILL": [], "ladder": [], "fault": []}, "x", 5)


def soak(servers: dict[str, str] | None = None, *, verified: bool = True, **changes: object) -> Verdict:
    tally = h13.Tally(**({"steps": 9, "over": {7}, "ended_s": [1.0]} | changes))  # type: ignore[arg-type]
    return h13.judge_soak(tally, 1, servers or {"5": "ACTIVE"}, verified=verified, attribution="control groups").verdict


def test_h13_wants_every_invariant() -> None:
    assert soak() is HOLDS
    assert soak(wrong=["pid 3 was ended within its quota"]) is FAILS
    assert soak(late=[7]) is FAILS
    assert soak({"5": "FAULT"}) is FAILS
    assert soak(verified=False) is FAILS
    with pytest.raises(NotMeasurable):
        soak(over=set())


def copies(way: str, per_second: float, count: int = 7) -> bench_copies.Run:
    return bench_copies.Run(way=way, copies=count, per_second=per_second, median_ms=1.0, p99_ms=2.0)


def test_copies_are_compared_at_the_largest_number() -> None:
    ways = (bench_copies.SLICED, bench_copies.MEMORY, bench_copies.BOTH)
    one = [copies(way, 100.0, 1) for way in ways]
    seven = [copies(way, each) for way, each in zip(ways, (100.0, 214.0, 190.0), strict=True)]
    found = bench_copies.judge_runs([*one, *seven])
    assert found.verdict is HOLDS
    assert found.figures["gain_over_time_slicing"]["7"] == {bench_copies.MEMORY: 2.14, bench_copies.BOTH: 1.9}
    assert bench_copies.judge_runs([*one, *(copies(way, 100.0) for way in ways)]).verdict is FAILS
    assert bench_copies.judge_runs([one[0]], "no MPS programs").verdict is NOT_MEASURED


def test_frameworks_have_to_start_and_to_be_refused_within_the_limit() -> None:
    fine = {"refused": "OutOfMemoryError", "at_most_mib": 8156, "works_after": True}
    asks = {"free_mib": 3485, "wanted_mib": 3327, "starts": True}
    rows = {"PyTorch, 8192 MiB": fine, "PyTorch, as vLLM asks, 4096 MiB": asks}
    assert bench_frameworks.judge_frameworks(rows).verdict is HOLDS
    for name, row in (
        ("PyTorch, 8192 MiB", fine | {"at_most_mib": 9000}), ("PyTorch, 8192 MiB", fine | {"refused": None}),
        ("PyTorch, as vLLM asks, 4096 MiB", asks | {"starts": False}), ("JAX, 4096 MiB", {"error": "status -6"}),
    ):  # fmt: skip
        assert bench_frameworks.judge_frameworks(rows | {name: row}).verdict is FAILS
    with pytest.raises(NotMeasurable):
        bench_frameworks.judge_frameworks({})


def test_frameworks_get_the_variables_of_a_share_of_the_gpu_that_is_measured(tmp_path: Path) -> None:
    sim = Sim.create(tmp_path, "h100x4")
    uuid = sim.machine.gpus[0].uuid
    backend = SimpleNamespace(gpu=uuid, reader=lambda: SimReader(sim))
    found = bench_frameworks.variables(backend, 8192)
    assert (found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], found["GPU_SHARE_USABLE_MIB"]) == ("0=8192M", str(8192 - 769))
    assert found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == found["GPU_SHARE_MEMORY_FRACTION"]


def many(way: str, count: int, *milliseconds: float, **changes: int) -> bench_models.Run:
    return bench_models.Run(way=way, models=count, requests=milliseconds, **({"served": count, "hurt": 0} | changes))


def test_models_are_evaluated_at_the_number_that_loads_the_gpu() -> None:
    def verdict(*runs: bench_models.Run, no_mps: str = "") -> Verdict:
        return bench_models.judge_runs(bench_models.Plan(), list(runs), no_mps).verdict

    slow, full = many(bench_models.SLICED, 30, 900.0), many("MPS", 50, 900.0, served=48)
    assert verdict(many("MPS", 12, 700.0), many("MPS", 30, 20.0, 30.0), full, slow) is HOLDS
    assert verdict(many("MPS", 30, 20.0, 501.0)) is FAILS
    assert verdict(many("MPS", 30, 20.0), many("MPS", 50, 20.0, served=47)) is FAILS
    assert verdict(many("MPS", 30, 20.0, hurt=1)) is FAILS
    assert verdict(many("MPS", 30)) is FAILS
    assert verdict(slow, no_mps="no MPS programs") is NOT_MEASURED


def sight(**changes: object) -> h15.Sight:
    values: dict[str, object] = {
        "total_mib": 15872, "context_mib": 300, "context": (15572, 15872), "allocated": (14548, 15872),
        "neighbour": (12200, 15872), "ended": (14548, 15872),
    }  # fmt: skip
    return h15.Sight(**(values | changes))  # type: ignore[arg-type] # values of one mapping


PINNED = {"context": (3796, 15872), "allocated": (2772, 15872), "neighbour": (2772, 15872), "ended": (2772, 15872)}
IN_CGROUP = {"total_mib": 4096} | {moment: (free, 4096) for moment, (free, _) in PINNED.items()}


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        (h15.PLAIN, {}, None),
        (h15.PLAIN, {"neighbour": (14548, 15872)}, "no limit: a neighbour with 2048 MiB made free fall by 0 MiB only"),
        (h15.PLAIN, {"allocated": (15572, 15872)}, "1024 MiB allocated made free fall by 0 MiB"),
        (h15.PLAIN, {"ended": (12200, 15872)}, "no limit: free is -2348 MiB off when the neighbour has gone"),
        (h15.PINNED, PINNED, None),
        (h15.PINNED, PINNED | {"context": (3796, 4096)}, "pinned limit: total is 15872 and 4096 MiB, not 15872"),
        (h15.PINNED, {}, "pinned limit: 15572 MiB are free under a limit of 4096"),
        (h15.PINNED, PINNED | {"neighbour": (724, 15872)}, "made free fall by 2048 MiB"),
        (h15.CGROUP, IN_CGROUP, None),
        (h15.CGROUP, PINNED, "cgroup limit: total is 15872 and 15872 MiB, not 4096"),
    ],
)
def test_h15_compares_what_is_seen_at_each_moment(kind: str, changes: dict[str, object], said: str | None) -> None:
    found = h15.problems({h15.PLAIN: sight(), kind: sight(**changes)})
    assert any(said in each for each in found) if said else found == [], found


def test_h15_asks_the_installed_pytorch_whether_it_takes_the_key() -> None:
    taken = h15.torch_says((sys.executable, "-c", "print('2.99.0', 0.5)"))
    assert (taken["release"], taken["takes the key"]) == ("2.99.0", True)
    for code in ("print('2.8.0', 1.0)", "raise SystemExit('Unrecognized key')"):
        assert h15.torch_says((sys.executable, "-c", code))["takes the key"] is False
