"""PreparedClaim claims on disk, one file each: preparing one touches no other, and undoing works on a full disk.

``claims/<uid>.json`` in the state directory is a claim that was prepared and not undone. ``claims/<uid>.ending`` is one
that was unprepared while processes of its pod still used GPU memory: its content is the same, for it is renamed.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from enforcer.dra.prepared_claim import PreparedClaim, decode, encode, safe_uid
from enforcer.quota.types import Mode
from enforcer.runtime.files import replace
from gpushare.errors import ConfigError, NewerFormatError
from gpushare.files import read_regular_file, sync
from gpushare.reasons import Reason

FOLDER: Final = "claims"
PREPARED: Final = ".json"
ENDING: Final = ".ending"
MAX_BYTES: Final = 1024 * 1024

log = structlog.get_logger()


class ClaimStore:
    """The claims of this node. Safe to use from several threads; raises ``OSError`` where the disk refuses."""

    def __init__(self, state: Path) -> None:
        self._folder: Final = state / FOLDER
        self._lock = threading.Lock()
        self._prepared: dict[str, PreparedClaim] = {}
        self._ending: dict[str, PreparedClaim] = {}
        self._loaded = False
        self.unreadable: dict[str, str] = {}
        """By file name, why it cannot be read. Such a file stays until its claim is prepared again or undone."""

    def load(self) -> None:
        """Read what a driver before us left; what it was writing when it died is removed."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file in sorted(self._folder.iterdir()):
            if file.name.startswith("."):
                file.unlink(missing_ok=True)
            elif file.suffix in {PREPARED, ENDING}:
                self._load(file)
        self._loaded = True

    def get(self, uid: str) -> PreparedClaim | None:
        """Find a prepared claim."""
        with self._lock:
            return self._prepared.get(uid)

    def prepared(self) -> tuple[PreparedClaim, ...]:
        """All that are prepared, in a stable order."""
        with self._lock:
            return tuple(self._prepared[uid] for uid in sorted(self._prepared))

    def terminating(self) -> tuple[PreparedClaim, ...]:
        """All that were undone while processes of theirs lived on."""
        with self._lock:
            return tuple(self._ending[uid] for uid in sorted(self._ending))

    def modes(self) -> dict[str, Mode] | None:
        """See ``PreparedClaims``."""
        with self._lock:
            claims = [*self._ending.values(), *self._prepared.values()]
        return {gpu: mode for claim in claims for gpu, mode in claim.modes.items()} if self._loaded else None

    def gpus(self) -> frozenset[str] | None:
        """See ``PreparedClaims``."""
        claims = (*self.prepared(), *self.terminating())
        return frozenset(gpu for claim in claims for gpu in claim.gpus) if self._loaded else None

    def namespaces(self) -> frozenset[str]:
        """See ``PreparedClaims``."""
        return frozenset(each.namespace for each in self.prepared())

    def terminating_pods(self) -> frozenset[str]:
        """See ``PreparedClaims``: memory of these pods cannot be shared yet."""
        lasting = {each.pod_uid for each in self.prepared()}
        return frozenset(each.pod_uid for each in self.terminating()) - lasting

    def corrupt(self) -> frozenset[str]:
        """The claims whose files cannot be read."""
        with self._lock:
            return frozenset(Path(name).stem for name in self.unreadable if name.endswith(PREPARED))

    def put(self, claim: PreparedClaim) -> None:
        """Keep a claim, durably; a file that a newer release wrote stays, and the claim is known until we end."""
        path, newer = self._path(claim.uid, PREPARED), False
        try:
            replace(path, encode(claim), durable=True)
        except NewerFormatError:
            newer = True
        with self._lock:
            self._prepared[claim.uid] = claim
            if not newer:
                self.unreadable.pop(path.name, None)

    def remove(self, uid: str, *, ending: bool = False) -> None:
        """Let go of a claim, durably; remember it as ending where processes of its pod live on."""
        claim, path = self.get(uid), self._path(uid, PREPARED)
        with suppress(FileNotFoundError):
            if ending and claim is not None:
                path.rename(self._path(uid, ENDING))
            else:
                path.unlink()
        sync(self._folder)  # also where no file is left: the call that removed it may have failed here
        with self._lock:
            self._prepared.pop(uid, None)
            self.unreadable.pop(path.name, None)
            if ending and claim is not None:
                self._ending[uid] = claim

    def forget(self, uid: str) -> None:
        """Forget a claim whose processes have ended."""
        self._path(uid, ENDING).unlink(missing_ok=True)
        with self._lock:
            self._ending.pop(uid, None)

    def problems(self) -> Iterator[str]:
        """Say which files cannot be read."""
        with self._lock:
            found = dict(self.unreadable)
        yield from (f"the enforcer cannot read {FOLDER}/{name}: {why}" for name, why in sorted(found.items()))

    def _load(self, file: Path) -> None:
        try:
            claim = _read(file)
        except (OSError, ConfigError) as error:
            self.unreadable[file.name] = str(error)
            log.error(  # noqa: TRY400 - a sentence, no traceback
                "claim not read", reason=str(Reason.CHECKPOINT_UNREADABLE), file=file.name, error=str(error)
            )
        else:
            (self._prepared if file.suffix == PREPARED else self._ending)[claim.uid] = claim

    def _path(self, uid: str, suffix: str) -> Path:
        if not safe_uid(uid):
            raise ConfigError(f"invalid claim UID {uid!r:.80}", Reason.INVALID_VALUE)
        return self._folder / f"{uid}{suffix}"


def _read(file: Path) -> PreparedClaim:
    claim = decode(read_regular_file(file, MAX_BYTES))
    if claim.uid != file.stem:
        raise ConfigError(
            (
                f"the file contains ResourceClaim {claim.uid}, but its file name is another UID; move the file "
                "away and restart the enforcer"
            ),
            Reason.CHECKPOINT_UNREADABLE,
        )
    return claim
