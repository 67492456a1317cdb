"""The modes of a node's GPUs as they are now: what its label says, what tenants hold, what is just being done."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

import structlog

from enforcer.quota.sharing_mode import SharingModes, parse_mode
from enforcer.quota.types import Mode
from gpushare.errors import ConfigError
from gpushare.reasons import Reason

log = structlog.get_logger()


class SharingModeController:
    """The modes of a node's GPUs, as they are now. Any thread may ask.

    Args:
        default: the operator's, for a node without a label.
        complain: told what is wrong with the node's label.
        changed: set when daemons may have to be started or ended.
    """

    def __init__(
        self,
        default: Mode = Mode.MPS,
        complain: Callable[[str], object] = lambda _: None,
        changed: threading.Event | None = None,
    ) -> None:
        self._default, self._complain = default, complain
        self._labelled = True
        self._wanted: Mode | None = None
        self._held: Callable[[], Mapping[str, Mode]] | None = None
        self._kept: dict[str, tuple[Mode | None, int]] = {}
        self._lock = threading.Lock()
        self.changed: Final = changed or threading.Event()
        self.problem: str | None = None
        """What is wrong with the node's label; ``None`` where nothing is."""

    @classmethod
    def fixed(cls, mode: Mode = Mode.MPS) -> Self:
        """Every GPU is shared like this, whatever the node's label says."""
        modes = cls(mode)
        modes._labelled, modes._wanted = False, mode
        modes.follow(dict)
        return modes

    def follow(self, held: Callable[[], Mapping[str, Mode]]) -> None:
        """Learn from now on how the GPUs of prepared claims are shared. Before that nothing is known of any GPU."""
        self._held = held
        self.changed.set()

    def read(self, node: Mapping[str, Any]) -> SharingModes:
        """Take in what the node's object says now."""
        if self._labelled:
            try:
                wanted, problem = parse_mode(node, self._default), None
            except ConfigError as error:
                wanted, problem = None, error.message
            self._take(wanted, problem)
        return self.now()

    def now(self) -> SharingModes:
        """Say all that is known."""
        with self._lock:
            return self._now()

    def of(self, gpu: str) -> Mode | None:
        """Say how a GPU is shared now; ``None``: that is not known, or it is not shared."""
        return self.now().of(gpu)

    @contextmanager
    def kept(self, gpus: Iterable[str]) -> Iterator[Mapping[str, Mode | None]]:
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
        if self._held is None:
            return SharingModes(None)
        kept = {gpu: mode for gpu, (mode, _) in self._kept.items() if mode is not None}
        return SharingModes(self._wanted, {**self._held(), **kept}, self.problem)

    def _let_go(self, gpus: Iterable[str]) -> None:
        for gpu in gpus:
            mode, users = self._kept.pop(gpu)
            if users > 1:
                self._kept[gpu] = (mode, users - 1)

    def _take(self, wanted: Mode | None, problem: str | None) -> None:
        before, self._wanted, self.problem = (self._wanted, self.problem), wanted, problem
        if before == (wanted, problem):
            return
        if problem is not None:
            self._complain(problem)
        else:
            log.info("sharing mode selected", reason=str(Reason.MODE_SELECTED), mode=str(wanted))
        self.changed.set()
