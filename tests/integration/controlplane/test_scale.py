"""Bounded forms of ``python -m tests.load.scale``: placement in numbers, under harm and in churn, without timings."""

import pytest

from tests.integration.controlplane.bed import Bed
from tests.load.scale import chaos, churn, placing
from tests.load.scale.fleet import Arm, fleet
from tests.load.scale.loads import mixed, must_all_fit

pytestmark = pytest.mark.controlplane
SEED = 8


@pytest.mark.timeout(300)
def test_all_that_must_fit_on_fifty_nodes_is_placed(bed: Bed) -> None:
    before = [bed.metric(each, "gpu_share_admission_requests_total") for each in bed.replicas]
    sizes = mixed(SEED, 120)
    assert must_all_fit(sizes, 50 * placing.PER_NODE, placing.GPU_MIB)
    with fleet(bed, "large", 50, placing.MACHINE):
        placed = placing.place(bed, Arm.SHARES, "large", sizes, "large")
    assert placed.problems == ()
    after = [bed.metric(each, "gpu_share_admission_requests_total") for each in bed.replicas]
    work = [int(now - then) for now, then in zip(after, before, strict=True)]
    assert len(work) == 3, "three replicas"
    assert all(work), f"every replica answered: {work}"
    print(f"\n{placing.told(placed, 'bounded')}; reviews by replica {work}")


@pytest.mark.timeout(200)
def test_when_there_is_less_room_than_pods_the_rest_waits_and_is_notified(bed: Bed) -> None:
    with fleet(bed, "scarce", 2, placing.MACHINE):
        found = placing.overfill(bed, SEED, 60, "scarce", 2 * placing.PER_NODE)
    assert (found.left_although_room, found.not_said, found.problems) == ([], [], ())
    assert found.bound < found.pods
    assert found.fill > 0.9, "what is left waiting waits for want of room"


# Python 3.11 raises from ssl.SSLSocket._create without closing, where the peer resets before the handshake.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(400)
def test_what_fails_while_pods_come_and_go_leaves_nothing_behind(bed: Bed) -> None:
    with fleet(bed, "harmed", 10, placing.MACHINE):
        found = chaos.survive(bed, SEED, 60, "harmed", 10 * placing.PER_NODE, seconds=30, blocked=6)
    assert chaos.trivial(found) == []
    print(f"\ngiven twice by the scheduler, which lost an answer: {found.twice}")
    assert (found.stuck, found.leaked, found.of_dry_runs, found.problems) == ([], [], set(), ())


@pytest.mark.timeout(300)
def test_in_churn_nobody_with_room_is_left_behind(bed: Bed) -> None:
    course = churn.Course(rate=2, warm=10, seconds=20, life=(4, 10), seed=SEED)
    with fleet(bed, "busy", course.nodes(), placing.MACHINE):
        found = churn.churn(bed, course, "busy")
    assert found.problems == ()
    assert found.fill[2] > 0.4, "nobody waits on an empty fleet"
    assert len(found.bound) + len(found.open) + found.without_room >= 20
    print("", *map(str, churn.figures(found)), sep="\n")
