"""Frameworks size their memory by their own rules on simulated cards, and CUDA as simulated gives what they ask for."""

from collections.abc import Iterator

import pytest

from gpushare.cuda_context import context_mib
from gpushare.memory_fraction import Reserve, budget
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.programs import GpuHost, host
from tests.support.framework_table import MIB, TABLE, Program

pytestmark = pytest.mark.node
LIMIT = 8192


@pytest.fixture(name="here", scope="module")
def _here() -> Iterator[GpuHost]:
    with host(need_library(), "cards") as made:
        yield made


@pytest.mark.parametrize("watched", [False, True], ids=["mps-v2", "watch-only"])
def test_what_each_framework_asks_for_at_its_start_is_there(here: GpuHost, *, watched: bool) -> None:
    """One program for each card, which frees what one framework had before the next one asks."""
    for index, card in enumerate(here.sim.machine.gpus):
        pipe = None if watched else here.daemon(index)
        limits = {} if watched else {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={LIMIT}M"}
        program = here.start(pipe=pipe, env=limits, CUDA_VISIBLE_DEVICES=card.uuid)
        memory = program.ask("meminfo")
        assert memory["total_mib"] == card.usable_mib, "what the fraction is of"
        mine = budget(LIMIT, card.usable_mib, Reserve(), context_mib=context_mib(card.sms), watch_only=watched)
        found = Program(budget=mine, free=int(memory["free_mib"] * MIB))
        for framework in TABLE:
            for size in (rule.size(found) for rule in framework.rules):
                had = program.ask(f"alloc {max(1, size.start // MIB)}")
                assert "id" in had, (card.name, framework.name, had)
                program.ask(f"free {had['id']}")
        program.kill()
