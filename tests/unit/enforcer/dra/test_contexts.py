"""A share has to be larger than a CUDA context on its GPU: asked when it is prepared and when it is resized."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from enforcer.dra.cdi import variables
from enforcer.dra.contexts import Context, context_of
from enforcer.dra.resize import ResizeBounds, resized
from enforcer.nvml.types import Gpu
from enforcer.quota.types import Mode
from gpushare import contract
from gpushare.errors import PrepareError, ResizeRefused
from gpushare.reasons import Reason
from tests.support.wiring import fixed_modes
from tests.unit.enforcer.dra.objects import Object, claim, pod
from tests.unit.enforcer.dra.world import World
from tests.unit.enforcer.test_loop import Reader

H100 = 132


@dataclass
class Cards(Reader):
    sms: int = H100

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(each._replace(sms=self.sms) for each in super().gpus())


def node(folder: Path, mode: Mode = Mode.MPS, sms: int = H100) -> World:
    world = World(folder)
    world.reader, world.modes = Cards(sms=sms), fixed_modes(mode)
    world.restart()
    return world


def prepare(world: World, memory: str, compute: str | None = None) -> Object:
    made = pod("tts", {contract.MEMORY: memory} | ({contract.COMPUTE: compute} if compute else {}))
    world.driver.prepare(world.add(made, claim(made)))
    return made


@pytest.mark.parametrize(
    ("memory", "compute", "mode", "names"),
    [
        ("512Mi", None, Mode.MPS, ("512Mi", "619Mi", "832Mi")),
        ("619Mi", None, Mode.MPS, ("619Mi", "832Mi")),
        ("512Mi", "80%", Mode.MPS, ("80%", "523Mi", "704Mi")),
        ("512Mi", "10%", Mode.TIME_SLICING, ("619Mi", "832Mi")),
    ],
)
def test_a_share_without_room_beside_a_context_is_refused_with_what_would_do(
    tmp_path: Path, memory: str, compute: str | None, mode: Mode, names: tuple[str, ...]
) -> None:
    world = node(tmp_path, mode)
    with pytest.raises(PrepareError) as refused:
        prepare(world, memory, compute)
    assert refused.value.reason is Reason.BELOW_MINIMUM
    assert [
        each for each in (*names, "model", "NVIDIA A100", contract.MEMORY) if each not in refused.value.message
    ] == []
    assert world.store.prepared() == ()
    assert world.tree() == {}


@pytest.mark.parametrize(
    ("memory", "compute", "sms"),
    [("620Mi", None, H100), ("512Mi", "75%", H100), ("512Mi", None, 40), ("832Mi", None, 0)],
)
def test_one_with_room_is_prepared(tmp_path: Path, memory: str, compute: str | None, sms: int) -> None:
    world = node(tmp_path, sms=sms)
    prepare(world, memory, compute)
    (kept,) = world.store.prepared()
    assert int(variables(kept, kept.of("model"), mps=True)[contract.USABLE_MIB]) > 0


def test_the_cap_of_a_container_that_reserved_no_compute_counts(tmp_path: Path) -> None:
    world = node(tmp_path)
    beside = pod("beside", {contract.MEMORY: "4Gi", contract.COMPUTE: "60%"})
    world.driver.prepare(world.add(beside, claim(beside)))
    prepare(world, "512Mi")
    (kept,) = [each for each in world.store.prepared() if each.pod == "tts"]
    assert context_of(kept, "model") == Context(H100, 40)


def test_one_that_was_prepared_is_not_refused_since(tmp_path: Path) -> None:
    world = node(tmp_path, sms=40)
    ref = world.tenant("tts", "512Mi")
    before = world.driver.prepare(ref)
    (kept,) = world.store.prepared()
    world.store.put(replace(kept, seen=tuple(replace(each, sms=H100) for each in kept.seen)))
    assert world.driver.prepare(ref) == before


@pytest.mark.parametrize(("compute", "least"), [(None, 620), ("50%", 512), ("80%", 524)])
def test_a_running_container_keeps_room_beside_its_context_too(tmp_path: Path, compute: str | None, least: int) -> None:
    """It could not start again with less."""
    world = node(tmp_path)
    user = prepare(world, "4Gi", compute)
    (kept,) = world.store.prepared()
    assert resized(kept, user, "model", least, ResizeBounds()).limits[0].memory_mib == least
    with pytest.raises(ResizeRefused) as refused:
        resized(kept, user, "model", least - 1, ResizeBounds())
    assert refused.value.reason is Reason.BELOW_MINIMUM


def test_what_a_claim_does_not_say_is_not_known(tmp_path: Path) -> None:
    world = node(tmp_path)
    prepare(world, "4Gi", "50%")
    (kept,) = world.store.prepared()
    assert context_of(kept, "model", 50) == Context(H100, 50)
    assert context_of(kept.shared_by(dict.fromkeys(kept.gpus, Mode.TIME_SLICING)), "model", 50) == Context(H100, 100)
    assert context_of(kept, "no such request", 50) is None
