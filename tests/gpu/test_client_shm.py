"""What a CUDA client under MPS needs of /dev/shm, on the simulated driver: the file of its server."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.gpu import world
from tests.fakes.gpu.programs import CLIENT, GpuHost, Program
from tests.gpu.test_client_mps import LAUNCH, TENANT, _here, _pipe, _user, root, server
from tests.support.need import missing

pytestmark = pytest.mark.node
__all__ = ["_here", "_pipe", "_user"]


@root
def test_a_shared_memory_of_its_own_keeps_a_client_out(here: GpuHost, pipe: Path) -> None:
    prefix = (sys.executable, LAUNCH, "--private-shm", "--", sys.executable, str(CLIENT))
    hello = here.start(prefix=prefix, pipe=pipe).hello
    if hello["error"] == -1:
        missing(hello["name"])
    assert hello["error"] == 805
    with_file = (*prefix[:3], "--server-files", *prefix[3:])
    assert here.start(prefix=with_file, pipe=pipe).hello["ready"], "the file is all that it needs"
    world.change(here.sim, shm_needed=0)
    assert here.start(prefix=prefix, pipe=pipe).hello["ready"]


@root
def test_who_may_open_the_server_s_file_is_served(here: GpuHost, user: Callable[..., Program]) -> None:
    """Root always is; another user by a server of its own (0600, its own), and by root's as that file's mode says."""
    world.change(here.sim, multiuser_shm_mode="600")
    own, of_all = here.daemon(0), here.daemon(1, "-multiuser-server")
    assert here.start(pipe=of_all).hello["ready"]
    assert user(TENANT, of_all).hello["error"] == 805
    assert user(TENANT, own).hello["ready"]
    (file,) = Path("/dev/shm").glob(f"cuda.shm.{TENANT:x}.{server(here, own):x}.*")
    assert (file.stat().st_mode & 0o777, file.stat().st_uid, file.stat().st_size) == (0o600, TENANT, 4096)


@root
def test_a_new_driver_needs_no_file(here: GpuHost, pipe: Path) -> None:
    here.sim.become(replace(here.sim.machine, driver="580.159.04"))
    prefix = (sys.executable, LAUNCH, "--private-shm", "--", sys.executable, str(CLIENT))
    hello = here.start(prefix=prefix, pipe=pipe).hello
    if hello.get("error") == -1:
        missing(hello["name"])
    assert hello["ready"]
    assert not list(Path("/dev/shm").glob(f"cuda.shm.*.{server(here, pipe):x}.1"))


def test_the_file_goes_with_its_server_and_the_next_server_has_another(here: GpuHost, pipe: Path) -> None:
    client = here.start(pipe=pipe)
    assert client.ask("gemm 16 1")["ok"]
    first = server(here, pipe)
    here.control(pipe, f"shutdown_server {first} -f")
    assert client.ask("gemm 16 1")["error"] == 806, "who runs loses its context"
    assert here.start(pipe=pipe).hello["ready"]
    assert not list(Path("/dev/shm").glob(f"cuda.shm.*.{first:x}.1"))
    assert len(list(Path("/dev/shm").glob(f"cuda.shm.*.{server(here, pipe):x}.1"))) == 1
