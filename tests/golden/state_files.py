"""Golden files of each format that one release writes and another one reads, in ``formats/<name>/v<version>-<number>``.

A file here is never changed: it is what some release wrote. ``python -m tests.golden`` adds the next one where today's
code writes the same content in another way.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from certs import rotation
from certs.rotation_plan import State
from enforcer.attribution.unaccounted import Account as MemoryAccount
from enforcer.attribution.unaccounted_monitor import NAME as KNOWN_MEMORY
from enforcer.attribution.unaccounted_monitor import UnaccountedMonitor
from enforcer.audit.record import GENESIS, Kind, append_hash, read
from enforcer.detection import state_file
from enforcer.detection.budget import Account
from enforcer.detection.types import ContainerState, DetectorState, Phase
from enforcer.dra import prepared_claim
from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim, ResizeResult, Seen
from enforcer.mps.state_file import FILE, DaemonRecord, DaemonStateFile
from enforcer.quota import checkpoint, foreign_reader
from enforcer.quota.foreign_claims import Kept
from enforcer.quota.foreign_objects import Device
from enforcer.quota.from_claims import Terms
from enforcer.quota.types import Mode
from enforcer.status.node_status import NAME as NODE_STATUS
from enforcer.status.node_status import status
from enforcer.status.pod_status import Seen as SeenByPods
from enforcer.status.pod_status import pod_status
from gpushare import formats
from gpushare.formats import Format
from gpushare.pod_claims import Use
from gpushare_cli import node_status
from sidecar import pod_status as sidecar_status
from tests.unit.enforcer.made import GPU, POD, holder, quota
from tests.unit.enforcer.status.test_pod_status_files import seen, snapshot

FOLDER = Path(__file__).parent / "formats"
BOOT, NOW = "0b7f", 10.0
RETIRES = datetime(2027, 1, 1, tzinfo=UTC)
STATE = DetectorState(
    cases={((POD, "model"), GPU): ContainerState(phase=Phase.WARNED, samples=3, over_for=2.0, used=2.0, at=9.0)},
    accounts={("asr", GPU): Account(used=2.0, at=9.0, size=5.0)}, sampled={GPU: 9.0}, kills={(POD, "model"): 3.0},
)  # fmt: skip
CLAIM = PreparedClaim(
    uid="claim-1", namespace="asr", name="tts-0-gpu", pod="tts-0", pod_uid=POD, terms=Terms(tolerance_percent=5),
    granted=(AllocatedDevice(request="model", pool="n", device="gpu-1", gpu=GPU, memory_mib=4096, mode=Mode.MPS),),
    limits=(ContainerLimit(container="model", request="model", memory_mib=4096, compute=25, limit_mib=8192),),
    answers=(ResizeResult(container="model", asked="3Gi", done=True, before_mib=4096, reason="Resized", note="n"),),
    own_shared_memory=("model",), driver_capabilities={"model": "compute,utility"}, clients={"model": 2},
    seen=(Seen(gpu=GPU, total_mib=16384, sms=132),), caps={"model": 50}, settings={"model": ("VLLM",)},
)  # fmt: skip
KEPT = Kept(
    {("claim-1", "pool", "gpu-1"): Device(uuid=GPU, kind="gpu", parent="", capacity=2**34, shareable=True)},
    {POD: (Use(container="model", claim="c", request="r", entry="e"),)},
)
SNAPSHOT = snapshot(seen(holder(101, 1000)))
RECORD = {"pod": {"namespace": "asr", "name": "tts-0"}, "usedMib": 9216}


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A format: what today's code writes of a content, and how it reads any; it refuses by ``None`` or an error."""

    format: Format
    name: str
    written: bytes
    read: Callable[[bytes], Any]

    @property
    def files(self) -> list[Path]:
        """Return the golden files, the oldest first."""
        return sorted((FOLDER / self.name).iterdir(), key=lambda file: [int(part) for part in file.name[1:].split("-")])


def in_folder(name: str, data: bytes, read_from: Callable[[Path], Any]) -> Any:
    """Read a file that is found by its folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(data)
        return read_from(Path(folder))


def written_in_folder(name: str, write: Callable[[Path], None]) -> bytes:
    """Return what is written into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return (Path(folder) / name).read_bytes()


def write_known(folder: Path) -> None:
    monitor = UnaccountedMonitor(folder)
    monitor.latest = {GPU: MemoryAccount(known_mib=26)}
    monitor.record()


def read_known(folder: Path) -> Any:
    monitor = UnaccountedMonitor(folder)
    return monitor._recorded or None


def read_daemon(folder: Path) -> DaemonRecord | None:
    notes = DaemonStateFile(folder, GPU)
    notes.check_owner()
    return notes.read() if notes.read().pid else None


def read_certificates(data: bytes) -> Any:
    _, retire = rotation._read_notes(data)
    return retire or None


def read_pod_status(data: bytes) -> Any:
    found = sidecar_status.parse(data)
    return found if found is not None and found.uses else None


ALL = (
    Golden(
        format=formats.CHECKPOINT, name="checkpoint", written=checkpoint.encode([quota()]), read=checkpoint.decode
    ),
    Golden(
        format=formats.BUDGETS, name="budgets", written=state_file.encode(STATE, BOOT),
        read=lambda data: state_file.decode(data, BOOT, NOW),
    ),
    Golden(
        format=formats.CLAIM, name="claim", written=prepared_claim.encode(CLAIM), read=prepared_claim.decode
    ),
    Golden(
        format=formats.KNOWN_MEMORY, name="known-memory", written=written_in_folder(KNOWN_MEMORY, write_known),
        read=lambda data: in_folder(KNOWN_MEMORY, data, read_known),
    ),
    Golden(
        format=formats.FOREIGN_CLAIMS, name="foreign-claims", written=foreign_reader.encode(KEPT, BOOT),
        read=lambda data: foreign_reader.decode(data, BOOT),
    ),
    Golden(
        format=formats.MPS_DAEMON, name="mps-daemon",
        written=written_in_folder(FILE, lambda folder: DaemonStateFile(folder, GPU).write(DaemonRecord(7, 8, 0))),
        read=lambda data: in_folder(FILE, data, read_daemon),
    ),
    Golden(
        format=formats.AUDIT_RECORD, name="audit-record", read=read,
        written=append_hash(GENESIS, Kind.INTENT, "2026-11-20T22:16:05.123Z", RECORD)[0],
    ),
    Golden(
        format=formats.NODE_STATUS, name="node-status", written=json.dumps(status(SNAPSHOT)).encode() + b"\n",
        read=lambda data: in_folder(NODE_STATUS, data, node_status.load),
    ),
    Golden(
        format=formats.POD_STATUS, name="pod-status", read=read_pod_status,
        written=json.dumps(pod_status(SeenByPods.of(SNAPSHOT), [quota()], (), lambda _: True, {})).encode() + b"\n",
    ),
    Golden(
        format=formats.CERTIFICATES, name="certificates", read=read_certificates,
        written=rotation._notes(State(bundled=RETIRES, retire={"aa": RETIRES}), {"aa": b""})["state.json"],
    ),
)  # fmt: skip


def write() -> list[str]:
    """Add a file of each format that today's code writes differently; returns their names."""
    added = []
    for golden in ALL:
        (FOLDER / golden.name).mkdir(parents=True, exist_ok=True)
        files = golden.files
        if not files or files[-1].read_bytes() != golden.written:
            same = [file for file in files if file.name.startswith(f"v{golden.format.version}-")]
            target = FOLDER / golden.name / f"v{golden.format.version}-{len(same) + 1}"
            target.write_bytes(golden.written)
            added.append(f"{golden.name}/{target.name}")
    return added
