"""Test 20: whose process a cgroup path says it is, over hand-written paths, and spoofs that belong to nobody."""

from pathlib import Path
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from enforcer.attribution.cgroup import ContainerRef, container_of
from tests.support import extent

CASES: Final = Path(__file__).with_name("cgroups.txt")
FEWEST: Final = 200
PODS: Final = {
    "A": "0a1b2c3d-1111-2222-3333-444455556666",
    "B": "ffffffff-1111-2222-3333-444455556666",
    "S": "0123456789abcdef0123456789abcdef",
}
CONTAINERS: Final = {"1": "c" * 64, "2": "0d" * 32}
LETTERS: Final = "x" * 3900


def _filled(text: str) -> str:
    for name, uid in PODS.items():
        text = text.replace(f"{{{name}}}", uid).replace(f"{{{name.lower()}}}", uid.replace("-", "_"))
    for name, container in CONTAINERS.items():
        text = text.replace(f"{{{name}}}", container)
    return text.replace("{x}", LETTERS).replace("\\n", "\n")


def _case(line: str) -> tuple[str, ContainerRef | None]:
    """One line: the whole text of a ``/proc/<pid>/cgroup``, and whom it names."""
    owner, _, text = line.partition("  ")
    text = text if ":" in text and not text.startswith("/") else f"0::{text}\n"
    return _filled(text), None if owner == "-" else ContainerRef(PODS[owner[0]], CONTAINERS[owner[1]])


def _cases() -> dict[str, tuple[str, ContainerRef | None]]:
    lines = CASES.read_text(encoding="utf-8").splitlines()
    return {line: _case(line) for line in lines if line and not line.startswith("#")}


def test_no_hand_written_path_is_attributed_to_anybody_else() -> None:
    cases = _cases()
    wrong = [line for line, (text, owner) in cases.items() if container_of(text) != owner]
    assert wrong == []
    nobody = sum(owner is None for _, owner in cases.values())
    assert len(cases) >= FEWEST
    assert min(nobody, len(cases) - nobody) > FEWEST // 4, "both kinds, or the test says little"
    assert all("{" not in text for text, _ in cases.values()), "a placeholder that nothing fills"
    extent.figure(
        "20", "cgroup paths misattributed", f"{len(wrong)} of {len(cases)}, {nobody} of them spoofs and hosts"
    )


PIECES: Final = st.sampled_from(
    [
        "/", "/..", "/kubepods", "/kubepods.slice", "/burstable", "/kubepods-burstable.slice", "/kubelet", "/docker",
        "/pod{A}", "/pod{B}", "/kubepods-pod{a}.slice", "/kubepods-pod{b}.slice", "/kubepods-burstable-pod{b}.slice",
        "/{1}", "/{2}", "/crio-{1}", "/cri-containerd-{1}.scope", "/cri-containerd-{2}.scope", ":cri-containerd:{1}",
        "/system.slice/containerd.service", " (deleted)", "/x", ".",
    ]
)  # fmt: skip


def _first(text: str, names: dict[str, str]) -> str:
    """Of these names the one that stands first in a text."""
    found = {text.find(each): name for name, value in names.items() for each in {value, value.replace("-", "_")}}
    return names[min((at, name) for at, name in found.items() if at >= 0)[1]]


@settings(max_examples=extent.trials(500, 20_000), deadline=None)
@given(st.lists(PIECES, max_size=8))
def test_whatever_is_put_together_names_the_first_pod_and_the_first_container_or_nobody(pieces: list[str]) -> None:
    path = _filled("".join(pieces))
    owner = container_of(f"0::{path}\n")
    if owner is not None:
        assert owner == ContainerRef(_first(path, PODS), _first(path, CONTAINERS))


@settings(max_examples=extent.trials(200, 10_000), deadline=None)
@given(st.text(max_size=300), st.text(max_size=100))
def test_garbage_is_nobodys_and_below_a_container_it_is_the_containers(garbage: str, below: str) -> None:
    assert container_of(garbage) is None
    inside = container_of(f"0::{_filled('/kubepods/pod{A}/{1}')}/{below}".replace("\n", " "))
    assert inside == ContainerRef(PODS["A"], CONTAINERS["1"])
