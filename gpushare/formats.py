"""The versions of what one release of gpu-share writes and another one reads. Pure.

A version is the first thing in a file, ``{"version": 2, ...``, so that it is found whatever else the file has become.
It is raised only where an earlier release would do harm with the content: all readers pass over fields that they do
not know. A release that raises one still reads the two before it (``oldest``), and a file of each is kept in
``tests/golden/formats``. No release overwrites a file of a newer version (``enforcer.runtime.files.replace``).

No version of its own has what each release writes whole and nobody carries on from: ResourceSlices with their
annotations, CDI files, claim templates.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from gpushare.errors import ConfigError, NewerFormatError
from gpushare.patterns import Pattern

HEAD_BYTES: Final = 64
"""So much of a file tells its version."""
UNMARKED: Final = 1
"""The version of what names none."""
FIX: Final = "install the newer release again, or drain the node's sharing pods and move the file away"
_VERSION: Final = Pattern(rb'\s*\{\s*"version"\s*:\s*([0-9]{1,6})[\s,}].*', HEAD_BYTES)


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file: its ``version`` as it is written here, and the ``oldest`` that is read.

    ``marked``: a file that names no version is refused; without, it is of version 1. ``fix``: what people do about a
    file of a newer version.
    """

    name: str
    version: int
    oldest: int
    marked: bool = True
    fix: str = FIX
    remedy: str = "move the file away"

    def check(self, data: bytes) -> None:
        """Check the version of a file's content.

        Raises:
            NewerFormatError: a newer release wrote it.
            ConfigError: it names no version, or one that is not read any more.
        """
        found = _named(data)
        if found is None and self.marked:
            raise ConfigError(f"{self.name} does not begin with its version; {self.remedy}")
        version = UNMARKED if found is None else found
        if version > self.version:
            raise NewerFormatError(newer(self.name, version, self.version, self.fix))
        if version < self.oldest:
            raise ConfigError(
                f"{self.name} has version {version}, and this release reads {self.oldest} to {self.version}; "
                f"{self.remedy}"
            )

    def load(self, data: bytes) -> dict[str, Any]:
        """Read a file's content, which is a JSON object.

        Raises:
            NewerFormatError: a newer release wrote it.
            ConfigError: it is something else, or of a version that is not read any more.
        """
        self.check(data)
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{self.name} is not valid JSON: {str(error)[:100]}; {self.remedy}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"{self.name} is not a JSON object; {self.remedy}")
        return found


CHECKPOINT: Final = Format("checkpoint.json", 1, 1)
BUDGETS: Final = Format("detector.json", 5, 5)
CLAIM: Final = Format(
    "the file of a prepared claim", 1, 1,
    remedy="restart the enforcer; if this stays, delete the pod for which that claim is reserved, and then the file",
)  # fmt: skip
KNOWN_MEMORY: Final = Format("known-memory.json", 1, 1, marked=False)
FOREIGN_CLAIMS: Final = Format("foreign/claims.json", 1, 1, marked=False)
MPS_DAEMON: Final = Format("daemon.json of an MPS control daemon", 1, 1, marked=False)
AUDIT_RECORD: Final = Format("the audit record", 1, 1, marked=False)
NODE_STATUS: Final = Format(
    "status.json of the node", 1, 1, marked=False, fix="use the gpu-share of the enforcer's image"
)
POD_STATUS: Final = Format(
    "status.json of the pod", 1, 1, marked=False, fix="create the pod again: that renews its sidecar"
)
CERTIFICATES: Final = Format(
    "state.json of the certificates", 1, 1, marked=False, fix="install the newer release of gpu-share-certs again"
)


def version_of(data: bytes) -> int:
    """Return the version of a file's content; 1 where it names none."""
    return _named(data) or UNMARKED


def newer(what: str, found: int, known: int, fix: str = FIX) -> str:
    """Say that something is of a newer version, and what to do."""
    return (
        f"{what} has version {found}, and this release of gpu-share knows version {known}: a newer release wrote it, "
        f"so this one leaves it as it is; {fix}"
    )


def _named(data: bytes) -> int | None:
    found = _VERSION.fullmatch(data[:HEAD_BYTES].replace(b"\n", b" "))
    return None if found is None else int(found[1])
