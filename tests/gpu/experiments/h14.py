"""H14: do a daemon and its clients have to share /dev/shm? Then a tenant needs the daemon's, or it is not served."""

from collections.abc import Mapping
from typing import Any, Final

from enforcer.mps.daemon import MpsDaemon
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.client import ClientGoneError, ClientTimeoutError
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, fails, holds

MIB: Final = 512


@experiment(
    "H14",
    title="Is a shared /dev/shm needed",
    hypothesis="A client has to share the MPS daemon's /dev/shm: in a mount namespace of its own with an empty one, it "
    "is not served",
    needs=("mps", "root", "mounts"),
    limit_s=45,
    order=25,
)
def h14(backend: Backend) -> Result:
    """The same client twice: with the daemon's /dev/shm and with an empty one of its own."""
    with backend.mps() as daemon:
        shared = _served(backend, daemon, private_shm=False)
        private = _served(backend, daemon, private_shm=True)
    if not shared["under_mps"]:
        raise NotMeasurable(f"not even a client with the daemon's /dev/shm is served: {shared}")
    if private["under_mps"]:
        return fails("a client is served without the daemon's /dev/shm", shared=shared, private=private)
    return holds("without the daemon's /dev/shm a client is not served", shared=shared, private=private)


def _served(backend: Backend, daemon: MpsDaemon, *, private_shm: bool) -> dict[str, Any]:
    try:
        with backend.client(backend.daemon_env(daemon), private_shm=private_shm) as client:
            if not client.usable:
                return {"under_mps": False, "said": client.hello}
            answers = [client.ask(command) for command in (f"alloc {MIB}", "gemm 128 2")]
            listed = any(client.pid in daemon.clients(server) for server in daemon.servers())
            return {"under_mps": listed and all(map(_well, answers)), "listed": listed, "said": answers}
    except (ClientGoneError, ClientTimeoutError) as error:
        return {"under_mps": False, "said": str(error)}


def _well(answer: Mapping[str, Any]) -> bool:
    return "error" not in answer and answer.get("ok", True)
