"""H14: what a client needs of /dev/shm: all of its daemon's, its server's file alone, and which users may open that."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from enforcer.mps.daemon import MpsDaemon
from gpushare.shared_memory import SERVER_FILE, barred
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.client import ClientGoneError, ClientTimeoutError
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

MIB: Final = 512
NOBODY: Final = 65534
SHM: Final = Path("/dev/shm")
SHARED, EMPTY, FILE, OTHER, OWN = "daemon's", "empty", "file alone", "another user", "server of its own user"
EXPECTED: Final = {SHARED: True, EMPTY: False, FILE: True, OWN: True}
"""Whether a client is served with each; another user's as the file's owner and mode say."""


@experiment(
    "H14",
    title="What a client needs of /dev/shm",
    hypothesis="A client is served if it can open its server's file /dev/shm/cuda.shm.*, in its daemon's /dev/shm or "
    "as the only file of its own, and not with an empty one; owner and mode of the file decide for another user, and "
    "the server of a user serves that user; after a server was replaced new clients are served and running ones fail",
    needs=("mps", "root", "mounts"),
    limit_s=120,
    order=25,
)
def h14(backend: Backend) -> Result:
    """Start the same client with each /dev/shm and as each user."""
    with backend.mps() as daemon:
        served = {
            SHARED: _served(backend, daemon),
            EMPTY: _served(backend, daemon, private_shm=True),
            FILE: _served(backend, daemon, private_shm=True, server_files=True),
            OTHER: _served(backend, daemon, uid=NOBODY),
        }
        files = _files(daemon)
        running, served["after the server was replaced"] = _replaced(backend, daemon)
    with backend.mps(single_user=True, name="own") as daemon:
        served[OWN] = _served(backend, daemon, uid=NOBODY)
        own = _files(daemon)
    if not served[SHARED]["under_mps"]:
        raise NotMeasurable(f"not even a client with the daemon's /dev/shm is served: {served[SHARED]}")
    return judged(
        list(_wrong(served, files, running)), _right(files), served=served, files=files, own_files=own, running=running
    )


def _wrong(
    served: Mapping[str, Mapping[str, Any]], files: Sequence[Mapping[str, Any]], running: object
) -> Iterator[str]:
    if not files:
        yield "the server makes no file /dev/shm/cuda.shm.*"
    if served[EMPTY]["under_mps"]:
        yield "a client is served without its server's file"
    may = not _barred(files)
    expected = EXPECTED | {OTHER: may, "after the server was replaced": True}
    for case, wanted in expected.items():
        if case != EMPTY and served[case]["under_mps"] is not wanted:
            yield f"{case}: a client is {'not ' if wanted else ''}served"
    if isinstance(running, Mapping) and _well(running):
        yield "a running client goes on when its server is replaced"


def _right(files: Sequence[Mapping[str, Any]]) -> str:
    """Name what the first GPU decides: whether the default serves containers of other users."""
    modes = ", ".join(sorted({f"{each['mode']} of user {each['user']}" for each in files}))
    others = "not served" if _barred(files) else "served"
    return f"a client needs its server's file ({modes}) and no other of /dev/shm; clients of other users are {others}"


def _barred(files: Sequence[Mapping[str, Any]]) -> bool:
    return barred(NOBODY, [(each["user"], int(each["mode"], 8)) for each in files])


def _files(daemon: MpsDaemon) -> list[dict[str, Any]]:
    """The files that name a server of the daemon; all there are where none does."""
    files = sorted(SHM.glob(f"{SERVER_FILE}*"))
    servers = {f"{pid:x}" for pid in daemon.servers()}
    return [_about(file) for file in [each for each in files if servers & set(each.name.split("."))] or files]


def _about(file: Path) -> dict[str, Any]:
    found = file.stat()
    return {"name": file.name, "user": found.st_uid, "mode": f"{found.st_mode & 0o7777:04o}", "bytes": found.st_size}


def _replaced(backend: Backend, daemon: MpsDaemon) -> tuple[object, dict[str, Any]]:
    """What a running client says once its server is gone, and whether a new one is served."""
    with backend.client(backend.daemon_env(daemon)) as client:
        for server in daemon.servers():
            backend.control(daemon, f"shutdown_server {server} -f")
        try:
            running: object = client.ask("gemm 128 2")
        except (ClientGoneError, ClientTimeoutError) as error:
            running = str(error)
    return running, _served(backend, daemon)


def _served(backend: Backend, daemon: MpsDaemon, **more: Any) -> dict[str, Any]:
    try:
        with backend.client(backend.daemon_env(daemon), **more) as client:
            if not client.usable:
                return {"under_mps": False, "said": client.hello}
            answers = [client.ask(command) for command in (f"alloc {MIB}", "gemm 128 2")]
            listed = any(client.pid in daemon.clients(server) for server in daemon.servers())
            return {"under_mps": listed and all(map(_well, answers)), "listed": listed, "said": answers}
    except (ClientGoneError, ClientTimeoutError) as error:
        return {"under_mps": False, "said": str(error)}


def _well(answer: Mapping[str, Any]) -> bool:
    return "error" not in answer and answer.get("ok", True)
