"""The results of a run: one file for each case as it ends, logs, and the one archive that is carried home."""

import json
import os
import shutil
import tarfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

TAR: Final = "gpu-cluster-results.tar.gz"
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
LOG_BYTES: Final = 400_000
"""Of each log, its end."""
LOGS: Final = (
    "cluster/logs/*.log", "node/var/log/pods/*/*/*.log", "node/run/gpu-share/mps/*/log/*.log",
    "node/var/lib/gpu-share/status.json", "node/var/lib/gpu-share/audit/*.jsonl",
)  # fmt: skip
"""In the folder of a run: of servers, containers and MPS, and what the enforcer wrote."""


_LOGS: Final = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What came of one case: ``figures`` are measured, ``said`` is the sentence for people."""

    case: str
    verdict: str
    said: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of results and the archive made of it."""

    folder: Path
    tar: Path

    def begin(self, backend: str) -> None:
        """Make the folders; results of another backend are thrown away."""
        before = self._read("run.json")
        if before.get("backend") not in {None, backend}:
            shutil.rmtree(self.folder)
        for name in ("cases", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.note(backend=backend, date=datetime.now(UTC).strftime("%Y-%m-%d"))

    def note(self, **facts: Any) -> None:
        """Keep facts of the run as a whole."""
        self._write("run.json", self._read("run.json") | facts)

    def put(self, result: CaseResult) -> None:
        """Keep a result, and put it into the archive at once."""
        self._write(f"cases/{result.case}.json", asdict(result))
        self.pack()

    def passed(self, case: str) -> bool:
        """Whether an earlier run has passed it."""
        return bool(self._read(f"cases/{case}.json").get("verdict") == PASSED)

    def take_logs(self, run: Path) -> None:
        """Keep the ends of the servers' and the containers' logs."""
        for log in [each for pattern in LOGS for each in run.glob(pattern)]:
            name = log.name if log.parent.name == "logs" else "-".join(log.parts[-3:]).replace("_", "-")
            with suppress(OSError), _LOGS:
                _keep(log, self.folder / "logs" / name)

    def pack(self) -> None:
        """Write the archive; it appears whole."""
        unfinished = self.tar.with_name(f".{self.tar.name}")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        with _LOGS, tarfile.open(unfinished, "w:gz") as archive:
            for name in ("run.json", "cases", "logs"):
                archive.add(self.folder / name, f"gpu-cluster/{name}")
        unfinished.rename(self.tar)

    def _read(self, name: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.folder / name).read_text())
            return found
        return {}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        file = self.folder / name
        file.with_name(f".{file.name}").write_text(json.dumps(content, indent=1))
        file.with_name(f".{file.name}").rename(file)


def _keep(log: Path, kept: Path) -> None:
    """Copy the end of a log that has grown."""
    seen = log.stat()
    if kept.exists() and kept.stat().st_mtime_ns == seen.st_mtime_ns:
        return
    with log.open("rb") as file:
        file.seek(max(0, seen.st_size - LOG_BYTES))
        kept.write_bytes(file.read())
    os.utime(kept, ns=(seen.st_mtime_ns, seen.st_mtime_ns))
