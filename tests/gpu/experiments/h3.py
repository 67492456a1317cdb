"""H3: what somebody without any privilege can do to everybody else through the control socket every tenant gets."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from enforcer.mps import protocol
from enforcer.mps.daemon import MpsDaemon
from gpushare.errors import MpsError
from tests.gpu.kit.backend import Backend, Said
from tests.gpu.kit.client import Client, ClientGoneError, ClientTimeoutError
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import NotMeasurable, Result, judged

NOBODY: Final = 65534
BLOCKED_S: Final = 2.0
SETTLE_S: Final = 3.0
LIMIT_MIB: Final = 4096
UNLIMITED: Final = 100.0
WORK: Final = "gemm 128 1"


@dataclass(slots=True)
class Attack:
    """A daemon with a live server and a victim on it, and what a stranger did to them."""

    backend: Backend
    stack: ExitStack
    daemon: MpsDaemon
    victim: Client
    server: int
    uid: int
    did: dict[str, Any] = field(default_factory=dict)

    def say(self, command: str) -> Said:
        """One command as the stranger."""
        return self.backend.control(self.daemon, command, uid=self.uid)

    def own(self, command: str) -> str:
        """One command as ourselves; nothing where nobody answers."""
        return self.backend.control(self.daemon, command).out.strip()


def judge_figures(figures: Mapping[str, Any], _: str = "") -> Result:
    """Name each command of a stranger that had an effect, and what is unexpected of a silent connection."""
    holder, did = figures["silent_holder"], figures["effect_on_others"]
    wrong = [f"{name}: has an effect on others" for name, effect in did.items() if effect]
    if not holder["blocked"]:
        wrong.append("a silent holder of the socket does not block administration")
    if not holder["served_afterwards"]:
        wrong.append("administration does not work again after the silent holder has gone")
    return judged(wrong, "no command of a stranger has an effect; one who is silent blocks administration", **figures)


@experiment(
    "H3",
    title="What a stranger can do to the control socket",
    hypothesis="A user who can open the v2 control socket and is neither root nor the daemon's changes no limit, ends "
    "no neighbour's client and no server, and starts none for root; one who stays silent blocks all administration "
    "until he disconnects",
    needs=("mps", "root"),
    limit_s=90,
    order=40,
    judge=judge_figures,
)
def h3(backend: Backend) -> Result:
    """Every command as uid 65534 against a live server; each that destroys something gets victims of its own."""
    did: dict[str, Any] = {}
    for name, act in ACTS:
        with scene_of(backend, name) as attack:
            did[name] = act(attack)
    with scene_of(backend, "silent") as attack:
        holder = _silent(attack)
    return judge_figures({"effect_on_others": did, "silent_holder": holder})


@contextmanager
def scene_of(backend: Backend, name: str, uid: int = NOBODY) -> Iterator[Attack]:
    """A daemon, a victim, and a stranger of that uid. Raises ``NotMeasurable``."""
    with ExitStack() as stack:
        daemon = stack.enter_context(backend.mps(limit_mib=LIMIT_MIB, name=name))
        victim = stack.enter_context(backend.client(backend.daemon_env(daemon)))
        if not victim.usable or "error" in victim.ask(WORK):
            raise NotMeasurable(f"no victim under MPS: {victim.hello}")
        servers = daemon.servers()
        if not servers:
            raise NotMeasurable("MPS shows no server although it has a client")
        yield Attack(backend, stack, daemon, victim, servers[0], uid)


def _default_limit(attack: Attack) -> bool:
    attack.say("set_default_device_pinned_mem_limit 0 1M")
    return attack.own(protocol.get_limit()) != protocol.expected_limit(LIMIT_MIB)


def _server_limit(attack: Attack) -> bool:
    question = f"get_device_pinned_mem_limit {attack.server} 0"
    before = attack.own(question)
    attack.say(f"set_device_pinned_mem_limit {attack.server} 0 512M")
    return attack.own(question) != before


def _percentage(attack: Attack) -> bool:
    attack.say("set_default_active_thread_percentage 1")
    return protocol.parse_percentage(attack.own(protocol.GET_PERCENTAGE)) < UNLIMITED


def _terminate(attack: Attack) -> bool:
    attack.say(protocol.terminate_client(attack.server, attack.victim.pid))
    return _eventually(lambda: not _works(attack.victim))


def _shutdown(attack: Attack) -> bool:
    attack.say(f"shutdown_server {attack.server} -f")
    return _eventually(lambda: not _works(attack.victim))


def _quit(attack: Attack) -> bool:
    attack.say(protocol.QUIT)
    return not attack.daemon.answers() or not _works(attack.victim)


def _start_for_root(attack: Attack) -> bool:
    attack.victim.close()
    before = set(attack.daemon.servers())
    attack.own(f"shutdown_server {attack.server}")
    _eventually(lambda: not attack.daemon.servers())
    attack.say(protocol.start_server(0))
    return bool(set(attack.daemon.servers()) - before)


ACTS: Final[tuple[tuple[str, Callable[[Attack], bool]], ...]] = (
    ("set the default memory limit", _default_limit),
    ("set the server's memory limit", _server_limit),
    ("set the thread percentage", _percentage),
    ("terminate a neighbour's client", _terminate),
    ("shut the server down", _shutdown),
    ("start a server for root", _start_for_root),
    ("quit", _quit),
)
"""What is tried; each says whether it had an effect on others."""


def _silent(attack: Attack) -> dict[str, Any]:
    """Hold the socket and say nothing: who just asks is blocked; what our own adapter gets, which clears the way?"""
    with attack.backend.silent_holder(attack.daemon, NOBODY):
        begun = time.monotonic()
        blocked = _blocked(attack)
        waited = time.monotonic() - begun
        computes = _works(attack.victim)
        adapter = _adapter(attack.daemon)
    served = _eventually(lambda: not _blocked(attack))
    return {
        "blocked": blocked, "watched_s": round(waited, 2), "clients_compute": computes, "served_afterwards": served,
        "our_adapter": adapter,
    }  # fmt: skip


def _blocked(attack: Attack) -> bool:
    """Whether NVIDIA's own program, which clears no way, waits in vain."""
    return attack.backend.control(attack.daemon, protocol.GET_PERCENTAGE, timeout=BLOCKED_S).status is None


def _adapter(daemon: MpsDaemon) -> str:
    try:
        daemon.control.ask(protocol.GET_PERCENTAGE)
    except MpsError as error:
        return error.message
    return "answered"


def _works(client: Client) -> bool:
    try:
        return bool(client.ask(WORK, SETTLE_S).get("ok"))
    except (ClientGoneError, ClientTimeoutError):
        return False


def _eventually(true: Callable[[], bool]) -> bool:
    end = time.monotonic() + SETTLE_S
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
