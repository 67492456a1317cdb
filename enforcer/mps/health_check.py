"""One look at a daemon that answers: its defaults, which any tenant can change, and how its servers are.

A fatal GPU error puts a server into FAULT. It then takes no new client until every one that it had is gone (NVIDIA's
order); all of them have lost their contexts already. So new shares are kept away, and those that linger are let go of
through MPS; the processes themselves are nobody's to end for that: they are innocent, and most end by their error.
"""

import time
from collections.abc import Mapping
from typing import Final

from enforcer.mps.control_program import Deadline
from enforcer.mps.daemon_commands import DaemonCommands
from enforcer.mps.incidents import Incident, IncidentLog
from enforcer.mps.protocol import WHOLE, ServerStatus
from gpushare.errors import MpsError
from gpushare.reasons import Reason

INITIALIZING_SECONDS: Final = 60.0
"""A server may take so long to come up; then it never will."""


class HealthCheck:
    """Looks at one daemon, again and again.

    Args:
        gpu: its GPU's UUID.
        client: asks it.
        limit_mib: default limit of its clients.
        incidents: takes what was wrong.
    """

    def __init__(self, gpu: str, client: DaemonCommands, limit_mib: int, incidents: IncidentLog) -> None:
        self._gpu, self._client, self._limit_mib, self._incidents = gpu, client, limit_mib, incidents
        self._initializing: dict[int, float] = {}
        self._faulty: frozenset[int] = frozenset()

    def run(self, deadline: Deadline) -> Mapping[int, ServerStatus | None]:
        """Put defaults right, and say how each server is.

        Raises:
            MpsError: it does not answer or does not keep its settings; or (reason ``MpsFault``) a server takes nobody.
        """
        self._restore(deadline)
        found = {server: self._client.status(server, deadline) for server in self._client.servers(deadline)}
        self._await(found)
        self._clear(found, deadline)
        return found

    def _restore(self, deadline: Deadline) -> None:
        """Set right what was changed. From 1 GiB on the answer is coarse, so the limit is set in any case."""
        changed = []
        try:
            self._client.check_limit(self._limit_mib, deadline)
        except MpsError as error:
            if error.reason is not Reason.MPS_LIMIT_NOT_APPLIED:
                raise
            changed.append("the memory limit")
        self._client.set_limit(self._limit_mib, deadline)
        if self._client.percentage(deadline) != WHOLE:
            changed.append("the thread percentage")
            self._client.set_percentage(WHOLE, deadline)
        if changed:
            note = (
                f"a process changed {' and '.join(changed)} of the MPS daemon of {self._gpu}; the enforcer "
                "restored its own setting"
            )
            self._incidents.record(Incident(self._gpu, Reason.MPS_TAMPERED, note))

    def _await(self, found: Mapping[int, ServerStatus | None]) -> None:
        """Be patient with servers that come up."""
        now = time.monotonic()
        coming = {server for server, status in found.items() if status is ServerStatus.INITIALIZING}
        self._initializing = {server: self._initializing.get(server, now) for server in coming}
        late = [server for server, since in self._initializing.items() if now - since > INITIALIZING_SECONDS]
        if late:
            longer = f"has been starting for more than {INITIALIZING_SECONDS:.0f} s and accepts no clients"
            raise MpsError(f"the MPS server of {self._gpu} (pid {late[0]}) {longer}", Reason.MPS_FAULT)

    def _clear(self, found: Mapping[int, ServerStatus | None], deadline: Deadline) -> None:
        """Let go of the clients of servers that were in FAULT at the last look already."""
        before, self._faulty = self._faulty, frozenset(s for s, status in found.items() if status is ServerStatus.FAULT)
        if not self._faulty:
            if before:
                self._incidents.record(
                    Incident(self._gpu, Reason.RECOVERED, f"the MPS server of {self._gpu} accepts clients again")
                )
            return
        lingering = [(server, pid) for server in self._faulty for pid in self._client.clients(server, deadline)]
        for server, pid in lingering:
            if server in before:
                self._client.terminate(server, pid, deadline)
        note = f"a GPU fault stopped the MPS server of {self._gpu}: it accepts no client until its old clients exit"
        pids = [pid for _, pid in lingering]
        self._incidents.record(Incident(self._gpu, Reason.MPS_FAULT, note), lingering=pids)
        raise MpsError(f"{note} ({len(pids)} left)", Reason.MPS_FAULT)
