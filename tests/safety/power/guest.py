"""What runs in the machine whose power is cut: ``python -m tests.safety.power.guest DISK MOUNT OUT IN``.

The enforcer is the product's own, with its whole state on ``DISK``; NVML alone is scripted. Beside it containers
exceed their quota one after the other, and claims are prepared and undone. What has happened for good goes to the
machine outside through ``OUT``, a virtual serial port: each line of JSON is there before the next step is taken.

The machine is saved once before it touches the disk, and every life of it goes on from there. What begins a life comes
through ``IN``: 32 bytes that make its random numbers its own.
"""

import fcntl
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

from enforcer.audit.log import FOLDER, AuditLog
from enforcer.audit.record import ChainHead, read, verify
from enforcer.audit.segments import lines_of, segments
from enforcer.dra.checkpoint import ClaimStore
from enforcer.dra.prepared_claim import AllocatedDevice, ContainerLimit, PreparedClaim
from enforcer.main import main as enforce
from enforcer.nvml.gpu_reader import GpuReader
from enforcer.nvml.types import Gpu, GpuProcess, GpuSample
from enforcer.quota.checkpoint import Checkpoint
from enforcer.quota.from_claims import Terms
from enforcer.quota.types import Quota
from gpushare.errors import RecordError
from tests.safety.power.troubles import beset

GPU: Final = "GPU-00000000-0000-0000-0000-000000000001"
CARD_MIB: Final = 1 << 30
QUOTA_MIB: Final = 4096
POLL: Final = 0.1
GRACE: Final = 0.3
CONTAINERS: Final = 6
"""At once; the oldest makes room for the next."""
MOST_CLAIMS: Final = 8
SETTLED: Final = 3
"""Looks of an enforcer after which what its predecessor left open is answered."""
LOOKS: Final = 50
"""At a last line that the enforcer may be writing."""
SEED_BYTES: Final = 32
ADD_ENTROPY: Final = 0x40085203
RESEED: Final = 0x5207
"""ioctls of random(4): ``RNDADDENTROPY`` and ``RNDRESEEDCRNG``."""
CGROUPS: Final = Path("/sys/fs/cgroup")
OPTIONS: Final = (
    "--node", "gpu-7", "--poll-seconds", str(POLL), "--termination-timeout", "0.3", "--max-kills-per-minute", "1000000",
    "--no-cluster", "--no-mps", "--no-publish",
)  # fmt: skip


class Port:
    """The ports to the machine outside."""

    def __init__(self, out: str, into: str) -> None:
        self._file, self._into = os.open(out, os.O_WRONLY), os.open(into, os.O_RDONLY)
        self._lock = threading.Lock()

    def tell(self, what: str, **data: Any) -> None:
        """Write one line. The driver returns once the machine outside has it."""
        with self._lock:
            line = (json.dumps({"what": what, **data}) + "\n").encode()
            while line:
                line = line[os.write(self._file, line) :]

    def begun(self) -> bytes:
        """Wait for the bytes that begin a life. Until somebody is at the other end there is nothing to read."""
        seed = b""
        while len(seed) < SEED_BYTES:
            seed += os.read(self._into, SEED_BYTES - len(seed))
            time.sleep(0.02)
        return seed


class Card(GpuReader):
    """The GPU: who holds how much of it, and how often somebody looked."""

    def __init__(self, settled: Callable[[], None]) -> None:
        self._held: dict[int, int] = {}
        self._lock = threading.Lock()
        self._looks, self._settled = 0, settled

    def hold(self, pid: int, mib: int) -> None:
        with self._lock:
            self._held[pid] = mib

    def release(self, pid: int) -> None:
        with self._lock:
            self._held.pop(pid, None)

    def gpus(self) -> tuple[Gpu, ...]:
        return (
            Gpu(
                uuid=GPU, index=0, minor=0, model="H100", memory_mib=CARD_MIB, reserved_mib=0,
                compute_capability=(9, 0), pci_bus_id="", driver_version="570", cuda_version=(12, 8),
            ),
        )  # fmt: skip

    def sample(self, uuid: str) -> GpuSample:
        self._looks += 1
        if self._looks == SETTLED:
            threading.Thread(target=self._settled).start()
        with self._lock:
            held = {pid: mib for pid, mib in self._held.items() if Path(f"/proc/{pid}").exists()}
        rows = tuple(GpuProcess(pid, mib) for pid, mib in held.items())
        return GpuSample(uuid=uuid, total_mib=CARD_MIB, used_mib=sum(held.values()), processes=rows)


class Tenants:
    """Containers over their quota, each in control groups as the kubelet and containerd make them."""

    def __init__(self, state: Path, card: Card) -> None:
        self._checkpoint, self._card = Checkpoint(state), card
        self._living: dict[int, Quota] = {}
        self._containers: dict[int, str] = {}

    def container_of(self, pid: int) -> str:
        """Name the container of a process that lives, or of one that has just ended and may still be signalled."""
        return self._containers.get(pid, "")

    def run(self, chance: random.Random) -> None:
        while True:
            self._begin()
            time.sleep(chance.uniform(0.05, 0.4))
            for pid in [pid for pid in self._living if os.waitpid(pid, os.WNOHANG)[0]]:
                self._forget(pid)
            for pid in list(self._living)[:-CONTAINERS]:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self._forget(pid)

    def _begin(self) -> None:
        pod, container = str(uuid.uuid4()), uuid.uuid4().hex * 2
        kind = "kubepods-besteffort"
        slices = ("kubepods.slice", f"{kind}.slice", f"{kind}-pod{pod.replace('-', '_')}.slice")
        group = CGROUPS.joinpath(*slices, f"cri-containerd-{container}.scope")
        group.mkdir(parents=True)
        pid = os.posix_spawn("/bin/busybox", ["sleep", "7200"], {})
        (group / "cgroup.procs").write_text(str(pid))
        quota = Quota(
            claim_uid=f"claim-{pod}", namespace="asr", pod="tts", pod_uid=pod, container="model",
            container_id=container, gpu=GPU, memory_mib=QUOTA_MIB, grace_seconds=GRACE, tolerance_mib=0,
        )  # fmt: skip
        self._living[pid], self._containers[pid] = quota, container
        with suppress(OSError):
            self._checkpoint.write(tuple(self._living.values()))
        self._card.hold(pid, 2 * QUOTA_MIB)

    def _forget(self, pid: int) -> None:
        self._card.release(pid)
        del self._living[pid]


def claims_come_and_go(store: ClaimStore, port: Port, chance: random.Random) -> None:
    """Prepare and undo claims for ever; of each the machine outside learns before and after."""
    while True:
        uid = str(uuid.uuid4())
        try:
            port.tell("preparing", uid=uid)
            store.put(_claim(uid))
            port.tell("prepared", uid=uid)
            for old in store.prepared()[: chance.choice((0, 1, 1, len(store.prepared()) - MOST_CLAIMS))]:
                port.tell("undoing", uid=old.uid)
                store.remove(old.uid)
                port.tell("undone", uid=old.uid)
        except OSError:  # as a full or failing disk refuses it: the kubelet would be refused, too, and ask again
            time.sleep(POLL)


def _claim(uid: str) -> PreparedClaim:
    granted = AllocatedDevice(
        request="main", pool="gpu-7", device="gpu-0", gpu=GPU, memory_mib=QUOTA_MIB, device_mib=CARD_MIB
    )
    return PreparedClaim(
        uid=uid, namespace="asr", name="claim", pod="tts", pod_uid=str(uuid.uuid4()), granted=(granted,),
        limits=(ContainerLimit(container="main", request="main", memory_mib=QUOTA_MIB),), terms=Terms(),
    )  # fmt: skip


def lines(state: Path, again: Callable[[], bool] = lambda: False) -> Iterator[bytes]:
    """Return the lines of the audit log on the disk, torn ones included; ``again`` as for ``lines_of``."""
    folder = state / FOLDER
    found = segments(folder) if folder.exists() else []
    return chain.from_iterable(lines_of(path, again) for path in found)


def left(state: Path) -> list[list[Any]]:
    """What the power cut left: number, hash, kind and container of each record that can be read."""
    found = []
    for line in lines(state):
        try:
            record = read(line)
        except RecordError:
            continue
        found.append([record["seq"], record["hash"], record["kind"], record.get("containerId", "")])
    return found


def settled(state: Path) -> dict[str, Any]:
    """What the enforcer has made of it: the chain's verdict, and the INTENTs that have no answer or several."""
    looks = iter(range(LOOKS))

    def again() -> bool:
        time.sleep(POLL)
        return next(looks, None) is not None

    records = list(lines(state, again))
    verdict = verify(records)
    known = [read(line) for line in records] if verdict.ok else []
    answers = sorted(record["intent"] for record in known if record["kind"] in {"ABORTED", "OUTCOME"})
    intents = [record["seq"] for record in known if record["kind"] == "INTENT"]
    return {
        "holds": verdict.ok,
        "verdict": str(verdict),
        "recovered": sum(record["kind"] == "RECOVERED" for record in known),
        "twice": len(answers) - len(set(answers)),
        "unanswered": [seq for seq in intents if seq not in answers],
    }


def listen(port: Port, tenants: Tenants) -> None:
    """Tell of each record that was acknowledged, and of each signal before it is sent."""
    append, send = AuditLog.append, signal.pidfd_send_signal

    def acknowledged(self: AuditLog, kind: Any, fields: Any) -> ChainHead:
        head = append(self, kind, fields)
        port.tell("record", seq=head.seq, hash=head.hash)
        return head

    def sending(file: int, number: int, *rest: Any) -> None:
        if number and (pid := _pid_of(file)) > 0:  # -1: the process is gone, so the signal reaches nobody
            port.tell("signal", pid=pid, number=int(number), container=tenants.container_of(pid))
        send(file, number, *rest)

    vars(signal)["pidfd_send_signal"] = sending
    AuditLog.append = acknowledged  # type: ignore[method-assign] # the enforcer's own log is watched


def reseed(seed: bytes) -> None:
    """Give the kernel's random numbers another course, and so its boot id, which it makes when it is first read."""
    with Path("/dev/urandom").open("wb") as file:
        fcntl.ioctl(file, ADD_ENTROPY, struct.pack(f"ii{len(seed)}s", 8 * len(seed), len(seed), seed))
        fcntl.ioctl(file, RESEED)


def without_syncs() -> None:
    """Be the control: an enforcer that only seems to keep what it writes."""
    for name in ("fsync", "fdatasync"):
        setattr(os, name, lambda _: None)


def _pid_of(file: int) -> int:
    fields = dict(line.split(":\t", 1) for line in Path(f"/proc/self/fdinfo/{file}").read_text().splitlines())
    return int(fields["Pid"])


def main(argv: list[str]) -> int:
    """Say what is left, then be a node until the power fails."""
    device, mount, out, into = argv
    port, state = Port(out, into), Path(mount) / "gpu-share"
    port.tell("up")
    reseed(port.begun())
    chance = random.Random()
    for command in (("blockdev", "--flushbufs", device), ("mount", "-o", "noatime", device, mount)):
        subprocess.run(["/bin/busybox", *command], check=True)
    state.mkdir(mode=0o700, exist_ok=True)
    store = ClaimStore(state)
    last = left(state)
    store.load()
    port.tell("left", records=last, claims=[each.uid for each in store.prepared()], unreadable=sorted(store.unreadable))
    newest = max((seq for seq, *_ in last), default=0)

    def taken_up() -> None:
        port.tell("settled", newest=newest, **settled(state))
        beset(state.parent, chance, port.tell)

    card = Card(taken_up)
    tenants = Tenants(state, card)
    listen(port, tenants)
    if "power.nosync" in Path("/proc/cmdline").read_text():
        without_syncs()
    for work in (lambda: tenants.run(random.Random()), lambda: claims_come_and_go(store, port, random.Random())):
        threading.Thread(target=work, daemon=True).start()
    return enforce([*OPTIONS, "--state", str(state), "--run", "/run/gpu-share"], reader=card)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
