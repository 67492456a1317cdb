"""Memory by every allocator of the simulated driver: who is charged, which limit counts it, and when it is free again.

Where NVIDIA documents nothing, what is believed is a switch of the world, and its contrary is tested beside it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.gpu import world
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.programs import GpuHost, host
from tests.gpu.test_client import SET_LIMIT

pytestmark = pytest.mark.node
CONTEXT, SERVER, LIMIT = 300, 66, 4096
ALL = ("plain", "created", "pooled", "managed")
IN_ROW = {"plain": True, "created": True, "pooled": True, "managed": False}
IN_LIMIT = dict.fromkeys(ALL, True)
"""The limit binds managed memory as well, which no row of NVML shows."""

HANDLES = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
Q, I = ctypes.c_uint64, ctypes.c_int
def ask(name, *given):
    return getattr(cuda, name)(*[Q(each) if isinstance(each, int) else each for each in given])
def new(name, *given):
    out = Q()
    return ask(name, ctypes.byref(out), *given), out.value
def free():
    free, total = Q(), Q()
    ask("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value >> 20
MIB = 1 << 20
here, elsewhere, access = (I * 8)(1, 0, 1, 0), (I * 8)(1, 0, 1, 1), (I * 3)(1, 0, 3)
context = ctypes.c_void_p()
ask("cuInit", 0), ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
ask("cuCtxSetCurrent", context)
granule = new("cuMemGetAllocationGranularity", here, 0)
begin = free()
odd, abroad = new("cuMemCreate", MIB, here, 0)[0], new("cuMemCreate", 2 * MIB, elsewhere, 0)[0]
_, at = new("cuMemAddressReserve", 64 * MIB, 0, 0, 0)
reserved = begin - free()
_, handle = new("cuMemCreate", 32 * MIB, here, 0)
made = begin - free()
outside = ask("cuMemMap", at + 48 * MIB, 32 * MIB, 0, handle, 0)
mapped = ask("cuMemMap", at + 32 * MIB, 32 * MIB, 0, handle, 0)
blind = ask("cuMemsetD32_v2", at + 32 * MIB, 7, 1)
opened = ask("cuMemSetAccess", at, 64 * MIB, access, 1)
written = ask("cuMemsetD32_v2", at + 32 * MIB, 7, 1)
shared = ask("cuIpcGetMemHandle", (I * 16)(), at + 32 * MIB)
wrong_way = ask("cuMemFree_v2", at + 32 * MIB)
busy = ask("cuMemAddressFree", at, 64 * MIB)
released = ask("cuMemRelease", handle), begin - free()
again = ask("cuMemRelease", handle)
unmapped = ask("cuMemUnmap", at + 32 * MIB, 32 * MIB), begin - free()
gone = ask("cuMemAddressFree", at, 64 * MIB)
_, pooled = new("cuMemAllocAsync", 64 * MIB, None)
freed = ask("cuMemFreeAsync", pooled, None), begin - free()
_, reused = new("cuMemAllocAsync", 48 * MIB, None)
kept = begin - free()
ask("cuCtxSynchronize")
trimmed = begin - free()
print([granule, odd, abroad, reserved, made, outside, mapped, blind, opened, written, shared, wrong_way, busy])
print([released, again, unmapped, gone, freed, kept, trimmed])
"""


@pytest.fixture(name="here")
def _here() -> Iterator[GpuHost]:
    with host(need_library()) as made:
        yield made


def test_each_way_is_charged_and_given_back(here: GpuHost) -> None:
    client = here.start()
    free = client.ask("meminfo")["free_mib"]
    for how in ALL:
        taken = client.ask(f"alloc 500 {how}")
        shown = sum(mib or 0 for _, mib in here.rows(client.pid))
        assert (taken["how"], shown) == (how, CONTEXT + 500 * IN_ROW[how]), how
        assert client.ask("meminfo")["free_mib"] == free - 500, how
        assert client.ask(f"free {taken['id']}")["mib"] == 500
        assert here.rows(client.pid) == [("compute", CONTEXT)], how
    world.change(here.sim, created_counted=0, pooled_counted=0, managed_counted=1)
    for how in ("created", "pooled", "managed"):
        client.ask(f"alloc 100 {how}")
    assert sum(mib or 0 for _, mib in here.rows(client.pid)) == CONTEXT + 100, "managed alone"
    assert client.ask("gemm 8 1")["ok"]


def test_the_pinned_limit_binds_what_it_counts(here: GpuHost) -> None:
    pipe = here.daemon()
    here.control(pipe, f"set_default_device_pinned_mem_limit 0 {LIMIT}M")
    client = here.start(pipe=pipe)

    def filled(how: str) -> int:
        said = client.ask(f"fill 64 6144 {how}")
        client.ask(f"free {said['id']}")
        return int(said["mib"])

    bound = (LIMIT - CONTEXT) // 64 * 64
    assert {how: filled(how) for how in ALL} == {how: bound if IN_LIMIT[how] else 6144 for how in ALL}
    world.change(here.sim, limit_counts_created=0, limit_counts_pooled=0, limit_counts_managed=0)
    assert {how: filled(how) for how in ALL} == {how: bound if how == "plain" else 6144 for how in ALL}


def test_what_is_imported_is_limited_where_the_world_says_so(here: GpuHost) -> None:
    pipe = here.daemon()
    owner, guest = here.start(pipe=pipe), here.start(pipe=pipe, env={"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"})
    handle = owner.ask(f"export {owner.ask('alloc 2000')['id']}")["handle"]
    assert guest.ask(f"import {handle}")["error"] == 2
    world.change(here.sim, limit_counts_imported=0)
    kept = guest.ask(f"import {handle}")
    assert kept["mib"] == 2000
    assert guest.ask(f"free {kept['id']}")["mib"] == 2000
    for how in ("created", "pooled", "managed"):
        assert owner.ask(f"export {owner.ask(f'alloc 10 {how}')['id']}")["error"] == 1, how


def test_handles_and_pools_live_as_long_as_documented(here: GpuHost) -> None:
    granule = 2 << 20
    environment = here.sim.environment(need_library()) | {"CUDA_MPS_PIPE_DIRECTORY": str(here.folder / "nowhere")}
    done = subprocess.run(
        [sys.executable, "-c", HANDLES], env=environment, capture_output=True, text=True, check=True, timeout=20
    )
    made, ended = done.stdout.splitlines()
    assert made == str([(0, granule), 1, 101, 0, 32, 1, 0, 1, 0, 0, 1, 1, 1])
    # Released and still mapped it is held; unmapped it is free. A pool keeps what was freed, and uses it again.
    assert ended == str([(0, 32), 1, (0, 0), 0, (0, 64), 64, 48])


def test_what_limits_and_what_shows_can_be_the_total(here: GpuHost) -> None:
    pipe = here.daemon()
    here.control(pipe, f"set_default_device_pinned_mem_limit 0 {LIMIT}M")
    client = here.start(pipe=pipe)
    card = here.sim.machine.gpus[0].usable_mib

    def seen() -> tuple[int, int, int]:
        memory = client.ask("meminfo")
        return memory["free_mib"], memory["total_mib"], client.ask("attributes")["memory_mib"]

    assert seen() == (LIMIT - CONTEXT, card, card)
    world.change(here.sim, limit_is_total=1)
    assert seen() == (LIMIT - CONTEXT, LIMIT, LIMIT)
    world.change(here.sim, limit_is_free=0)
    assert seen() == (card - CONTEXT - SERVER, LIMIT, LIMIT)


def test_a_limit_of_the_cgroup_binds_handles_and_pools() -> None:
    with host(need_library(), "mixed") as here:
        cgroup = next(each[3:] for each in Path("/proc/self/cgroup").read_text().splitlines() if each[:3] == "0::")
        environment = dict(os.environ) | here.sim.environment(need_library())
        limit = [here.gpus[2], cgroup, str(LIMIT << 20)]
        subprocess.run([sys.executable, "-c", SET_LIMIT, *limit], env=environment, check=True)
        client = here.start("--gpu", here.gpus[2])
        for how in ("plain", "created", "pooled"):
            said = client.ask(f"fill 256 6144 {how}")
            assert (said["mib"], said["refused"]) == (3840, 2), how
            client.ask(f"free {said['id']}")
        assert client.ask("fill 256 6144 managed")["mib"] == 6144
