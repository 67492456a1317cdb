"""userns (H18): root of a container with ``hostUsers: false``, whom the node sees as an unprivileged user.

Is its CUDA program served, and does the control socket, which obeys root, take it for root?
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from tests.gpu.experiments.h3 import ACTS, Attack, scene_of
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.client import ClientGoneError, ClientTimeoutError
from tests.gpu.kit.launch import MAPPED_ROOT
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.result import Result, judged

SERVED: Final = "gemm 128 1"
SIMULATED: Final = 2
"""So many commands are tried of a simulated daemon: H3 tries all of them."""


def judge_figures(figures: Mapping[str, Any], _: str = "") -> Result:
    """Name what its root may do, and whether it is served."""
    wrong = [f"{name}: has an effect on others" for name, effect in figures["effect_on_others"].items() if effect]
    if not figures["served"]:
        wrong.append(f"it is not served: {figures['answer']}")
    return judged(wrong, "served, and none of its commands has an effect", **figures)


@experiment(
    "userns",
    title="Root of a user namespace (H18)",
    hypothesis="A CUDA program that is root in a user namespace of its own is served under MPS, and none of its "
    "commands to the control socket changes a limit or ends a client or server of others",
    needs=("mps", "root", "user-namespace"),
    limit_s=90,
    order=41,
    judge=judge_figures,
)
def userns(backend: Backend) -> Result:
    """A client first, then each command of H3 against a live server."""
    did: dict[str, Any] = {}
    for name, act in ACTS if backend.name == "real" else ACTS[:SIMULATED]:
        with scene_of(backend, name, MAPPED_ROOT) as attack:
            if not did:
                answer = _client(attack)
            did[name] = act(attack)
    return judge_figures({"effect_on_others": did, "served": bool(answer.get("ok")), "answer": answer})


def _client(attack: Attack) -> dict[str, Any]:
    """What a client that is root in its user namespace gets of the same daemon."""
    env = attack.backend.daemon_env(attack.daemon)
    client = attack.stack.enter_context(attack.backend.client(env, uid=MAPPED_ROOT, wait=False))
    with suppress(ClientTimeoutError):
        try:
            return dict(client.ready()) if not client.usable and "error" in client.ready() else client.ask(SERVED)
        except ClientGoneError as error:
            return {"error": -1, "name": str(error)}
    return {"error": -1, "name": "no answer"}
