"""H14: what a client needs of /dev/shm: all of its daemon's, its server's file alone, and which users may open that."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from enforcer.mps.daemon import MpsDaemon
from gpushare.shared_memory import SERVER_FILE, barred, needs_server_file
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.client import ClientGoneError, ClientTimeoutError
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

MIB: Final = 512
NOBODY: Final = 65534
SHM: Final = Path("/dev/shm")
SHARED, EMPTY, FILE, OTHER, OWN = "daemon's", "empty", "file alone", "another user", "server of its own user"
REPLACED: Final = "after the server was replaced"


def judge_figures(figures: Mapping[str, Any], driver: str) -> Result:
    """Compare with what the product does by the driver: below 580 a shared /dev/shm, from there each its own."""
    return judged(list(_wrong(figures, needed=needs_server_file(driver))), _right(figures["files"]), **figures)


def _wrong(figures: Mapping[str, Any], *, needed: bool) -> Iterator[str]:
    served, files, running = figures["served"], figures["files"], figures["running"]
    if bool(files) is not needed:
        yield f"the server makes {'a' if files else 'no'} file /dev/shm/cuda.shm.*"
    expected = {SHARED: True, EMPTY: not needed, FILE: True, OWN: True, OTHER: not _barred(files), REPLACED: True}
    for case, wanted in expected.items():
        if served[case]["under_mps"] is not wanted:
            yield f"/dev/shm {case}: a client is {'not ' if wanted else ''}served"
    if isinstance(running, Mapping) and _well(running):
        yield "a running client goes on when its server is replaced"


def _right(files: Sequence[Mapping[str, Any]]) -> str:
    """Name what the first GPU decides: whether the default serves containers of other users."""
    if not files:
        return "a client needs nothing of /dev/shm: the server makes no file there"
    modes = ", ".join(sorted({f"{each['mode']} of user {each['user']}" for each in files}))
    others = "not served" if _barred(files) else "served"
    return f"a client needs its server's file ({modes}) and no other of /dev/shm; clients of other users are {others}"


def _barred(files: Sequence[Mapping[str, Any]]) -> bool:
    return barred(NOBODY, [(each["user"], int(each["mode"], 8)) for each in files])


@experiment(
    "H14",
    title="What a client needs of /dev/shm",
    hypothesis="From driver 580 on a server makes no file in /dev/shm, and a client is served with an empty /dev/shm "
    "of its own and as another user; before, it has to open its server's file /dev/shm/cuda.shm.*, whose owner and "
    "mode decide for another user; the server of a user serves that user; after a server was replaced new clients are "
    "served and running ones fail",
    needs=("mps", "root", "mounts"),
    limit_s=120,
    order=25,
    judge=judge_figures,
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
        files = _files(backend, daemon)
        running, served[REPLACED] = _replaced(backend, daemon)
    with backend.mps(single_user=True, name="own") as daemon:
        served[OWN] = _served(backend, daemon, uid=NOBODY)
        own = _files(backend, daemon)
    if not served[SHARED]["under_mps"]:
        raise NotMeasurable(f"not even a client with the daemon's /dev/shm is served: {served[SHARED]}")
    return judge_figures({"served": served, "files": files, "own_files": own, "running": running}, backend.facts.driver)


def _files(backend: Backend, daemon: MpsDaemon) -> list[dict[str, Any]]:
    """The files that name a server of the daemon; on hardware all there are where none does.

    Beside a simulated machine there are others, whose servers have files in the same folder.
    """
    files = sorted(SHM.glob(f"{SERVER_FILE}*"))
    servers = {f"{pid:x}" for pid in daemon.servers()}
    named = [each for each in files if servers & set(each.name.split("."))]
    return [_about(file) for file in named or (files if backend.name == "real" else [])]


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
