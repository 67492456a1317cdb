"""Takes a state of the cluster: from the API server, and from files and processes of the node, without product code."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.rehearsal import processes
from tests.rehearsal.api import CORE, RESOURCE
from tests.rehearsal.sampling import STATE, Place, Seen
from tests.rehearsal.state import State, uid

RUN: Final = "run/gpu-share"
CDI: Final = "run/cdi"
CDI_PREFIX: Final = "gpu-share.io-"
OURS: Final = "fieldSelector=spec.driver%3Dgpu-share.io"


def look(place: Place, seen: Seen, *, check: tuple[str, ...] | None = None, red: bool | None = None) -> State:
    """Take a state; raises ``LookupError`` while the API server does not answer."""
    state, run = place.home / STATE, place.home / RUN
    pods, segments = place.pods(), sorted((state / "audit").glob("kills-*.jsonl"))
    return State(
        time=time.time(),
        pods=tuple(pods),
        everybody=frozenset(map(uid, place.api.items(f"{CORE}/pods"))),
        claims=tuple(place.api.items(f"{RESOURCE}/resourceclaims")),
        templates=tuple(place.api.items(f"{RESOURCE}/namespaces/{place.namespace}/resourceclaimtemplates")),
        slices=tuple(place.api.items(f"{RESOURCE}/resourceslices?{OURS}")),
        cdi=frozenset(file.stem.removeprefix(CDI_PREFIX) for file in (place.home / CDI).glob(f"{CDI_PREFIX}*")),
        kept={file.stem: _version(file) for file in (state / "claims").glob("*.json")},
        status=frozenset(file.name for file in (run / "status").glob("[!.]*")),
        mounts=frozenset(processes.mounted(place.holder)),
        cgroups=frozenset(pod for pid in processes.pids(place.cgroup) if (pod := processes.pod_of(pid))),
        daemons={where: tuple(seen.daemons.get(where, found)) for where, found in _serving(place).items()},
        over=dict(seen.over),
        alive=dict(seen.alive),
        announced=seen.announced,
        used=dict(seen.templates),
        audit=tuple(line for file in segments for line in file.read_bytes().splitlines(keepends=True)),
        admitted=place.admitted(),
        check=check,
        red=red,
    )


def _serving(place: Place) -> dict[str, list[int]]:
    return processes.serving(place.cgroup)


def _version(file: Path) -> int:
    with suppress(OSError, ValueError):
        return int(json.loads(file.read_text()).get("version", 1))
    return 1
