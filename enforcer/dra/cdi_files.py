"""The files that containers are made from: CDI specs, and the directories of pods' status."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import structlog
import yaml

from enforcer.dra import cdi
from enforcer.dra.client_memory import ClientMemory
from enforcer.dra.prepared_claim import PreparedClaim, safe_uid
from enforcer.mps.launcher import pipe_of
from enforcer.quota.types import Mode
from enforcer.runtime import files
from gpushare import contract
from gpushare.errors import PrepareError
from gpushare.files import read_regular_file
from gpushare.memory_fraction import Reserve
from gpushare.reasons import Reason

log = structlog.get_logger()

ADMIN_CDI: Final = Path("/etc/cdi")
"""The other directory that runtimes read; NVIDIA's toolkit may write there."""
MAX_SPEC: Final = 4 * 1024 * 1024
LEAVING: Final = ".leaving-"
STATUS: Final = "status"


class CdiFileStore:
    """Writes and removes them. Everything may be done twice; raises ``OSError`` where the disk refuses.

    Args:
        cdi_root: directory of CDI specs that are made at run time.
        run: directory below which pods' status directories are.
        mps: whether this node has MPS daemons.
        memory: what clients of MPS get as /dev/shm; ``None``: each container its own.
        reserve: what limits keep in reserve; ``None``: the default.
    """

    def __init__(
        self,
        cdi_root: Path,
        run: Path,
        *,
        mps: bool,
        memory: ClientMemory | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        self._client_memory, self._reserve = memory, reserve
        self._memory_before: str | None = ""  # equals no answer: what was written before NVML answered may be wrong
        self._cdi, self._run, self._status, self._mps = cdi_root, run, run / STATUS, mps
        self._toolkit = ToolkitSpecs((cdi_root, ADMIN_CDI))

    def write(self, claim: PreparedClaim) -> dict[str, tuple[str, ...]]:
        """Write what a claim's containers need; by request, the CDI devices to give them.

        NVIDIA's own device comes first: where both set a variable, ours is the last word.

        Raises:
            PrepareError: a GPU that is shared through MPS has no daemon here.
        """
        pipes = {gpu: pipe_of(self._run, gpu) for gpu in claim.gpus} if self._mps else {}
        lacking = [gpu for gpu, mode in claim.modes.items() if mode is Mode.MPS and gpu not in pipes]
        if lacking:
            message = f"no MPS daemon runs for {lacking[0]} on this node, and a share of this GPU needs the daemon"
            raise PrepareError(message, Reason.MPS_UNREACHABLE)
        if claim.has_status:
            self._make_status(claim.pod_uid)
        by_request = {each.request: pipes[each.gpu] for each in claim.granted if each.gpu and each.gpu in pipes}
        status = str(self._status / claim.pod_uid)
        document = cdi.document(claim, by_request, status, self._memory(), self._reserve)
        put(self._cdi / cdi.file_name(claim.uid), json.dumps(document, indent=1).encode() + b"\n")
        requests = dict.fromkeys(each.request for each in claim.granted)
        return {each: (*self._toolkit_devices(claim, each), cdi.device_id(claim, each)) for each in requests}

    def memory_changed(self) -> bool:
        """Say whether clients get another shared memory than when this was asked last."""
        before, self._memory_before = self._memory_before, self._memory()
        return before != self._memory_before

    @property
    def memory_made(self) -> bool:
        """Whether clients get the node's shared memory: an MPS pod has made it, and the driver needs it."""
        return self._memory() is not None

    def _memory(self) -> str | None:
        return None if self._client_memory is None else self._client_memory.folder()

    def remove(self, uid: str) -> None:
        """Remove a claim's spec."""
        if safe_uid(uid):
            (self._cdi / cdi.file_name(uid)).unlink(missing_ok=True)

    def remove_status(self, pod_uid: str) -> None:
        """Remove a pod's status directory; out of sight first, so that nobody writes into it meanwhile."""
        if not safe_uid(pod_uid):
            return
        leaving = self._status / f"{LEAVING}{pod_uid}"
        with suppress(FileNotFoundError):
            (self._status / pod_uid).rename(leaving)
        with suppress(FileNotFoundError):
            shutil.rmtree(leaving)

    def cleanup(self) -> None:
        """Remove what a driver before us was just writing, or removing, when it died."""
        for file in _listed(self._cdi):
            if file.name.startswith(f".{contract.CDI_FILE_PREFIX}"):
                file.unlink(missing_ok=True)
        for folder in _listed(self._status):
            if folder.name.startswith(LEAVING):
                shutil.rmtree(folder)

    def claims(self) -> frozenset[str]:
        """UIDs of the claims that have a spec."""
        uids = (cdi.claim_of_file(file.name) for file in _listed(self._cdi))
        return frozenset(uid for uid in uids if uid is not None)

    def pods(self) -> frozenset[str]:
        """UIDs of the pods that have a status directory."""
        return frozenset(folder.name for folder in _listed(self._status) if not folder.name.startswith(LEAVING))

    def _make_status(self, pod_uid: str) -> None:
        folder = self._status / pod_uid
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.chmod(0o755)  # the sidecar is another user, whatever our umask

    def _toolkit_devices(self, claim: PreparedClaim, request: str) -> tuple[str, ...]:
        there = self._toolkit.devices()
        return tuple(cdi.toolkit_device(each.gpu) for each in claim.of(request) if each.gpu and each.gpu in there)


class ToolkitSpecs:
    """Finds the CDI devices of NVIDIA's container toolkit; a spec is read again only when it has changed."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self._folders = folders
        self._lock = threading.Lock()
        self._seen: dict[Path, tuple[tuple[int, int], frozenset[str]]] = {}

    def devices(self) -> frozenset[str]:
        """Name all devices there are now."""
        with self._lock:
            found = {file: entry for file in self._specs() if (entry := self._entry(file)) is not None}
            self._seen = found
            return frozenset[str]().union(*(names for _, names in found.values()))

    def _specs(self) -> Iterator[Path]:
        for folder in self._folders:
            for file in _listed(folder):
                if file.suffix in {".json", ".yaml"} and cdi.claim_of_file(file.name) is None:
                    yield file

    def _entry(self, file: Path) -> tuple[tuple[int, int], frozenset[str]] | None:
        try:
            stat = file.stat()
            version = (stat.st_mtime_ns, stat.st_size)
            if file in self._seen and self._seen[file][0] == version:
                return self._seen[file]
            return version, cdi.names_devices(_parsed(file) if stat.st_size <= MAX_SPEC else None)
        except OSError:
            return None


UNPARSED: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, yaml.YAMLError)
"""What PyYAML raises for a value that does not fit its tag, and for what is no YAML."""


def _parsed(file: Path) -> Any:
    try:
        text = file.read_text(errors="replace")
        return json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
    except UNPARSED as error:
        log.warning("CDI spec not read", reason=str(Reason.INVALID_VALUE), file=file.name, error=str(error)[:200])
        return None


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def put(path: Path, data: bytes) -> None:
    """Put a file in place whole, readable for everybody; nothing is written where it is the same.

    Raises:
        OSError: it could not be written; no half of it is left.
    """
    with suppress(OSError):
        if read_regular_file(path, len(data) + 1) == data:
            return
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    files.replace(path, data, report=True, readable=True)
