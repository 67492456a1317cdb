"""What containers are called is read from the node; nobody outside of a pod changes that, and a loss costs the pod."""

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.attribution.cgroup import ContainerRef
from enforcer.attribution.container_names import MOST_BYTES, ContainerNames, Place, file_in, kubelet_folder
from enforcer.quota.types import Quota, pod_row
from tests.unit.enforcer.made import CONTAINER, GPU, NEIGHBOUR, OTHER_GPU, POD, quota

ROOT = "/var/lib/kubelet"
OTHER_POD = POD.replace("0a", "ff")
FOLDER = Place("8:1", ROOT)


def mount(root: str, point: str = "/dev/termination-log", device: str = "8:1") -> str:
    return f"36 35 {device} {root} {point} rw,relatime - ext4 /dev/root rw\n"


def named(name: str, pod: str = POD) -> str:
    return mount("/", "/", "0:50") + mount(f"{ROOT}/pods/{pod}/containers/{name}/0badcafe")


V1 = "5:memory:/kubepods/burstable/pod{pod}/{id}\n0::/\n"
V2_CRIO = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{dashes}.slice/crio-{id}.scope/container\n"
V2_CONTAINERD = "0::/kubepods.slice/kubepods-pod{dashes}.slice/cri-containerd-{id}.scope\n"


class Node:
    """A node's /proc. The enforcer runs in a container, the kubelet's folder is /var/lib/kubelet."""

    def __init__(self, proc: Path) -> None:
        self.proc, self.changed = proc, threading.Event()
        (proc / "self").mkdir(parents=True)
        (proc / "self/mountinfo").write_text(named("enforcer", OTHER_POD))

    def start(self, pid: int, mounts: str, container: str = CONTAINER, pod: str = POD, form: str = V1) -> None:
        (folder := self.proc / str(pid)).mkdir()
        (folder / "cgroup").write_text(form.format(pod=pod, dashes=pod.replace("-", "_"), id=container))
        (folder / "stat").write_text(f"{pid} (a) b) S {' '.join(['0'] * 18)} {pid * 10} 0\n")
        (folder / "mountinfo").write_text(mounts)

    def end(self, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))

    def loses_its_mounts(self, pid: int) -> None:
        (self.proc / str(pid) / "mountinfo").write_text(mount("/", "/", "0:50"))

    def names(self) -> ContainerNames:
        return ContainerNames(self.proc / "nowhere", self.changed, self.proc)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "proc")


QUOTAS = (quota(container_id=None), quota(container="helper", container_id=None))


def ids(names: ContainerNames, before: tuple[Quota, ...] = (), quotas: tuple[Quota, ...] = QUOTAS) -> list[str | None]:
    return [each.container_id for each in names.joined(quotas, before)]


@pytest.mark.parametrize("form", [V1, V2_CRIO, V2_CONTAINERD])
def test_a_container_is_known_by_its_first_process_whatever_runtime_and_cgroups(node: Node, form: str) -> None:
    node.start(20, named("model"), form=form)
    node.start(21, mount("/", "/", "0:50"), form=form)
    assert ids(node.names()) == [CONTAINER, None]


def test_a_name_that_was_learned_is_kept_when_the_mount_is_gone(node: Node) -> None:
    node.start(20, named("model"))
    names = node.names()
    assert ids(names) == [CONTAINER, None]
    node.loses_its_mounts(20)
    assert ids(names) == [CONTAINER, None]


def test_an_enforcer_that_starts_later_takes_it_from_its_own_file_for_the_same_container_alone(node: Node) -> None:
    node.start(20, mount("/", "/", "0:50"))
    assert ids(node.names(), (quota(),)) == [CONTAINER, None]
    elsewhere = (quota(pod_uid=OTHER_POD),)
    assert ids(node.names(), elsewhere) == [None, None], "an id outside of its pod's cgroup"


def test_one_that_has_ended_stays_what_it_was_until_it_is_made_again(node: Node) -> None:
    before, names = (quota(),), node.names()
    assert ids(names, before) == [CONTAINER, None]
    node.start(20, mount("/", "/", "0:50"), NEIGHBOUR)
    assert ids(names, before) == [CONTAINER, None], "one without a name takes nobody's place"
    node.start(21, named("model"), "e" * 64)
    assert ids(names, before) == ["e" * 64, None]


def test_one_whose_name_nobody_knows_is_nobodys_and_said_while_it_holds_memory(node: Node) -> None:
    node.start(20, mount("/", "/", "0:50"))
    names = node.names()
    assert (ids(names), names.problem) == ([None, None], None)
    names.notice({ContainerRef(POD, CONTAINER)})
    ids(names)
    assert POD in str(names.problem)
    ids(names, quotas=())
    assert names.problem is None, "of a pod without a share nothing is said"


def test_a_container_that_restarted_is_the_new_one(node: Node) -> None:
    node.start(20, named("model"))
    names = node.names()
    assert ids(names) == [CONTAINER, None]
    node.start(30, named("model"), NEIGHBOUR)
    assert ids(names) == [NEIGHBOUR, None], "the old one takes its time to end"
    node.end(20)
    assert ids(names) == [NEIGHBOUR, None]


def test_an_id_in_two_pods_is_an_error_and_never_a_quota(node: Node) -> None:
    node.start(20, named("model"))
    node.start(21, named("model", OTHER_POD), CONTAINER, OTHER_POD)
    names, both = node.names(), (QUOTAS[0], quota(pod_uid=OTHER_POD, container_id=None))
    assert ids(names, both, both) == [None, None]
    assert CONTAINER in str(names.problem)


def test_a_container_that_asked_for_nothing_may_hold_nothing_on_the_gpus_of_its_pod(node: Node) -> None:
    node.start(20, named("model"))
    node.start(21, named("debug"), NEIGHBOUR)
    node.start(22, named("model", OTHER_POD), "e" * 64, OTHER_POD)
    whole = (pod_row(QUOTAS[0], 4096), pod_row(replace(QUOTAS[0], gpu=OTHER_GPU), 512))
    found = node.names().joined((QUOTAS[0], *whole), ())
    assert found[:3] == (quota(), *whole)
    assert [(e.container, e.container_id, e.gpu, e.memory_mib, e.ceiling_mib, e.whole_pod) for e in found[3:]] == [
        ("debug", NEIGHBOUR, GPU, 0, 0, False),
        ("debug", NEIGHBOUR, OTHER_GPU, 0, 0, False),
        ("model", CONTAINER, OTHER_GPU, 0, 0, False),
    ]
    assert {each.reserved_mib for each in found[3:]} == {0}
    node.end(21)
    assert "debug" not in {each.container for each in node.names().joined((QUOTAS[0], *whole), found)}


def test_only_a_container_that_is_new_to_the_gpus_asks_for_a_look(node: Node) -> None:
    names, one, other = node.names(), ContainerRef(POD, CONTAINER), ContainerRef(POD, NEIGHBOUR)
    asked = []
    for holding in ({one}, {one}, {one, other}, {other}, set[ContainerRef]()):
        names.notice(holding)
        asked.append(node.changed.is_set())
        node.changed.clear()
    assert asked == [True, False, True, False, False]


@pytest.mark.parametrize(
    "forged",
    [
        mount(f"/pods/{POD}/containers/helper/0badcafe"),
        mount(f"{ROOT}/pods/{POD}/containers/helper/0badcafe", device="0:77"),
        mount(f"{ROOT}/pods/{POD}/volumes/kubernetes.io~empty-dir/x{ROOT}/pods/{POD}/containers/helper/0badcafe"),
        mount(f"{ROOT}/pods/{OTHER_POD}/containers/helper/0badcafe"),
        mount(f"/data{ROOT}/pods/{POD}/containers/helper/0badcafe"),
        mount("/x", f"{ROOT}/pods/{POD}/containers/helper/0badcafe"),
    ],
)
def test_a_path_that_a_tenant_can_make_says_nothing(forged: str) -> None:
    assert file_in(forged, FOLDER, POD) is None
    assert file_in(forged + named("model"), FOLDER, POD) == "model/0badcafe"


@pytest.mark.parametrize(
    "name", ["helper/0badcafe/x", "../helper/0badcafe", "Helper/0badcafe", "helper/0badcafez", "*/0badcafe"]
)
def test_a_path_that_is_not_the_kubelets_work_says_nothing(name: str) -> None:
    assert file_in(mount(f"{ROOT}/pods/{POD}/containers/{name}"), FOLDER, POD) is None


def test_two_names_are_none_and_the_same_twice_is_one() -> None:
    assert file_in(named("model") + named("helper"), FOLDER, POD) is None
    assert file_in(named("model") + named("model"), FOLDER, POD) == "model/0badcafe"
    deleted = "model/0badcafe//deleted"
    assert file_in(mount(f"{ROOT}/pods/{POD}/containers/{deleted}"), FOLDER, POD) == deleted


def test_a_termination_message_is_where_the_kubelet_keeps_it_on_the_node(node: Node) -> None:
    root = node.proc / "nowhere"
    node.start(20, named("model"))
    names, container = node.names(), ContainerRef(POD, CONTAINER)
    assert names.termination_message(container) is None, "nothing is known of it yet"
    names.joined(QUOTAS, ())
    below = f"pods/{POD}/containers/model/0badcafe"
    assert (
        names.termination_message(container) == node.proc / str(os.getppid()) / "root" / root.relative_to("/") / below
    )
    node.loses_its_mounts(20)
    names.joined(QUOTAS, ())
    assert names.termination_message(container) is not None, "learned once"
    (root / "pods").mkdir(parents=True)
    assert names.termination_message(container) == root / below, "an enforcer that is in no container"
    node.end(20)
    names.joined(QUOTAS, ())
    assert names.termination_message(container) is None


def test_a_relative_path_of_the_kubelets_folder_is_taken_from_here(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(node.proc)
    node.start(20, named("model"))
    names = ContainerNames(Path("nowhere"), node.changed, node.proc)
    names.joined(QUOTAS, ())
    found = names.termination_message(ContainerRef(POD, CONTAINER))
    below = node.proc.relative_to("/") / "nowhere/pods" / POD / "containers/model/0badcafe"
    assert found == node.proc / str(os.getppid()) / "root" / below


def test_a_table_of_mounts_beyond_all_bounds_is_not_read(node: Node) -> None:
    node.start(20, named("model") + mount("/x") * (MOST_BYTES // 20))
    assert ids(node.names()) == [None, None]


def test_a_pid_that_is_another_containers_by_then_says_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.start(20, named("model"))
    owners = iter([ContainerRef(POD, CONTAINER), ContainerRef(POD, NEIGHBOUR)])
    names = node.names()
    monkeypatch.setattr(names, "_owner", lambda pid: next(owners))
    assert ids(names) == [None, None]


def test_in_a_container_the_kubelets_folder_is_where_it_keeps_the_enforcers_own_file(tmp_path: Path) -> None:
    own = mount("/", "/", "0:50") + mount(f"/mnt/k/pods/{OTHER_POD}/containers/enforcer/0badcafe", device="253:2")
    assert kubelet_folder(tmp_path, own) == Place("253:2", "/mnt/k")
    assert kubelet_folder(tmp_path, mount("/", "/", "0:50")) is None


def test_where_the_enforcer_sees_the_folder_it_is_looked_for_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "pods").mkdir()
    root, above = str(tmp_path), str(tmp_path.parent)
    own = mount(f"/mnt/k/pods/{OTHER_POD}/containers/enforcer/0badcafe", device="253:2")
    for mounts, found in (
        (mount("/", "/"), Place("8:1", root)),
        (mount("/", "/") + mount("/k", root, "8:2") + own, Place("8:2", "/k")),
        (mount("/", "/") + mount("/k", root, "8:2") + mount("/l", root, "8:3"), Place("8:3", "/l")),
        (
            mount("/", "/") + mount("/", above, "8:2") + mount("/", f"{above}-2", "8:3"),
            Place("8:2", f"/{tmp_path.name}"),
        ),
        ("", None),
    ):
        assert kubelet_folder(tmp_path, mounts) == found


def test_where_the_kubelets_folder_is_not_to_be_seen_nobody_has_a_name(node: Node) -> None:
    (node.proc / "self/mountinfo").write_text("")
    node.start(20, named("model"))
    assert ids(node.names()) == [None, None]
