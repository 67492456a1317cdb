"""Each sharing pod's status file, ``<run>/status/<pod uid>/status.json``.

The folder is made and removed with the pod's claim, by others; its sidecar mounts it read-only. Here a file is written
into it where it is there, whole, readable by everybody, when something changed and every few seconds anyway.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from enforcer.quota.types import Quota
from enforcer.runtime import files
from enforcer.runtime.background import BackgroundExecutor
from enforcer.runtime.clock import CLOCK, Clock
from enforcer.status.events import KEPT, EventRecorder
from enforcer.status.messages import Message
from enforcer.status.node_status import Snapshot
from enforcer.status.pod_status import NAME, Peaks, Seen, by_pod, pod_status
from gpushare.files import read_regular_file
from gpushare.patterns import Pattern
from gpushare.reasons import Reason

log = structlog.get_logger()

FOLDER: Final = "status"
REFRESH: Final = 5.0
"""Seconds after which a file is written again: an old one tells the sidecar that nobody watches."""
MAX_BYTES: Final = 256 * 1024
UNREADABLE: Final = (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError)
"""What comes of a file that is none of ours."""
_UID: Final = Pattern(r"[A-Za-z0-9-]{1,64}", 64)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a pod's file says, when that was written, and what it was made of; see ``PodStatusWriter._made_of``."""

    content: dict[str, Any]
    when: float
    made_of: object


class PodStatusWriter:
    """Writes the files.

    Args:
        run: the run directory.
        events: has the messages to each pod.
        serves: whether the MPS daemon of a GPU, by UUID, takes clients.
    """

    def __init__(
        self,
        run: Path,
        events: EventRecorder,
        serves: Callable[[str], bool],
        clock: Clock = CLOCK,
    ) -> None:
        self._folder, self._events, self._serves, self._clock = run / FOLDER, events, serves, clock
        self._disk = BackgroundExecutor(f"the disk of {run}")
        self._place = str(self._folder)
        self._written: dict[str, WrittenFile] = {}
        self._peaks: dict[str, dict[tuple[str, str], int]] = {}
        self._pods: tuple[int, Mapping[str, tuple[Quota, ...]]] = 0, {}
        """Of the last edition."""
        self._failing: set[str] = set()
        self.peaks: Mapping[tuple[str, str, str], int] = {}
        """MiB that each container used at most, by pod UID, container and GPU. Replaced whole, never changed."""

    @property
    def problem(self) -> str | None:
        """That the files cannot be brought up to date, because the disk hangs."""
        return self._disk.problem

    def write(self, snapshot: Snapshot) -> None:
        """Bring the files up to date; of pods without quotas nothing is kept. Does not wait for long."""
        self._disk.reset_budget()
        self._disk.run_within("files", partial(self._write, snapshot), None)

    def _write(self, snapshot: Snapshot) -> None:
        pods = self._sorted(snapshot)
        self._forget(pods.keys())
        seen = Seen.of(snapshot)
        serving = {gpu: self._serves(gpu) for gpu in seen.views}
        for uid, quotas in pods.items():
            if self._has_folder(uid):
                messages = self._known(uid)
                made_of = snapshot.edition, serving, messages
                if not self._is_current(uid, made_of):
                    peaks = self._peaks_of(uid, seen, quotas)
                    self._put(uid, pod_status(seen, quotas, messages, self._serves, peaks), made_of)
        self.peaks = {(uid, *place): mib for uid, each in self._peaks.items() for place, mib in each.items()}

    def _sorted(self, snapshot: Snapshot) -> Mapping[str, tuple[Quota, ...]]:
        edition, pods = self._pods
        if not edition or edition != snapshot.edition:
            pods = {uid: quotas for uid, quotas in by_pod(snapshot.quotas).items() if _UID.fullmatch(uid)}
            self._pods = snapshot.edition, pods
        return pods

    def _is_current(self, uid: str, made_of: tuple[int, Mapping[str, bool], tuple[Message, ...]]) -> bool:
        """Whether what a pod's file would be made of is what it was made of, and that not long ago."""
        before = self._written.get(uid)
        if not made_of[0] or before is None or before.made_of != made_of:
            return False
        return self._clock.monotonic() - before.when < REFRESH

    def _has_folder(self, uid: str) -> bool:
        """Whether a pod's file can be there: not where its claim is not prepared yet, gone again, or has no sidecar."""
        folder = f"{self._place}/{uid}"  # at every look for every pod: a path object costs more than the call
        if os.path.exists(f"{folder}/{NAME}"):  # noqa: PTH110 - a path object costs more than the call
            return True
        self._written.pop(uid, None)  # whatever was written is not there
        return os.path.isdir(folder)  # noqa: PTH112 - a path object costs more than the call

    def _forget(self, but: Any) -> None:
        self._events.forget(but)
        for uid in self._written.keys() - but:
            del self._written[uid]
        for uid in self._peaks.keys() - but:
            del self._peaks[uid]
        self._failing &= but

    def _known(self, uid: str) -> tuple[Message, ...]:
        """Return the messages to a pod; those of an enforcer before this one stay."""
        before = () if uid in self._written else load_previous(self._folder / uid / NAME)
        return self._events.messages(uid, before)

    def _peaks_of(self, uid: str, seen: Seen, quotas: Sequence[Quota]) -> Peaks:
        """Return the peaks of a pod, this look included; those that an enforcer before this one wrote count."""
        if (peaks := self._peaks.get(uid)) is None:
            peaks = self._peaks[uid] = load_peaks(self._folder / uid / NAME)
        for quota in quotas:
            if (used := seen.used(quota)) is not None:
                place = quota.container, quota.gpu
                peaks[place] = max(used, peaks.get(place, 0))
        return peaks

    def _put(self, uid: str, found: dict[str, Any], made_of: object) -> None:
        content = {key: value for key, value in found.items() if key != "time"}
        before = self._written.get(uid, WrittenFile({}, 0.0, None))
        if content == before.content and self._clock.monotonic() - before.when < REFRESH:
            self._written[uid] = replace(before, made_of=made_of)
            return
        try:
            data = json.dumps(found).encode() + b"\n"
            files.replace(self._folder / uid / NAME, data, report=True, readable=True)
        except FileNotFoundError:  # the folder has just gone
            self._written.pop(uid, None)
        except OSError as error:
            self._complain(uid, error)
        else:
            self._written[uid] = WrittenFile(content, self._clock.monotonic(), made_of)
            self._failing.discard(uid)

    def _complain(self, uid: str, error: OSError) -> None:
        if uid not in self._failing:
            log.warning("pod status not written", reason=str(Reason.AUDIT_UNWRITABLE), pod_uid=uid, error=str(error))
        self._failing.add(uid)


def load_previous(file: Path) -> tuple[Message, ...]:
    """Read the messages of a file written before; none from what is no such file."""
    with suppress(*UNREADABLE):
        raw = json.loads(read_regular_file(file, MAX_BYTES))
        return tuple(Message(str(each["time"]), str(each["text"])) for each in raw["messages"][-KEPT:])
    return ()


def load_peaks(file: Path) -> dict[tuple[str, str], int]:
    """Read the peaks of a file written before; none from what is no such file, or older than peaks."""
    with suppress(*UNREADABLE):
        raw = json.loads(read_regular_file(file, MAX_BYTES))
        found = [(str(each["container"]), str(each["gpu"]), each.get("peakMiB")) for each in raw["containers"]]
        return {(container, gpu): mib for container, gpu, mib in found if isinstance(mib, int)}
    return {}
