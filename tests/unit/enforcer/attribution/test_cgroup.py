import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.attribution import cgroup
from enforcer.attribution.cgroup import MAX_TEXT, SHORT, ContainerRef, container_cgroups, container_in, container_of

UID = "0a1b2c3d-1111-2222-3333-444455556666"
UND = UID.replace("-", "_")
OTHER = "ffffffff-1111-2222-3333-444455556666"
OTHER_UND = OTHER.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
ID = "c" * 64
OTHER_ID = "d" * 64
OURS = ContainerRef(UID, ID)

BEST = "/kubepods.slice/kubepods-besteffort.slice"
BURST = "/kubepods.slice/kubepods-burstable.slice"
DOCKER = f"/docker/{'e' * 64}"

ATTRIBUTED = [
    # cgroupfs driver
    f"/kubepods/besteffort/pod{UID}/{ID}",
    f"/kubepods/burstable/pod{UID}/{ID}",
    f"/kubepods/pod{UID}/{ID}",
    f"/kubepods/burstable/pod{UID}/crio-{ID}",
    f"/kubelet/kubepods/burstable/pod{UID}/{ID}",
    # systemd driver, three runtimes
    f"{BEST}/kubepods-besteffort-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"{BURST}/kubepods-burstable-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"/kubepods.slice/kubepods-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"{BURST}/kubepods-burstable-pod{UND}.slice/crio-{ID}.scope",
    f"{BURST}/kubepods-burstable-pod{UND}.slice/crio-{ID}.scope/container",
    f"{BEST}/kubepods-besteffort-pod{UND}.slice/docker-{ID}.scope",
    (
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UND}.slice"
        f"/cri-containerd-{ID}.scope"
    ),
    f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UND}.slice/cri-containerd-{ID}.scope",
    # kubelet with systemd, containerd without
    f"/system.slice/containerd.service/kubepods-burstable-pod{UND}.slice:cri-containerd:{ID}",
    f"/kubepods-besteffort-pod{UND}.slice:cri-containerd:{ID}",
    # seen from another cgroup namespace: ours hangs below, beside or above
    f"/../../../kubepods.slice/kubepods-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"/../../../kubepods-besteffort.slice/kubepods-besteffort-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"/../../kubepods-besteffort-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"/../../kubepods-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"/../../../kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"/../../../../kubepods/burstable/pod{UID}/{ID}",
    f"/../../../burstable/pod{UID}/{ID}",
    f"/../../pod{UID}/{ID}",
    # what the container makes below itself is still the container's
    f"/kubepods/pod{UID}/{ID}/init.scope",
    f"/kubepods/pod{UID}/{ID}/kubepods/pod{OTHER}/{OTHER_ID}",
    f"/kubepods/pod{UID}/{ID}/../pod{OTHER}/{OTHER_ID}",
    (
        f"{BEST}/kubepods-besteffort-pod{UND}.slice/cri-containerd-{ID}.scope/kubepods.slice"
        f"/kubepods-pod{OTHER_UND}.slice/cri-containerd-{OTHER_ID}.scope"
    ),
    f"/kubepods/pod{UID}/{ID}/x (deleted)",
    f"/kubepods/pod{UID}/{ID}/" + "a" * 3900,
    f"/kubepods/pod{UID}/{ID}/\u0663\x1b[31m",
]

UNKNOWN = [
    "",
    "/",
    "/..",
    "/../..",
    "/init.scope",
    "/user.slice/user-1000.slice/session-1.scope",
    "/system.slice/kubelet.service",
    "/system.slice/containerd.service",
    f"/kubepods/burstable/pod{UID}",
    f"/kubepods/burstable/pod{UID}/",
    f"{BEST}/kubepods-besteffort-pod{UND}.slice",
    # a plain container of the host that made itself a Kubernetes-looking tree
    DOCKER,
    f"{DOCKER}/kubepods/burstable/pod{UID}/{ID}",
    f"{DOCKER}/kubepods.slice/kubepods-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"/system.slice/docker-{ID}.scope",
    f"/system.slice/docker-{ID}.scope/kubepods/pod{UID}/{ID}",
    f"/../..{DOCKER}/pod{UID}/{ID}",
    f"/../evil/kubepods/pod{UID}/{ID}",
    f"/user.slice/kubepods/pod{UID}/{ID}",
    f"/user.slice/kubepods-besteffort-pod{UND}.slice:cri-containerd:{ID}",
    # relative forms only after the dots
    f"/pod{UID}/{ID}",
    f"/burstable/pod{UID}/{ID}",
    f"/kubepods-besteffort-pod{UND}.slice/cri-containerd-{ID}.scope",
    # two pods before the container
    f"/kubepods/pod{OTHER}/pod{UID}/{ID}",
    f"/kubepods/burstable/pod{OTHER}/kubepods/pod{UID}/{ID}",
    # not quite
    f"/kubepods/guaranteed/pod{UID}/{ID}",
    f"/kubepods/burstable/besteffort/pod{UID}/{ID}",
    f"{BURST}/kubepods-besteffort-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"/kubepods.slice/kubepods-burstable-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"{BURST}/kubepods-pod{UND}.slice/cri-containerd-{ID}.scope",
    f"{BURST}/kubepods-burstable-pod{UID}.slice/cri-containerd-{ID}.scope",
    f"/kubepods/burstable/pod{UND}/{ID}",
    f"/kubepods/burstable/pod{UID.upper()}/{ID}",
    f"/kubepods/burstable/pod{UID[:-1]}/{ID}",
    f"/kubepods/burstable/pod{UID}0/{ID}",
    f"/kubepods/burstable/xpod{UID}/{ID}",
    f"/kubepods/burstable/pod{UID}/{ID[:-1]}",
    f"/kubepods/burstable/pod{UID}/{ID}0",
    f"/kubepods/burstable/pod{UID}/{ID.upper()}",
    f"/kubepods/burstable/pod{UID}/{'g' * 64}",
    f"/kubepods/burstable/pod{UID}/{ID} (deleted)",
    f"/kubepods/burstable/pod{UID} (deleted)/{ID}",
    f"{BURST}/kubepods-burstable-pod{UND}.slice/crio-conmon-{ID}.scope",
    f"{BURST}/kubepods-burstable-pod{UND}.slice/evil-{ID}.scope",
    f"{BURST}/kubepods-burstable-pod{UND}.slice/cri-containerd-{ID}.scopeX",
    f"{BURST}/kubepods-burstable-pod{UND}.slice/{ID}",
    f"kubepods/burstable/pod{UID}/{ID}",
    f"//kubepods/burstable/pod{UID}/{ID}",
    f"/kubepods/../kubepods/burstable/pod{UID}/{ID}",
    f"/kubepods/burstable/pod{UID}/{ID}\u0661",
    f"/kubepods/burstable/pod\uff10{UID[1:]}/{ID}",
    f"/kubepods-burstable-pod{UND}.slice:evil:{ID}",
    f"/kubepods.slice:kubepods-burstable-pod{UND}.slice:cri-containerd:{ID}",
]


@pytest.mark.parametrize("path", ATTRIBUTED)
def test_a_path_the_kubelet_makes_names_its_pod_and_container(path: str) -> None:
    assert container_in(path) == OURS


@pytest.mark.parametrize("path", UNKNOWN)
def test_any_other_path_names_nobody(path: str) -> None:
    assert container_in(path) is None


def test_a_static_pod_is_named_by_its_manifests_hash() -> None:
    assert container_in(f"/kubepods/pod{STATIC}/{ID}") == ContainerRef(STATIC, ID)
    assert container_in(f"/kubepods.slice/kubepods-pod{STATIC}.slice/crio-{ID}.scope") == ContainerRef(STATIC, ID)


V1 = f"/kubepods/besteffort/pod{UID}/{ID}"
V2 = f"{BEST}/kubepods-besteffort-pod{UND}.slice/cri-containerd-{ID}.scope"

TEXTS = [
    (f"0::{V2}\n", OURS),
    (f"0::{V2}", OURS),
    (f"12:cpu,cpuacct:{V1}\n4:memory:{V1}\n1:name=systemd:{V1}\n0::/\n", OURS),
    (f"4:memory:{V1}\n3:cpuset:/\n0::/\n", OURS),
    (f"4:memory:{V1}\n0::{V2}\n", OURS),
    (f"0::/system.slice/a:b:{V1}\n", None),
    (f"4:memory:{V1}\n3:pids:/kubepods/besteffort/pod{OTHER}/{ID}\n", None),
    (f"4:memory:{V1}\n3:pids:/kubepods/besteffort/pod{UID}/{OTHER_ID}\n", None),
    (f"4:memory:{V1}\nrubbish\n", None),
    (f"x:memory:{V1}\n", None),
    (f"\u0664:memory:{V1}\n", None),
    ("0::/\n", None),
    ("", None),
    (f"0::{V1}\n" * 1000, None),
    (f"0::{V1}/a:b:c\n", OURS),
    (f"0::{V1}/a b\n", OURS),
]


@pytest.mark.parametrize(("text", "owner"), TEXTS)
def test_all_hierarchies_together_name_one_container_or_nobody(text: str, owner: ContainerRef | None) -> None:
    assert container_of(text) == owner


def _long(size: int) -> str:
    text = f"0::{V1}/"
    return text + "a" * (size - len(text))


def test_an_endless_answer_is_not_read() -> None:
    assert container_of(_long(MAX_TEXT)) == OURS
    assert container_of(_long(MAX_TEXT + 1)) is None


def test_what_long_texts_mean_is_not_remembered() -> None:
    """Where a tenant may choose how long they are, they would take the memory."""
    known, cgroups = cgroup._known_owner, cgroup._known_cgroups
    for size, kept in ((SHORT, 1), (SHORT + 1, 0)):
        known.cache_clear()
        cgroups.cache_clear()
        for _ in range(2):
            assert container_of(_long(size)) == OURS
            assert container_cgroups(_long(size)) == [("", V1[1:])]
        assert (known.cache_info().currsize, cgroups.cache_info().currsize) == (kept, kept)


@given(st.text(max_size=200))
def test_nothing_a_container_writes_below_itself_changes_the_answer(below: str) -> None:
    assert container_in(f"{V1}/{below}") == OURS
    assert container_in(f"{V2}/{below}") == OURS


@given(st.text(max_size=100), st.text(max_size=100))
def test_a_foreign_front_never_names_a_pod(front: str, below: str) -> None:
    found = container_in(f"/{front}x{V1}{below}")
    assert found is None


def test_the_containers_own_cgroups_are_found_without_what_lies_below() -> None:
    text = f"4:memory:{V1}/below/kubepods/pod{OTHER}/{OTHER_ID}\n3:pids:/\n0::/../..{V2}/x\n"
    assert container_cgroups(text) == [("memory", V1[1:]), ("", V2[1:])]
    assert container_cgroups("rubbish\n0::/\n") == []
    assert container_cgroups(f"0::{V1}") == [("", V1[1:])]
    assert container_cgroups(f"0::{V1}/x:y/z\n") == [("", V1[1:])]
    assert container_cgroups(f"0::{V1}/x 0::{V2}\n") == [("", V1[1:])]
    assert container_cgroups("a:b\n") == []
