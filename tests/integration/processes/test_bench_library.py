"""The library of the enforcer's benchmark, which reads the simulator's files once."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.gpu.probe import Probe
from tests.fakes.gpu.state import Machine, Sim
from tests.load.bench.library import remembering

pytestmark = pytest.mark.node
CARDS = 8


def test_it_remembers_every_card(tmp_path: Path) -> None:
    sim = Sim.create(tmp_path / "sim", "single-16g")
    [card] = sim.machine.gpus
    cards = tuple(
        replace(card, uuid=f"{card.uuid[:-1]}{number}", minor=number, pci=f"00000000:0{number + 1}:00.0")
        for number in range(CARDS)
    )
    sim.become(replace(Machine.named("single-16g"), gpus=cards))
    library = tmp_path / "library"
    library.mkdir()
    with Probe(sim, remembering(library)) as probe:
        assert len(probe.ask("gpus")) == CARDS
        before = [probe.ask("sample", each.uuid) for each in cards]
        for each in cards:
            sim.register(1, each.uuid, 100)
        assert [probe.ask("sample", each.uuid) for each in cards] == before
