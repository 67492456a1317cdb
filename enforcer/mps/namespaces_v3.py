"""The namespaces of one MPS control daemon of protocol 3: one for each share, limited before it is given out.

From documentation only, see ``protocol_v3``. A daemon keeps nothing over its own end, so what there should be is held
here and put in force again whenever the daemon is looked at.
"""

import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final

import structlog

from enforcer.mps import protocol, protocol_v3
from enforcer.mps.client_v3 import NamespaceClient
from enforcer.mps.control import Deadline
from enforcer.mps.health_check import Checkup
from enforcer.mps.incidents import Incident, Incidents
from enforcer.mps.protocol_v3 import CAPPED, DEFAULT, SERVER, Space, SpaceRow
from gpushare.errors import GpuShareError, MpsError
from gpushare.reasons import Reason

ROOT: Final = 0
LONGEST: Final = f"{SERVER}/{protocol_v3.space_name('', '', CAPPED)}"

log = structlog.get_logger()


def check_pipe_path(pipe: Path) -> None:
    """Refuse a pipe directory in which a namespace's own would be too long. Raises ``ConfigError``."""
    protocol.check_pipe_path(str(pipe / LONGEST))


class Spaces:
    """What namespaces there should be. Safe to use from several threads.

    Args:
        gpu: UUID.
        pipe: pipe directory of the daemon.
    """

    def __init__(self, gpu: str, pipe: Path) -> None:
        self._gpu, self._pipe = gpu, pipe
        self._lock = threading.Lock()
        self._wanted: dict[tuple[str, str], tuple[str, Space]] = {}
        """By claim and request."""
        self._said: dict[str, str] = {}
        """What was last said of which, so that it is said once."""
        self._leaving: set[str] = set()
        """Beginnings of the names of those that could not be deleted when their claim was undone."""

    def restore(self, client: NamespaceClient, deadline: Deadline) -> list[str]:
        """Put server, ``default`` and all namespaces in force again, and delete those whose claims are undone.

        Returns:
            The names of those that had other limits.

        Raises:
            MpsError: the server does not come up, or ``default`` cannot be capped; one namespace that cannot be put
                right is only said.
        """
        with self._lock:
            self._open(client, deadline)
            rows = {row.name: row for row in client.spaces(deadline)}
            if changed := [DEFAULT] if DEFAULT not in rows or not rows[DEFAULT].has(CAPPED) else []:
                self._limit(client, DEFAULT, CAPPED, deadline)
            for name, space in self._wanted.values():
                self._put_right(client, name, space, rows.get(name), deadline)
                changed += [name] if name in rows and not rows[name].has(space) else []
            for prefix in list(self._leaving):
                self._delete(client, prefix, rows, deadline)
            return changed

    def give(self, client: NamespaceClient, claim: str, request: str, space: Space) -> Path:
        """Return the directory of a namespace that has these limits, and make it before where it is not there.

        One of other limits that the same share had before stays as long as the claim: containers have it mounted.

        Raises:
            MpsError: it cannot be made, or not be limited (reason ``MpsLimitNotApplied``); then there is none.
            ConfigError: its directory's path would be too long.
        """
        name, deadline = protocol_v3.space_name(claim, request, space), Deadline()
        where = self._pipe / SERVER / name
        protocol.check_pipe_path(str(where))
        with self._lock:
            rows = {row.name: row for row in client.spaces(deadline)}
            row = rows.get(name)
            if row is None:
                row = self._make(client, name, space, deadline)
            elif not row.has(space):
                row = self._change(client, row, space, deadline)
            if row.pipe != str(where):
                raise MpsError(f"MPS has namespace {name} in {row.pipe!r}; expected {str(where)!r}")
            self._wanted[claim, request] = name, space
        return where

    def drop(self, client: NamespaceClient | None, claim: str) -> None:
        """Delete the namespaces of a claim (its UID), at the next look where that is refused now."""
        prefix = protocol_v3.space_prefix(claim)
        with self._lock:
            self._wanted = {key: space for key, space in self._wanted.items() if key[0] != claim}
            if client is None:
                return
            self._leaving.add(prefix)
            try:
                deadline = Deadline()
                self._delete(client, prefix, [row.name for row in client.spaces(deadline)], deadline)
            except MpsError as error:
                log.info("MPS namespace left for later", reason=error.reason, gpu=self._gpu, error=error.message)

    def _open(self, client: NamespaceClient, deadline: Deadline) -> None:
        if any(row.name == SERVER for row in client.server_rows(deadline)):
            return
        client.start_server(ROOT, deadline)
        # A server that is to have a GPU which is not there is said to be created, and is on no list afterwards.
        if all(row.name != SERVER for row in client.server_rows(deadline)):
            raise MpsError(f"MPS created a server for {self._gpu}, and it is not on its list: does it see that GPU?")

    def _make(self, client: NamespaceClient, name: str, space: Space, deadline: Deadline) -> SpaceRow:
        client.create_space(name, deadline)
        try:
            return self._limit(client, name, space, deadline)
        except GpuShareError:
            # Not left without limits, though nobody has its path.
            self._leaving.add(name)
            self._delete(client, name, (name,), deadline)
            raise

    def _change(self, client: NamespaceClient, row: SpaceRow, space: Space, deadline: Deadline) -> SpaceRow:
        try:
            return self._limit(client, row.name, space, deadline)
        except MpsError as error:
            if not row.limited:
                raise
            # Somebody changed its limits, and with clients in it they cannot be put right now.
            self._say(error, row.name)
            return row

    def _put_right(
        self, client: NamespaceClient, name: str, space: Space, row: SpaceRow | None, deadline: Deadline
    ) -> None:
        try:
            if row is None:
                self._make(client, name, space, deadline)
            elif not row.has(space):
                self._limit(client, name, space, deadline)
        except MpsError as error:
            self._say(error, name)

    def _limit(self, client: NamespaceClient, name: str, space: Space, deadline: Deadline) -> SpaceRow:
        client.limit_space(name, space, deadline)
        row = next((each for each in client.spaces(deadline) if each.name == name), None)
        if row is None or not row.has(space):
            said = "nothing" if row is None else f"{row.limit}, {row.percentage}, {row.priority}"
            told = f"{space.memory_mib} MiB, {space.percentage} percent, priority {space.priority}"
            message = f"MPS was told to limit namespace {name} to {told}, and now says {said}"
            raise MpsError(message, Reason.MPS_LIMIT_NOT_APPLIED)
        return row

    def _delete(self, client: NamespaceClient, prefix: str, names: Collection[str], deadline: Deadline) -> None:
        try:
            for name in [each for each in names if each.startswith(prefix) and protocol_v3.is_ours(each)]:
                client.delete_space(name, deadline)
            left = [row.name for row in client.spaces(deadline) if row.name.startswith(prefix)]
        except MpsError as error:
            self._say(error, prefix)
            return
        if not left:
            self._leaving.discard(prefix)
            self._said = {name: said for name, said in self._said.items() if not name.startswith(prefix)}

    def _say(self, error: MpsError, name: str) -> None:
        if self._said.get(name) == error.message:
            return
        self._said[name] = error.message
        said = "MPS namespace not as it should be"
        log.warning(said, reason=error.reason, gpu=self._gpu, space=name, error=error.message)


class NamespaceCheckup(Checkup):
    """The same look at a daemon that has namespaces: theirs are the limits that somebody may have changed."""

    def __init__(self, gpu: str, client: NamespaceClient, spaces: Spaces, incidents: Incidents) -> None:
        super().__init__(gpu, client, CAPPED.memory_mib, incidents)
        self._spaces, self._asked = spaces, client

    def _restore(self, deadline: Deadline) -> None:
        changed = self._spaces.restore(self._asked, deadline)
        if changed:
            note = f"limits of {len(changed)} namespaces of the MPS daemon of {self._gpu} had been changed"
            self._incidents.tell(Incident(self._gpu, Reason.MPS_TAMPERED, note), spaces=changed)
