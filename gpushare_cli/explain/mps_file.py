"""Explain why a container cannot reach its MPS server: before driver 580 the server keeps a file in /dev/shm."""

from collections.abc import Iterator, Sequence

from gpushare import contract
from gpushare.raw_objects import Object, mapping, objects, text
from gpushare.shared_memory import ROOT, barred, brings_memory, user_of


def hindrances(pod: Object, container: Object, claims: Sequence[Object]) -> Iterator[str]:
    """Say why a container opens none of the files that MPS servers had when its claims were prepared.

    Either it mounts a volume of its own there, or its user may open none. Drivers from 580 on make no such file.

    Args:
        pod: the pod.
        container: one of its containers, which has failed; by now it may run again.
        claims: those that the container uses.
    """
    user, files = user_of(pod, container), [each for claim in claims for each in _files(claim)]
    if files and brings_memory(container):
        yield (
            f"container {text(container, 'name')} mounts a volume of its own at {contract.SHARED_MEMORY_PATH}, where "
            "it needs the file of its MPS server, so CUDA probably fails with error 805: remove that volumeMount"
        )
        return
    if user is None or not barred(user, files):
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
