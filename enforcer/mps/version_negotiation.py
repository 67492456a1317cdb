"""How one MPS control daemon is spoken to: as it speaks itself, whatever it was to be started with.

A daemon outlives the agent and its settings, and programs follow the daemon that runs. So before anything else it is
found out which protocol it answers in; the other one is tried only where the expected one fails.
"""

from pathlib import Path
from typing import Final

import structlog

from enforcer.mps import protocol
from enforcer.mps.client_v3 import NamespaceClient, Running, talkers
from enforcer.mps.control import Deadline
from enforcer.mps.health_check import Checkup
from enforcer.mps.incidents import Incidents
from enforcer.mps.launcher import Version
from enforcer.mps.namespaces_v3 import NamespaceCheckup, Spaces, check_pipe_path
from enforcer.mps.protocol_v3 import Space
from gpushare.errors import MpsError
from gpushare.reasons import Reason

log = structlog.get_logger()


class Speech:
    """One daemon's.

    Args:
        gpu: UUID.
        pipe: its pipe directory.
        control: runs the control program.
        limit_mib: default limit of its clients, where it has no namespaces.
        incidents: told of what was wrong.
        version: the protocol it is started with.

    Raises:
        ConfigError: the pipe directory is too long for namespaces, and there may be some.
    """

    def __init__(
        self, gpu: str, pipe: Path, control: Running, limit_mib: int, incidents: Incidents, version: Version
    ) -> None:
        if version is not Version.LEGACY:
            check_pipe_path(pipe)
        self._gpu, self._pipe, self._limit_mib, self._incidents = gpu, pipe, limit_mib, incidents
        self.version: Final = version
        self.spaces = Spaces(gpu, pipe)
        self.client, self._other = talkers(version, control, gpu)
        self.checkup = self._new_checkup()

    @property
    def namespaces(self) -> bool:
        """Whether it speaks protocol 3, as far as is known."""
        return isinstance(self.client, NamespaceClient)

    def find(self, deadline: Deadline | None = None) -> None:
        """Make sure that it answers, and speak as it does. Raises ``MpsError``: what the expected protocol met."""
        try:
            self.client.alive(deadline)
        except MpsError as error:
            if protocol.NO_DAEMON in error.message or error.reason is Reason.CONTROL_BLOCKED:
                raise
            if not self._answers_otherwise(deadline):
                raise

    def limit(self) -> None:
        """Put the limits of clients in force. Raises ``MpsError``."""
        if isinstance(self.client, NamespaceClient):
            self.spaces.restore(self.client, Deadline())
        else:
            self.client.set_limit(self._limit_mib)

    def give(self, claim: str, request: str, space: Space) -> Path:
        """Return what a claim's request gets as pipe directory: of its namespace, if there are any.

        Raises:
            MpsError: none can be made with these limits, or nobody can be asked.
        """
        if self.version is Version.LEGACY and not self.namespaces:
            return self._pipe
        self.find()
        if isinstance(self.client, NamespaceClient):
            return self.spaces.give(self.client, claim, request, space)
        return self._pipe

    def inherit(self, before: "Speech") -> None:
        """Take over what namespaces there should be."""
        self.spaces = before.spaces
        self.checkup = self._new_checkup()

    def drop(self, claim: str) -> None:
        """Delete the namespaces of a claim (its UID), now or later."""
        self.spaces.drop(self.client if isinstance(self.client, NamespaceClient) else None, claim)

    def _answers_otherwise(self, deadline: Deadline | None) -> bool:
        try:
            self._other.alive(deadline)
        except MpsError as error:
            if error.reason is Reason.CONTROL_BLOCKED:
                raise
            return False
        self.client, self._other = self._other, self.client
        self.checkup = self._new_checkup()
        log.info("MPS daemon speaks", reason=str(Reason.MPS_STARTED), gpu=self._gpu, namespaces=self.namespaces)
        return True

    def _new_checkup(self) -> Checkup:
        if isinstance(self.client, NamespaceClient):
            return NamespaceCheckup(self._gpu, self.client, self.spaces, self._incidents)
        return Checkup(self._gpu, self.client, self._limit_mib, self._incidents)
