"""Locks by name."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class KeyedLock:
    """One lock for each name that is in use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._used: dict[str, tuple[threading.Lock, int]] = {}

    def is_taken(self, name: str) -> bool:
        """Tell whether somebody holds the lock of a name, or waits for it."""
        with self._guard:
            return name in self._used

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """Hold the lock of a name."""
        with self._guard:
            lock, users = self._used.get(name, (threading.Lock(), 0))
            self._used[name] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._used.pop(name)
                if users > 1:
                    self._used[name] = (lock, users - 1)
