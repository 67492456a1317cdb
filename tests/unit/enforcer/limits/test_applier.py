"""Setting limits of cgroups: as soon as there is one, again where another is read back, and never for anybody else."""

from pathlib import Path

import pytest

from enforcer.attribution.cgroup import ContainerRef
from enforcer.limits.applier import PAUSE, AppliedLimit, LimitApplier
from enforcer.limits.backend import Backend, RequestedBackend
from enforcer.limits.cgroup_paths import CgroupFolders, pod_folders
from gpushare.errors import NvmlError
from tests.support.wiring import fixed_modes
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, POD, quota
from tests.unit.enforcer.test_loop import card

GPUS = [card(GPU, 0)]


class Driver:
    """Limits by (GPU, cgroup)."""

    def __init__(self) -> None:
        self.limits: dict[tuple[str, str], int] = {}
        self.known, self.silent = True, False
        self.sets = 0

    def limits_cgroups(self, uuid: str, cgroup: str) -> bool:
        self._answer()
        return self.known

    def cgroup_limit_mib(self, uuid: str, cgroup: str) -> int | None:
        self._answer()
        return self.limits.get((uuid, cgroup))

    def set_cgroup_limit(self, uuid: str, cgroup: str, mib: int) -> None:
        self.sets += 1
        self._answer()
        self.limits[uuid, cgroup] = mib

    def _answer(self) -> None:
        if self.silent:
            raise NvmlError("the driver is away")


class Node:
    def __init__(self, root: Path, wanted: RequestedBackend = RequestedBackend.AUTO) -> None:
        self.root, self.driver = root, Driver()
        self.limiter = LimitApplier(self.driver, CgroupFolders(root), wanted, fixed_modes())
        (root / "cgroup.controllers").touch()

    def container(self, container_id: str = CONTAINER, pod: str = POD) -> str:
        folder = self.root / "kubepods" / "burstable" / f"pod{pod}" / container_id
        folder.mkdir(parents=True)
        return str(folder)


@pytest.fixture(name="node")
def _node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_limit_is_set_as_soon_as_the_container_has_a_cgroup(node: Node) -> None:
    node.limiter.apply(GPUS, [quota()])
    assert not node.driver.limits
    folder = node.container()
    node.limiter.apply(GPUS, [quota()])
    assert node.driver.limits == {(GPU, folder): 4096}


def test_where_nothing_was_given_there_is_no_limit_to_set(node: Node) -> None:
    node.container()
    node.limiter.apply(GPUS, [quota(memory_mib=0)])
    assert not node.driver.limits


def test_a_limit_that_stands_is_not_set_again(node: Node) -> None:
    node.container()
    for _ in range(3):
        node.limiter.apply(GPUS, [quota()])
    assert node.driver.sets == 1


def test_another_quota_is_set_at_once(node: Node) -> None:
    folder = node.container()
    node.limiter.apply(GPUS, [quota()])
    node.limiter.apply(GPUS, [quota(memory_mib=3072)])
    assert node.driver.limits == {(GPU, folder): 3072}


def test_a_limit_that_somebody_changed_is_read_back_and_set_again(node: Node) -> None:
    folder = node.container()
    node.limiter.apply(GPUS, [quota()])
    node.driver.limits[GPU, folder] = 9999
    assert node.limiter.read(quota()) == AppliedLimit(9999)
    node.limiter.apply(GPUS, [quota()])
    assert node.limiter.read(quota()) == AppliedLimit(4096)


def test_a_container_made_again_gets_its_own_limit(node: Node) -> None:
    node.container()
    node.limiter.apply(GPUS, [quota()])
    folder = node.container(NEIGHBOUR)
    node.limiter.apply(GPUS, [quota(container_id=NEIGHBOUR)])
    assert node.driver.limits[GPU, folder] == 4096


def test_a_driver_that_fails_is_reported_and_not_asked_every_second(node: Node) -> None:
    node.container()
    node.limiter.apply(GPUS, [])
    node.driver.silent = True
    for _ in range(PAUSE):
        node.limiter.apply(GPUS, [quota()])
    assert node.driver.sets == 1
    assert list(node.limiter.problems()) == [
        "the driver refused the limit of asr/tts-0 container model: the driver is away"
    ]
    assert node.limiter.read(quota()) == AppliedLimit(why="the driver is away")
    node.driver.silent = False
    node.limiter.apply(GPUS, [quota()])
    assert node.limiter.read(quota()) == AppliedLimit(4096)
    assert not list(node.limiter.problems())


def test_nothing_is_set_where_another_back_end_keeps_the_limits(tmp_path: Path) -> None:
    node = Node(tmp_path, RequestedBackend.MPS_V2)
    node.container()
    node.limiter.apply(GPUS, [quota()])
    assert node.limiter.backends() == {GPU: Backend.MPS_V2}
    assert node.driver.sets == 0
    assert node.limiter.read(quota()) == AppliedLimit()


def test_a_gpu_that_cannot_be_asked_is_chosen_for_later(node: Node) -> None:
    node.driver.silent = True
    node.limiter.apply(GPUS, [])
    assert node.limiter.backends() == {}
    node.driver.silent = False
    node.limiter.apply(GPUS, [])
    assert node.limiter.backends() == {GPU: Backend.DRIVER_CGROUP}


def test_a_request_that_cannot_be_met_is_a_problem(tmp_path: Path) -> None:
    node = Node(tmp_path, RequestedBackend.DRIVER_CGROUP)
    node.driver.known = False
    node.limiter.apply(GPUS, [])
    assert node.limiter.backends() == {GPU: Backend.MPS_V2}
    assert [GPU in each and "driver-cgroup" in each for each in node.limiter.problems()] == [True]


@pytest.mark.parametrize("version_1", [False, True])
@pytest.mark.parametrize("place", list(pod_folders(POD)))
def test_a_container_is_found_wherever_a_kubelet_puts_it(tmp_path: Path, place: str, *, version_1: bool) -> None:
    name = f"cri-containerd-{CONTAINER}.scope" if ".slice" in place else CONTAINER
    mount = tmp_path / "memory" if version_1 else tmp_path
    (mount / place / name).mkdir(parents=True)
    if not version_1:
        (tmp_path / "cgroup.controllers").touch()
    assert CgroupFolders(tmp_path).find(ContainerRef(POD, CONTAINER)) == mount / place / name


def test_a_name_that_only_holds_the_id_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "kubepods" / f"pod{POD}" / f"{CONTAINER}-nested").mkdir(parents=True)
    (tmp_path / "kubepods" / f"pod{POD}" / NEIGHBOUR / CONTAINER).mkdir(parents=True)
    assert CgroupFolders(tmp_path).find(ContainerRef(POD, CONTAINER)) is None


def test_a_mig_instance_is_limited_by_itself_whatever_is_wanted(tmp_path: Path) -> None:
    node = Node(tmp_path, RequestedBackend.DRIVER_CGROUP)
    node.container()
    node.limiter.apply([GPUS[0]._replace(parent="GPU-parent")], [quota()])
    assert node.limiter.backends() == {GPU: Backend.MIG_INSTANCE}
    assert not node.driver.limits


def test_a_container_that_was_given_nothing_has_no_limit_to_set(node: Node) -> None:
    node.container()
    node.limiter.apply(GPUS, [quota(memory_mib=0)])
    assert node.driver.sets == 0
