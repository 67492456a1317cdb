"""The driver dies before every single thing it does to the disk; doing it again ends as if it had not."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enforcer.dra.cdi import file_name
from enforcer.dra.driver import ClaimRef
from gpushare.errors import PrepareError
from tests.unit.enforcer.dra.objects import made_uid
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.made import GPU

EFFECTS: list[tuple[Any, str]] = [
    (Path, "replace"), (Path, "rename"), (Path, "unlink"), (Path, "mkdir"), (Path, "rmdir"), (Path, "open"),
    (Path, "chmod"), (os, "fsync"), (os, "fchmod"), (os, "open"), (shutil, "rmtree"), (os, "unlink"), (os, "rmdir"),
]  # fmt: skip
ENOUGH = 200


class Crash(BaseException):
    """The process ends here; nothing in it may tidy up."""


class Power:
    """Counts what is done to the disk, and goes off before one of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        for owner, name in EFFECTS:
            monkeypatch.setattr(owner, name, self._guarded(getattr(owner, name)))

    def _guarded(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.left is not None:
                if self.left == 0:
                    raise Crash
                self.left -= 1
            return real(*arguments, **options)

        return call

    def fails_after(self, steps: int, turn: Callable[[], object]) -> bool:
        """Run with power for so many steps; whether it went off."""
        self.left = steps
        try:
            turn()
        except Crash:
            return True
        else:
            return False
        finally:
            self.left = None


@pytest.fixture
def power(monkeypatch: pytest.MonkeyPatch) -> Power:
    return Power(monkeypatch)


def worlds(folder: Path) -> Callable[[], tuple[World, ClaimRef]]:
    """Make the same world again and again: a neighbour that stays, and a tenant to try things on."""
    numbers = iter(range(ENOUGH))

    def make() -> tuple[World, ClaimRef]:
        world = World(folder / str(next(numbers)))
        world.driver.prepare(world.tenant("neighbour"))
        return world, world.tenant("tts")

    return make


def test_preparing_again_after_a_crash_anywhere_ends_the_same(tmp_path: Path, power: Power) -> None:
    make = worlds(tmp_path)
    undisturbed, ref = make()
    answer = undisturbed.driver.prepare(ref)
    steps = 0
    while True:
        world, ref = make()
        crashed = power.fails_after(steps, partial(world.driver.prepare, ref))
        world.restart()
        assert world.driver.prepare(ref) == answer
        assert world.tree() == undisturbed.tree()
        if not crashed:
            break
        steps += 1
    assert steps > 8, "the disk was hardly touched: the counting does not see it"


def test_a_pod_that_is_given_up_after_a_crash_anywhere_leaves_nothing(tmp_path: Path, power: Power) -> None:
    make = worlds(tmp_path)
    undisturbed, _ = make()
    steps = 0
    while True:
        world, ref = make()
        crashed = power.fails_after(steps, partial(world.driver.prepare, ref))
        world.restart()
        world.driver.unprepare(ref)
        assert world.tree() == undisturbed.tree()
        if not crashed:
            break
        steps += 1


@pytest.mark.parametrize("lingering", [False, True])
def test_undoing_again_after_a_crash_anywhere_leaves_nothing(tmp_path: Path, power: Power, *, lingering: bool) -> None:
    make = worlds(tmp_path)

    def ready() -> tuple[World, ClaimRef]:
        world, ref = make()
        world.driver.prepare(ref)
        if lingering:
            world.pods.pids[77] = made_uid("tts")
            world.reader.used[GPU] = {77: 1000}
        return world, ref

    undisturbed, ref = ready()
    undisturbed.driver.unprepare(ref)
    assert bool(list((undisturbed.state / "claims").glob("*.ending"))) is lingering
    steps = 0
    while True:
        world, ref = ready()
        crashed = power.fails_after(steps, lambda world=world, ref=ref: world.driver.unprepare(ref))  # type: ignore[misc]
        world.restart()
        world.driver.unprepare(ref)
        assert world.tree() == undisturbed.tree()
        if not crashed:
            break
        steps += 1
    assert steps > 4, "the disk was hardly touched: the counting does not see it"


def test_starting_again_after_a_crash_while_starting_ends_the_same(tmp_path: Path, power: Power) -> None:
    make = worlds(tmp_path)

    def rebooted() -> tuple[World, ClaimRef]:
        world, ref = make()
        world.driver.prepare(ref)
        shutil.rmtree(world.cdi)
        shutil.rmtree(world.run)
        return world, ref

    undisturbed, _ = rebooted()
    undisturbed.restart()
    steps = 0
    while True:
        world, _ = rebooted()
        crashed = power.fails_after(steps, world.restart)
        world.restart()
        assert world.tree() == undisturbed.tree()
        if not crashed:
            break
        steps += 1


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["prepare", "unprepare", "restart"]), st.integers(0, 3), st.none() | st.integers(0, 25)),
    max_size=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(OPERATIONS)
def test_whatever_is_asked_and_wherever_it_dies_files_and_checkpoint_agree(
    tmp_path_factory: pytest.TempPathFactory, power: Power, operations: list[tuple[str, int, int | None]]
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    refs = [world.tenant(f"pod-{number}", "4Gi") for number in range(4)]
    for name, number, steps in operations:
        turn = world.restart if name == "restart" else partial(getattr(world.driver, name), refs[number])
        try:
            if power.fails_after(ENOUGH if steps is None else steps, turn):
                world.restart()
        except PrepareError as error:
            assert "GPU memory is not free yet" in error.message
        check(world)
    for ref in refs:
        world.driver.unprepare(ref)
    assert world.tree() == {}


def check(world: World) -> None:
    """What is on disk is what is prepared, and it is never more than the GPU has."""
    prepared = world.store.prepared()
    assert {f"gpu-share.io-{each.uid}.json" for each in prepared} == {file.name for file in world.cdi.glob("*")}
    assert {each.pod_uid for each in prepared} == {folder.name for folder in (world.run / "status").glob("*")}
    assert {f"{each.uid}.json" for each in prepared} == {file.name for file in (world.state / "claims").glob("*")}
    assert sum(each.mib_on(GPU) for each in prepared) <= 14848


def test_a_file_that_somebody_removed_is_written_again_and_none_of_a_claim_that_was_undone(tmp_path: Path) -> None:
    world = World(tmp_path)
    kept, undone = world.tenant("tts"), world.tenant("other")
    for each in (kept, undone):
        world.driver.prepare(each)
    world.driver.unprepare(undone)
    tree = world.tree()
    (world.cdi / file_name(kept.uid)).unlink()
    (world.run / "status" / made_uid("tts")).rmdir()
    with world.driver._claims.hold(kept.uid):
        world.driver.restore()
    assert world.tree() != tree, "whoever holds the claim writes them"
    world.driver.restore()
    assert world.tree() == tree
