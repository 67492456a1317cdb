"""Explain why a container's user cannot reach its MPS server: the file that the server keeps in /dev/shm."""

from collections.abc import Iterator, Sequence

from gpushare import contract
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.shared_memory import ROOT, barred, brings_memory, user_of


def hindrances(pod: Object, container: Object, claims: Sequence[Object]) -> Iterator[str]:
    """Say that a container's user may open none of the files that MPS servers had when its claims were prepared.

    Args:
        pod: the pod.
        container: one of its containers, which has failed; by now it may run again.
        claims: those that the container uses.
    """
    user, files = user_of(pod, container), [each for claim in claims for each in _files(claim)]
    if user is None or brings_memory(container) or not barred(user, files):
        return
    modes = ", ".join(sorted({f"mode {mode:04o}, user {owner}" for owner, mode in files}))
    others = sorted({owner for owner, _ in files} - {ROOT})
    advice = f"set runAsUser to {others[0]}" if others else "only root may open it; ask the cluster's operators"
    yield (
        f"container {text(container, 'name')} runs as user {user}, which may not open the file of the MPS server in "
        f"{contract.SHARED_MEMORY_PATH} ({modes}), so CUDA probably fails with error 805: {advice}"
    )


def _files(claim: Object) -> Iterator[tuple[int, int]]:
    """Owner and mode of each file, as the driver wrote them."""
    for entry in objects(mapping(claim, "status"), "devices"):
        for file in objects(mapping(entry, "data"), "mpsFiles"):
            owner, mode = file.get("user"), file.get("mode")
            if entry.get("driver") == contract.DRIVER and isinstance(owner, int) and isinstance(mode, int):
                yield owner, mode
