"""Two runners at once: at whatever moment the second one cuts in, both end well and nobody is turned away."""

import pytest

from certs.rotation_plan import Step
from tests.unit.certs.world import World, handshake

MOMENTS = 30


def cut_in(world: World, moment: int) -> None:
    """Let another rotator run whole before the n-th operation of the first."""
    seen = 0

    def before(_: str) -> None:
        nonlocal seen
        seen += 1
        if seen == moment:
            world.rotator().reconcile()

    world.authority.before = world.serving.before = before


@pytest.mark.parametrize("moment", range(1, MOMENTS))
def test_first_runs_may_cross(moment: int) -> None:
    world = World()
    cut_in(world, moment)
    assert world.run().step is Step.NOTHING
    assert world.accepted()
    assert world.published.bundle.count(b"BEGIN") == 1


@pytest.mark.parametrize("moment", range(1, MOMENTS))
def test_rotations_may_cross(moment: int) -> None:
    world = World()
    world.run()
    while world.run(days=1).step is not Step.WAIT:
        pass
    before = world.pair()
    cut_in(world, moment)
    world.run(minutes=6)
    assert world.accepted()
    assert handshake(world.published.bundle, before)
    assert world.published.bundle.count(b"BEGIN") == 2


def test_a_bundle_overwritten_by_a_runner_that_lagged_settles_again() -> None:
    world = World()
    world.run()
    stale = world.published.bundle
    while world.run(days=1).step is not Step.WAIT:
        pass
    before = world.pair()
    world.published.bundle = stale
    assert world.run(minutes=6).step is Step.WAIT
    assert world.pair() == before
    world.run(minutes=6)
    assert world.pair() != before


@pytest.mark.parametrize("moment", range(1, 8))
def test_a_runner_that_slept_over_a_whole_rotation_does_not_leave_its_old_bundle(
    moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.run()
    for _ in range(22):
        assert world.run(days=11).step is Step.NOTHING
    publish, seen = world.published.publish, 0

    def late(bundle: bytes, ends: str) -> bool:
        nonlocal seen
        seen += 1
        if seen == moment:
            for _ in range(4):
                world.run(minutes=6)
        return publish(bundle, ends)

    monkeypatch.setattr(world.published, "publish", late)
    world.run(days=1)
    assert world.accepted()
    assert world.published.bundle.count(b"BEGIN") == 2
