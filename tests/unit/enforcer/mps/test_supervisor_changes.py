"""A node whose label changes how its GPUs are shared: daemons go and come with it, never under a tenant."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from enforcer.mps.manager import MpsManager
from enforcer.mps.supervisor import MpsSupervisor
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.errors import MpsError
from tests.unit.enforcer.made import GPU
from tests.unit.enforcer.mps.test_desired_daemons import Node


class Played(MpsManager):
    """Daemons that run as soon as they are started."""

    def __init__(self) -> None:
        super().__init__()
        self.running, self.failure = set[str](), list[MpsError]()

    def marked(self) -> frozenset[str]:
        return frozenset(self.running & self.daemons.keys())

    def health(self, gpus: Collection[str] | None = None) -> dict[str, Any]:
        return {
            gpu: "fine" if gpu in self.running else MpsError("silent") for gpu in self.daemons if gpu in (gpus or ())
        }

    def start(self, gpus: Collection[str] | None = None) -> dict[str, Any]:
        self.running |= set(gpus or ())
        return {}

    def answers(self, gpu: str) -> bool:
        return gpu in self.running

    def stop(self, gpus: Collection[str] | None = None) -> None:
        for failure in self.failure:
            raise failure
        self.running -= set(gpus or ())


class Changing:
    """A node with one GPU, its daemon's keeper, and claims that hold the GPU in a mode."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder)
        del self.node.cards[1:]
        self.manager = self.node.manager = Played()
        self.node.roster = self.node.made()
        self.keeper = MpsSupervisor(self.manager, self.node.roster, fresh=0)

    def label(self, mode: str) -> None:
        self.node.object["metadata"]["labels"][contract.NODE_MODE] = mode
        self.node.modes.update_from_node(self.node.object)

    def hold(self, *modes: Mode) -> None:
        self.node.held.clear()
        self.node.held.update(dict.fromkeys([GPU], modes[0]) if modes else {})
        self.node.claims = {GPU} if modes else set()


@pytest.fixture(name="changing")
def _changing(short_path: Path) -> Changing:
    made = Changing(short_path)
    made.keeper.run_once()
    assert made.manager.running == {GPU}
    return made


def test_a_daemon_goes_when_the_last_claim_of_its_gpu_has_gone_and_comes_back_for_the_next(changing: Changing) -> None:
    changing.hold(Mode.MPS)
    changing.label("time-slicing")
    changing.keeper.run_once()
    assert (changing.manager.running, changing.keeper.not_ready_reason(GPU)) == ({GPU}, None), "its tenants live on it"
    changing.hold()
    changing.keeper.run_once()
    assert (changing.manager.running, changing.keeper.not_ready_reason(GPU)) == (set(), None)
    changing.label("mps")
    assert (changing.keeper.not_ready_reason(GPU), changing.manager.running) == (None, {GPU})


def test_who_shares_by_turns_waits_for_the_end_of_the_daemon(changing: Changing) -> None:
    changing.manager.failure.append(MpsError("it does not quit"))
    changing.label("time-slicing")
    assert changing.keeper.not_ready_reason(GPU) == f"the previous MPS daemon of {GPU} has not stopped yet"
    assert list(changing.keeper.problems()) == [f"MPS on {GPU}: it does not quit"]
    changing.manager.failure.clear()
    assert (changing.keeper.not_ready_reason(GPU), changing.manager.running) == (None, set())
    assert list(changing.keeper.problems()) == []


def test_a_daemon_is_not_ended_under_a_claim_that_is_just_prepared(changing: Changing) -> None:
    with changing.node.modes.hold([GPU]):
        changing.label("time-slicing")
        changing.keeper.run_once()
        assert (changing.manager.running, changing.keeper.not_ready_reason(GPU)) == ({GPU}, None)
        changing.hold(Mode.MPS)
    changing.keeper.run_once()
    assert changing.manager.running == {GPU}


def test_a_mistyped_label_ends_nothing(changing: Changing) -> None:
    changing.label("time-sliced")
    changing.keeper.run_once()
    assert changing.manager.running == {GPU}
