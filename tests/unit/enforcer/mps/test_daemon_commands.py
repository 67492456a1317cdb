"""A client is terminated once: at a second command the server waits for it and answers nobody."""

import os
import subprocess
import sys
from collections.abc import Callable

from enforcer.mps.control_program import Deadline
from enforcer.mps.daemon_commands import DaemonCommands

SERVER = 7


class Control:
    """Answers each command with the next answer."""

    def __init__(self, *answers: str) -> None:
        self.asked, self._answers = list[str](), iter(answers)

    def ask(self, command: str, _: Deadline | None = None, ended: Callable[[], bool] = bool) -> str:
        assert not ended()
        self.asked.append(command)
        return next(self._answers)


def commands(*answers: str) -> tuple[DaemonCommands, Control]:
    control = Control(*answers)
    return DaemonCommands(control), control  # type: ignore[arg-type] # it sends commands as the program does


def test_a_client_in_the_list_after_its_termination_is_not_terminated_again() -> None:
    found, control = commands("0\n", "0\n")
    assert [found.terminate(SERVER, os.getpid()) for _ in range(3)] == [None] * 3
    assert len(control.asked) == 1
    assert found.terminate(SERVER + 1, os.getpid()) is None, "it is another server's client as well"
    assert len(control.asked) == 2


def test_one_that_was_refused_is_asked_for_again() -> None:
    found, control = commands("800\n", "0\n")
    assert found.terminate(SERVER, os.getpid()) == "800\n"
    assert found.terminate(SERVER, os.getpid()) is None
    assert len(control.asked) == 2


def test_who_has_ended_is_forgotten() -> None:
    found, control = commands(*["0\n"] * 3)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as client:
        found.terminate(SERVER, client.pid)
        client.communicate(b"\n")
    found.terminate(SERVER, client.pid)
    assert len(control.asked) == 2, "whose pid it is now is another client"
    found.terminate(SERVER, os.getpid())
    assert found._terminated.keys() == {(SERVER, os.getpid())}
