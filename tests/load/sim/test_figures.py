"""What the experiments say of cases that are plain, and that their tables and charts say the same each time."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from tests.load.sim import __main__ as program
from tests.load.sim import figures
from tests.load.sim.across import Across
from tests.load.sim.experiments import FLEETS, PACKED, POLICIES, Job, jobs
from tests.load.sim.fleet import Fleet
from tests.load.sim.order import Order
from tests.load.sim.play import Rules
from tests.load.sim.sizes import GIB, Part, Pod, apart
from tests.load.sim.tables import into, percent, table
from tests.load.sim.traces import SEEDS
from tests.support.pictures.chart import Axis, Line, chart

AT_ONCE = Rules(order=Order.SPREAD, every=0)
LATE = replace(AT_ONCE, every=10)


def test_a_packing_is_never_more_than_the_bound_and_that_of_the_mix_is_what_the_page_promises() -> None:
    for trace in ("uniform", "mix", "tiny"):
        one = figures.packing(2, trace, POLICIES[PACKED], SEEDS[0])
        assert 0.8 < one.of_best <= 1
        assert one.best_fit <= one.bound
    assert figures.packing(10, "mix", POLICIES[PACKED], SEEDS[0]).of_best >= 0.98


def test_a_small_case_lies_between_nothing_and_the_proven_best() -> None:
    for seed in SEEDS:
        one = figures.exact(3, "uniform", seed)
        assert one.most is not None
        assert 0 < one.placed <= one.most <= one.bound


def test_an_over_committed_fleet_gives_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "fit", lambda fleet, node, _: (fleet.gpus(node)[0],) * 2)
    pods = [Pod(0, apart(Part(60 * GIB), Part(60 * GIB)))]
    with pytest.raises(AssertionError, match=r"GPUs \[0\] were promised more"):
        figures.play(Fleet(nodes=1, per_node=2), AT_ONCE, 1, pods)


@pytest.mark.parametrize("seed", SEEDS)
def test_spread_stays_within_one_share_where_no_two_pods_come_between_two_looks(seed: int) -> None:
    assert figures.gap(AT_ONCE, seed, 10) <= 1
    assert figures.gap(LATE, seed, 0.1) <= 1
    assert figures.gap(LATE, seed, 10) > 2
    assert figures.gap(Rules(order=Order.BINPACK, every=0), seed, 0.1) > 2


def test_a_full_fleet_lets_large_pods_wait_longer_than_small_ones_and_nobody_waits_in_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "CHURN_NODES", 3)
    full, idle = (figures.churn("mix", POLICIES[PACKED], SEEDS[0], load) for load in (1.2, 0.3))
    small, *_, large = (figures.quantile(waits, 0.5) for waits in full.waits)
    assert small < 60 < large
    assert [max(waits, default=0) for waits in idle.waits] == [0, 0, 0, 0]
    assert (idle.packing, full.packing > 0.9) == (1, True)
    assert 0 < full.writes < 2


def test_what_binpack_leaves_free_is_of_more_use_than_what_spread_does() -> None:
    packed, spread = (figures.pieces(6, "mix", POLICIES[each], SEEDS[0]) for each in (PACKED, "spread, spread"))
    whole = figures.NEXT.index(80)
    assert packed.usable[whole] > 1.2 * spread.usable[whole]
    assert packed.fewest == spread.fewest <= packed.used < spread.used <= 48
    assert packed.lent < 0.05 < spread.lent < 0.3, "what is free in whole GPUs has no borrower"


def test_a_curve_follows_what_is_asked_for_until_the_fleet_is_full() -> None:
    points = figures.filling_curve(2, "mix", POLICIES[PACKED], SEEDS[0])
    assert [round(x) for x, _ in points[::12]] == [70, 100, 130, 160, 190]
    assert points[0][1] == pytest.approx(70, abs=6)
    assert [y for _, y in points] == sorted(y for _, y in points)
    assert 97 < points[-1][1] <= 100


def test_quantiles_are_nearest_ranks() -> None:
    assert [figures.quantile([1, 2, 3, 4], share) for share in (0, 0.5, 0.99, 1)] == [1, 3, 4, 4]
    assert figures.quantile([], 0.5) == 0


def test_percentages_are_rounded_down() -> None:
    assert [percent(each) for each in (0.9799, 0.98, 1.0)] == ["97.9 %", "98.0 %", "100.0 %"]


def test_a_table_goes_into_its_place_and_nowhere_else() -> None:
    page = "a\n<!-- one: python -m tests.load.sim --write -->\nold\n<!-- end of one -->\nb\n"
    made = into(page, {"one": table(("x", "y"), iter([("1", "2")]))})
    assert made == page.replace("old\n", "| x | y |\n| --- | --- |\n| 1 | 2 |\n")
    assert into(made, {"one": "old\n"}) == page
    with pytest.raises(ValueError, match="no place for the table 'two'"):
        into(page, {"two": ""})


def drawn() -> str:
    lines = [Line("<some>", [(0, 0), (5, 50)]), Line("more", [(0, 100), (20, 0)])]
    return chart("A & B", Axis("time, s", (0, 5, 10)), Axis("share, %", (0, 50, 100)), lines)


def test_a_chart_is_well_formed_named_and_the_same_each_time() -> None:
    svg = drawn()
    assert svg == drawn()
    words = [each.text for each in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert {"A & B", "time, s", "share, %", "<some>", "more", "10", "100"} <= set(words)
    assert "prefers-color-scheme:dark" in svg


def test_points_lie_where_the_axes_say_and_what_is_beyond_on_the_edge() -> None:
    first, second = re.findall(r'<polyline.*? points="([^"]*)"', drawn())
    assert first == "64.0,344.0 312.0,194.0"
    assert second == "64.0,44.0 560.0,344.0"


def test_more_lines_than_can_be_distinguished_are_refused() -> None:
    with pytest.raises(ValueError, match="6 lines in a chart"):
        chart("", Axis("", (0, 1)), Axis("", (0, 1)), [Line("", [])] * 6)


def test_every_policy_and_seed_is_played_on_ten_nodes_and_no_experiment_twice() -> None:
    keys = [job.key for job in jobs(max(FLEETS))]
    assert len(set(keys)) == len(keys)
    assert {key[1:4:2] + key[4:] for key in keys if key[0] == "packing" and key[1] == 10} == {
        (10, policy, seed) for policy in POLICIES for seed in SEEDS
    }
    assert {key[1] for key in keys if key[0] == "packing"} == set(FLEETS)
    assert {rules.across for rules in POLICIES.values()} == {Across.BINPACK, Across.NONE, Across.SPREAD}


def test_experiments_give_the_same_however_many_run_at_a_time() -> None:
    todo = [Job((seed,), figures.exact, (2, "mix", seed)) for seed in SEEDS]
    found = program.play(todo, 2)
    assert list(found) == [(seed,) for seed in SEEDS]
    assert found == dict(job.run() for job in todo)


def test_a_part_of_the_fleets_is_not_written() -> None:
    with pytest.raises(SystemExit, match="2"):
        program.parsed(["--write", "--nodes", "10"])


def test_the_page_has_every_chart_and_every_chart_is_on_the_page() -> None:
    named = set(re.findall(r"\(placement/([a-z]+\.svg)\)", program.PAGE.read_text()))
    assert named == {each.name for each in program.CHARTS.iterdir()}
    assert len(named) == 5
