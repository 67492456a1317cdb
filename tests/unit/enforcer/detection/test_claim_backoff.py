from pathlib import Path

import pytest

from enforcer.detection.claim_backoff import ClaimBackoff
from gpushare.errors import PrepareError
from gpushare.reasons import Reason
from tests.support.clock import FakeClock
from tests.unit.enforcer.dra.objects import NAMESPACE
from tests.unit.enforcer.dra.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


class Bench:
    def __init__(self) -> None:
        self.now = 100.0
        self.backoff = ClaimBackoff(FakeClock(lambda: self.now))
        self.backoff.update(frozenset({"asr"}))

    def waited(self) -> float:
        """Ask each second until a claim is prepared."""
        start = self.now
        while self.backoff.admit("asr"):
            self.now += 1.0
        return self.now - start


def test_one_claim_is_prepared_after_each_wait_and_each_wait_is_twice_the_last_up_to_five_minutes() -> None:
    bench = Bench()
    assert [bench.waited() for _ in range(7)] == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


def test_the_seconds_left_are_named() -> None:
    bench = Bench()
    assert bench.backoff.admit("asr") == 10.0
    bench.now += 4.0
    assert bench.backoff.admit("asr") == 6.0


def test_other_namespaces_do_not_wait_and_the_waits_begin_again_once_the_kills_are_over() -> None:
    bench = Bench()
    assert bench.waited() == 10.0
    assert bench.backoff.admit("tts") == 0.0
    bench.backoff.update(frozenset())
    assert bench.backoff.admit("asr") == 0.0
    bench.backoff.update(frozenset({"asr"}))
    assert bench.waited() == 10.0


def test_a_new_claim_waits_with_a_reason_and_one_that_was_prepared_does_not(world: World) -> None:
    running, new = world.tenant("running"), world.tenant("new")
    before = world.driver.prepare(running)
    now = [100.0]
    backoff = ClaimBackoff(FakeClock(lambda: now[0]))
    backoff.update(frozenset({NAMESPACE}))
    object.__setattr__(world.driver._parts, "backoff", backoff)
    with pytest.raises(PrepareError, match="so the driver delays this pod by 10s; the kubelet retries") as error:
        world.driver.prepare(new)
    assert error.value.reason is Reason.TOO_MANY_KILLS
    assert world.driver.prepare(running) == before
    now[0] += 10.0
    assert world.driver.prepare(new)
