"""Takes a state: from the API server, and from files and processes of the nodes, without product code."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.rehearsal import processes
from tests.rehearsal.api import CORE, RESOURCE
from tests.rehearsal.sampling import STATE, Machine, Place, Seen
from tests.rehearsal.state import State, at, located

STATUS: Final = "run/gpu-share/status"
AUDIT: Final = f"{STATE}/audit"
CLAIMS: Final = f"{STATE}/claims"
CDI: Final = "run/cdi"
CDI_PREFIX: Final = "gpu-share.io-"
CDI_FILES: Final = f"{CDI_PREFIX}*"
OURS: Final = "fieldSelector=spec.driver%3Dgpu-share.io"


def look(place: Place, seen: Seen, *, check: tuple[str, ...] | None = None, red: bool | None = None) -> State:
    """Take a state; raises ``LookupError`` while the API server does not answer."""
    every = place.machines
    serving = {where: found for machine in every for where, found in machine.serving().items()}
    return State(
        time=time.time(),
        pods=tuple(place.pods()),
        everybody=frozenset(map(located, place.api.items(f"{CORE}/pods"))),
        claims=tuple(place.api.items(f"{RESOURCE}/resourceclaims")),
        templates=tuple(place.api.items(f"{RESOURCE}/namespaces/{place.namespace}/resourceclaimtemplates")),
        slices=tuple(place.api.items(f"{RESOURCE}/resourceslices?{OURS}")),
        cdi=_on(every, lambda one: [file.stem.removeprefix(CDI_PREFIX) for file in (one.home / CDI).glob(CDI_FILES)]),
        kept={at(one.name, file.stem): _version(file) for one in every for file in (one.home / CLAIMS).glob("*.json")},
        status=_on(every, lambda one: [file.name for file in (one.home / STATUS).glob("[!.]*")]),
        mounts=_on(every, lambda one: processes.mounted(one.holder)),
        cgroups=_on(every, lambda one: filter(None, map(processes.pod_of, processes.pids(one.cgroup)))),
        daemons={where: tuple(seen.daemons.get(where, found)) for where, found in serving.items()},
        over=dict(seen.over),
        alive=dict(seen.alive),
        announced=dict(seen.announced),
        fewest=seen.fewest,
        used=dict(seen.templates),
        audit={one.name: _lines(one.home) for one in every},
        admitted=place.admitted(),
        check=check,
        red=red,
    )


def _on(machines: Iterable[Machine], names: Callable[[Machine], Iterable[str]]) -> frozenset[str]:
    return frozenset(at(machine.name, each) for machine in machines for each in names(machine))


def _lines(home: Path) -> tuple[bytes, ...]:
    segments = sorted((home / AUDIT).glob("kills-*.jsonl"))
    return tuple(line for file in segments for line in file.read_bytes().splitlines(keepends=True))


def _version(file: Path) -> int:
    with suppress(OSError, ValueError):
        return int(json.loads(file.read_text()).get("version", 1))
    return 1
