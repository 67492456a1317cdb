"""The modes of a node's GPUs as they are now: what its label says, what tenants hold, what is just being done."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from enforcer.quota.prepared_claims import PreparedClaims
from enforcer.quota.sharing_mode import SharingModes, parse_mode
from enforcer.quota.types import Mode
from gpushare.errors import ConfigError
from gpushare.reasons import Reason

log = structlog.get_logger()


class SharingModeController:
    """The modes of a node's GPUs, as they are now. Any thread may ask.

    Args:
        claims: keep the mode of their GPUs. Where the label is heeded, no mode is known until they were read.
        default: the operator's, for a node without a label.
        changed: set when daemons may have to be started or ended.
        labelled: whether the node's label is heeded; if not, every GPU has the default.
    """

    def __init__(
        self, claims: PreparedClaims, default: Mode, changed: threading.Event, *, labelled: bool = True
    ) -> None:
        self._claims, self._default, self._changed, self._labelled = claims, default, changed, labelled
        self._wanted = None if labelled else default
        self._kept: dict[str, tuple[Mode | None, int]] = {}
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self.problem: str | None = None
        """What is wrong with the node's label; ``None`` where nothing is."""

    def read_node(self, read: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Read the node's object, and take in what it says. One thread at a time, so that the newest is the last taken.

        Args:
            read: gets the object; what it raises is raised.
        """
        with self._reading:
            node = read()
            self.update_from_node(node)
        return node

    def update_from_node(self, node: Mapping[str, Any]) -> SharingModes:
        """Take in what the node's object says now."""
        if self._labelled:
            try:
                wanted, problem = parse_mode(node, self._default), None
            except ConfigError as error:
                wanted, problem = None, error.message
            self._take(wanted, problem)
        return self.current()

    def current(self) -> SharingModes:
        """Say all that is known."""
        with self._lock:
            return self._now()

    def of(self, gpu: str) -> Mode | None:
        """Say how a GPU is shared now; ``None``: that is not known, or it is not shared."""
        return self.current().of(gpu)

    def has_daemon(self, gpu: str) -> bool:
        """Say whether a GPU has an MPS daemon, or is to have one as soon as it is shared."""
        return self.of(gpu) in {None, Mode.MPS}

    @contextmanager
    def hold(self, gpus: Iterable[str]) -> Iterator[Mapping[str, Mode | None]]:
        """Keep GPUs in the mode they are in now, by UUID, while a claim is prepared for it or a daemon ended."""
        mine = frozenset(gpus)
        with self._lock:
            now = self._now()
            found = {gpu: now.of(gpu) for gpu in mine}
            for gpu, mode in found.items():
                self._kept[gpu] = (mode, self._kept.get(gpu, (mode, 0))[1] + 1)
        try:
            yield found
        finally:
            with self._lock:
                self._let_go(mine)

    def _now(self) -> SharingModes:
        prepared = self._claims.modes()
        if prepared is None and self._labelled:
            return SharingModes(None)
        kept = {gpu: mode for gpu, (mode, _) in self._kept.items() if mode is not None}
        return SharingModes(self._wanted, {**(prepared or {}), **kept}, self.problem)

    def _let_go(self, gpus: Iterable[str]) -> None:
        for gpu in gpus:
            mode, users = self._kept.pop(gpu)
            if users > 1:
                self._kept[gpu] = (mode, users - 1)

    def _take(self, wanted: Mode | None, problem: str | None) -> None:
        before, self._wanted, self.problem = (self._wanted, self.problem), wanted, problem
        if before == (wanted, problem):
            return
        if problem is None:
            log.info("sharing mode selected", reason=str(Reason.MODE_SELECTED), mode=str(wanted))
        self._changed.set()
