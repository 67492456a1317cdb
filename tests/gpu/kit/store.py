"""The folder of a run: results as they come, logs, recordings, and the one tar that is carried home.

``machine.json`` says what was measured; results of another machine are never mixed in.
"""

import json
import shutil
import tarfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.gpu.kit.backend import Facts
from tests.gpu.kit.result import Result, Verdict
from tests.gpu.kit.setup import Setup

FORMAT: Final = 1
TAR: Final = "gpu-results.tar.gz"
CARRIED: Final = ("results.json", "table.md", "fixtures", "logs")
SAME: Final = ("backend", "gpu", "driver", "world")


class OtherMachineError(RuntimeError):
    """The folder holds the results of another machine, driver or world."""


@dataclass(frozen=True, slots=True)
class Store:
    """A run's folder."""

    folder: Path
    tar: Path

    def begin(self, setup: Setup, facts: Facts, again: bool = False) -> None:  # noqa: FBT001, FBT002 - one flag
        """Take the folder for this machine.

        Raises:
            OtherMachineError: it is another's, and ``again`` does not say to start afresh.
        """
        now = machine(setup, facts)
        for name in ("results", "logs", "fixtures"):
            if again:
                shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        before = self._read("machine.json") or now
        other = [key for key in SAME if before.get(key) != now[key]]
        if other and not again:
            told = ", ".join(f"{key} {before.get(key)!r} and now {now[key]!r}" for key in other)
            raise OtherMachineError(f"{self.folder} holds results of another machine ({told}); use --again or --out")
        self._write("machine.json", json.dumps(now, indent=1))

    def put(self, result: Result) -> None:
        """Keep a result; the newest of an experiment counts."""
        self._write(f"results/{result.experiment}.json", result.to_json())

    def get(self, experiment: str) -> Result | None:
        """What there is of an experiment."""
        with suppress(OSError, ValueError):
            return Result.from_json((self.folder / "results" / f"{experiment}.json").read_text())
        return None

    def done(self, experiment: str) -> Result | None:
        """A result that need not be measured again: it says that the hypothesis holds, or that it does not."""
        result = self.get(experiment)
        return result if result is not None and result.verdict is not Verdict.NOT_MEASURED else None

    def log(self, experiment: str) -> Path:
        """Where an experiment's standard output and error go."""
        return self.folder / "logs" / f"{experiment}.log"

    def take_fixtures(self, work: Path) -> None:
        """Keep what an experiment recorded."""
        if (work / "fixtures").is_dir():
            shutil.copytree(work / "fixtures", self.folder / "fixtures", dirs_exist_ok=True)

    def collect(self) -> dict[str, Any]:
        """Everything measured so far, as results.json has it."""
        names = sorted(file.stem for file in (self.folder / "results").glob("[!.]*.json"))
        results = [asdict(result) for name in names if (result := self.get(name)) is not None]
        return {**(self._read("machine.json") or {}), "results": results}

    def pack(self, whole: dict[str, Any], table: str) -> Path:
        """Write results.json and table.md, and all of it into the tar; returns it."""
        self._write("results.json", json.dumps(whole, indent=1))
        self._write("table.md", table)
        unfinished = self.tar.with_name(f".{self.tar.name}")
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(unfinished, "w:gz") as archive:
            for name in CARRIED:
                archive.add(self.folder / name, f"gpu-results/{name}")
        unfinished.rename(self.tar)
        return self.tar

    def _read(self, name: str) -> dict[str, Any] | None:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.folder / name).read_text())
            return found
        return None

    def _write(self, name: str, text: str) -> None:
        file = self.folder / name
        file.with_name(f".{file.name}").write_text(text)
        file.with_name(f".{file.name}").rename(file)


def machine(setup: Setup, facts: Facts) -> dict[str, Any]:
    """What was measured, when, and with which permissions."""
    return {
        "format": FORMAT, "backend": setup.backend, "gpu": setup.gpu, "driver": facts.driver,
        "world": dict(setup.world), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "allow_mode_change": setup.allow_mode_change, "facts": facts.as_dict(),
    }  # fmt: skip
