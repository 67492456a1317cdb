"""H2: which ways there are around the limit of an MPS client, as MiB that could be allocated each way.

The limit is filled by each of CUDA's allocators, too: frameworks do not keep to ``cuMemAlloc``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from enforcer.mps.daemon import MpsDaemon
from gpushare.contract import CUDA_VISIBLE_DEVICES, MPS_MEMORY_LIMIT, MPS_PIPE_DIRECTORY
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.client import Client, ClientGoneError, ClientTimeoutError
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

SMALL_MIB, LIMIT_MIB, LARGE_MIB, CAP_MIB = 2048, 4096, 8192, 12288
"""The client's own lower limit, the daemon's, the client's own higher one, and where filling stops by itself."""
MODES: Final = ("DEFAULT", "EXCLUSIVE_PROCESS")
STEP_MIB: Final = 64
SLACK_MIB: Final = 64
EXPORTERS, EXPORT_MIB = 3, 2048
"""Processes and what each exports: more than the limit together, and each within its own."""
FOREIGN: Final = "GPU-00000000-0000-4000-8000-00000000dead"
Outcome = Literal["own", "daemon", "bounded", "more", "escapes", "refused", "any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to start a client. ``expected``: which limit holds, or that none does, or that it gets no context.

    ``exclusive`` is what is expected in EXCLUSIVE_PROCESS where that differs, ``how`` the allocator: one of the
    client's, or ``imported``, what others allocated and exported.
    """

    name: str
    limit: str | None = None
    pipe: str | None = None
    set_early: str | None = None
    set_late: str | None = None
    gpu: str | None = None
    copies: int = 1
    how: str = "plain"
    expected: Outcome
    exclusive: Outcome | None = None


def ways(gpu: str) -> tuple[Way, ...]:
    """All that is tried. ``any``: nothing is expected, it is only recorded."""
    late, early = f"{MPS_MEMORY_LIMIT} 0={LARGE_MIB}M", f"{MPS_MEMORY_LIMIT}=0={LARGE_MIB}M"
    return (
        Way(name="unset", expected="daemon"),
        Way(name="lower", limit=f"0={SMALL_MIB}M", expected="own"),
        Way(name="higher", limit=f"0={LARGE_MIB}M", expected="daemon"),
        Way(name="lower, by UUID", limit=f"{gpu}={SMALL_MIB}M", expected="own"),
        Way(name="entry for an unseen GPU", limit=f"0={SMALL_MIB}M,1={LARGE_MIB}M", expected="escapes"),
        Way(name="unknown UUID", limit=f"{FOREIGN}={SMALL_MIB}M", expected="escapes"),
        Way(name="no limit it can read", limit="0=lots", expected="escapes"),
        Way(name="set before CUDA is loaded", limit=f"0={SMALL_MIB}M", set_early=early, expected="daemon"),
        Way(name="set when running", limit=f"0={SMALL_MIB}M", set_late=late, expected="own"),
        Way(name="cuMemCreate", how="created", expected="daemon"),
        Way(name="a pool (cuMemAllocAsync)", how="pooled", expected="daemon"),
        Way(name="managed memory", how="managed", expected="daemon"),
        Way(name="memory imported by IPC", how="imported", expected="bounded"),
        Way(name="two processes", limit=f"0={SMALL_MIB}M", copies=2, expected="more"),
        Way(
            name="wrong pipe directory",
            pipe="/nowhere",
            limit=f"0={SMALL_MIB}M",
            expected="escapes",
            exclusive="refused",
        ),
        Way(name="no pipe directory", pipe="", limit=f"0={SMALL_MIB}M", expected="escapes", exclusive="refused"),
    )


def judge_figures(figures: Mapping[str, Any], _: str = "") -> Result:
    """Compare what could be allocated in each way with what is expected."""
    modes = [mode for mode in MODES if isinstance(figures[mode], Mapping)]
    wrong = [
        f"{mode}, {way.name}: {got}{' MiB' if isinstance(got, int) else ''}, expected {_told(expected)}"
        for mode in modes for way in ways("") if (got := figures[mode].get(way.name)) is not None
        and not fits(got, expected := _expected(way, mode))
    ]  # fmt: skip
    left_out = "".join(f"; {mode} {figures[mode]}" for mode in MODES if mode not in modes)
    return judged(wrong, f"limits hold and are escaped as expected{left_out}", **figures)


def _expected(way: Way, mode: str) -> Outcome:
    return (way.exclusive if mode == MODES[1] else None) or way.expected


@experiment(
    "H2",
    title="Ways around the pinned limit",
    hypothesis="The lower of the daemon's and the client's own limit holds for each process, whether it allocates by "
    "cuMemAlloc, cuMemCreate, from a pool, as managed memory or by importing what others hold; an entry for a GPU that "
    "the process cannot see, an unknown UUID and an amount that cannot be read drop the daemon's limit as well; it is "
    "escaped by more processes, and in DEFAULT mode by missing the pipe directory, which EXCLUSIVE_PROCESS turns into "
    "a refusal",
    needs=("mps",),
    limit_s=100,
    order=30,
    judge=judge_figures,
)
def h2(backend: Backend) -> Result:
    """The table, in DEFAULT mode and, where that is allowed, in EXCLUSIVE_PROCESS."""
    figures: dict[str, Any] = {"limit_mib": LIMIT_MIB, "own_mib": SMALL_MIB}
    with backend.mps(limit_mib=LIMIT_MIB) as daemon:
        figures["DEFAULT"] = dict(_table(backend, daemon, exclusive=False))
    try:
        with backend.mps(limit_mib=LIMIT_MIB, exclusive=True, name="exclusive") as daemon:
            figures["EXCLUSIVE_PROCESS"] = dict(_table(backend, daemon, exclusive=True))
    except NotMeasurable as error:
        figures["EXCLUSIVE_PROCESS"] = f"not measured: {error}"
    return judge_figures(figures)


def _table(backend: Backend, daemon: MpsDaemon, *, exclusive: bool) -> Iterator[tuple[str, int | str]]:
    # Somebody uses MPS while others try to get around it: without a server the mode alone would keep nobody out.
    with backend.client(backend.daemon_env(daemon)):
        # The compute mode says who gets a context, and nothing of allocators.
        for way in (each for each in ways(backend.gpu) if not exclusive or each.how == "plain"):
            yield way.name, _try(backend, daemon, way)


def fits(got: int | str, expected: Outcome) -> bool:
    """Whether so many MiB, or an error instead, are what was expected."""
    if expected == "any":
        return True
    if expected == "refused" or isinstance(got, str):
        return expected == "refused" and isinstance(got, str)
    bounds = {
        "own": (1, SMALL_MIB), "daemon": (SMALL_MIB + 1, LIMIT_MIB), "bounded": (1, LIMIT_MIB),
        "more": (SMALL_MIB + 1, 2 * SMALL_MIB),
        "escapes": (LIMIT_MIB + 1, CAP_MIB),
    }  # fmt: skip
    low, high = bounds[expected]
    return low <= got <= high + SLACK_MIB


def _try(backend: Backend, daemon: MpsDaemon, way: Way) -> int | str:
    """MiB that could be allocated that way, all copies together, or why no context was to be had."""
    env = backend.daemon_env(daemon) | ({MPS_MEMORY_LIMIT: way.limit} if way.limit else {})
    env |= {MPS_PIPE_DIRECTORY: str(backend.tmp / "nowhere")} if way.pipe else {}
    if way.pipe == "":
        env = {key: value for key, value in env.items() if key in {CUDA_VISIBLE_DEVICES, MPS_MEMORY_LIMIT}}
    arguments = ["--setenv", way.set_early] if way.set_early else []
    try:
        clients = [backend.client(env, arguments=arguments) for _ in range(way.copies)]
        others = [backend.client(env) for _ in range(EXPORTERS if way.how == "imported" else 0)]
    except (ClientGoneError, ClientTimeoutError) as error:
        return str(error)
    try:
        return _imported(clients[0], others) if others else _filled(clients, way)
    finally:
        for client in (*clients, *others):
            client.close()


def _imported(client: Client, others: Sequence[Client]) -> int | str:
    """MiB that one process could map of what others hold."""
    got = 0
    for other in (client, *others):
        if not other.usable:
            return f"{other.hello.get('name')} ({other.hello.get('error')})"
    for other in others:
        exported = other.ask(f"export {other.ask(f'alloc {EXPORT_MIB}').get('id', 0)}")
        if "handle" not in exported:
            return f"{exported.get('name')} ({exported.get('error')}) at export"
        got += int(client.ask(f"import {exported['handle']}").get("mib", 0))
    return got


def _filled(clients: Sequence[Client], way: Way) -> int | str:
    got = 0
    for client in clients:
        if not client.usable:
            return f"{client.hello.get('name')} ({client.hello.get('error')})"
        if way.set_late:
            client.ask(f"setenv {way.set_late}")
        with suppress(ClientGoneError):
            answer = client.ask(f"fill {STEP_MIB} {CAP_MIB} {way.how}")
            got += int(answer.get("mib", 0))
    return got


def _told(expected: Outcome) -> str:
    return {
        "own": f"at most its own {SMALL_MIB} MiB", "daemon": f"the daemon's {LIMIT_MIB} MiB", "refused": "a refusal",
        "bounded": f"at most {LIMIT_MIB} MiB",
        "more": f"more than {SMALL_MIB} MiB together", "escapes": f"more than {LIMIT_MIB} MiB", "any": "anything",
    }[expected]  # fmt: skip
