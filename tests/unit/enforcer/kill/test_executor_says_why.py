"""A killed container's own status says why; whatever becomes of that, the kill goes on."""

import signal
from pathlib import Path

from gpushare.reasons import Reason
from tests.unit.enforcer.kill.test_executor import World, process
from tests.unit.enforcer.made import GPU


def test_the_containers_own_status_says_why_it_ends_unless_nobody_is_signalled(tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.write_text("the tenant's own")
    for refused in (True, False):
        world = World(tmp_path / str(refused), process(501), process(502))
        world.message, world.mps_fails = file, refused
        world.run()
    own, ours = file.read_text().splitlines()
    assert own == "the tenant's own"
    assert all(word in ours for word in ("18000 MiB", "4096 MiB", GPU, "node gpu-7")), ours
    assert f"record {world.records()[0]['seq']} " in ours


def test_it_says_so_once_however_many_signals_it_takes(tmp_path: Path) -> None:
    world = World(tmp_path, process(501, dies_of=(signal.SIGKILL,)), process(502))
    world.message = tmp_path / "message"
    world.message.write_text("")
    world.run()
    assert world.signals()[-1] == "SIGKILL 501"
    assert len(world.message.read_text().splitlines()) == 1


def test_a_status_that_cannot_be_written_delays_no_kill(tmp_path: Path) -> None:
    world = World(tmp_path, process())
    world.message = tmp_path / "gone" / "message"
    assert world.run().reason is Reason.KILLED
