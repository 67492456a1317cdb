"""``gpu-share-simulator``: gives a node the driver of GPUs that do not exist, for an enforcer that notices nothing.

    gpu-share-simulator --root DIR --gpus 2 --memory 16Gi --model "NVIDIA H100 80GB HBM3"
    gpu-share-simulator show --root DIR
    gpu-share-simulator fault gpu0 lost --root DIR

Under ``DIR/driver`` lies what ``/run/nvidia/driver`` holds on a real node: libnvidia-ml.so.1 and
nvidia-cuda-mps-control. Under ``DIR/state`` lives the machine (``state.py``); both programs find it by where they
themselves lie. A restart keeps the machine and everything that is held on it. Where there is no MPS, tenants hold
memory through ``DIR/devices/<uuid>``, which ``--cdi-root`` offers to containers as NVIDIA's toolkit offers a GPU.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import gpushare_cli  # noqa: F401 - lets the image's Python find the package gpushare
from gpushare.signals import stopped_by_signal
from tests.fakes.gpu.build import MPS_CLIENT, library_folder
from tests.fakes.gpu.mps_control import script
from tests.fakes.gpu.mps_daemon import WHERE_SUPPORTED
from tests.fakes.gpu.share import DEVICE_FOLDER, amount
from tests.fakes.gpu.state import Fault, Machine, MachineGpu, Sim
from tests.fakes.gpu.tenants import Tenants, plain

HERE: Final = Path(__file__).parent
PACKAGED: Final = HERE / "lib"
"""Where an image carries the compiled library; a checkout builds it."""
ROOT: Final = Path(os.environ.get("GPU_SHARE_SIMULATOR_ROOT", "/var/lib/gpu-share/simulator"))
LIBRARY: Final = "libnvidia-ml.so.1"
LIBRARIES: Final = Path("usr/lib/x86_64-linux-gnu")
PROGRAMS: Final = Path("usr/bin")
SOURCES: Final = Path("usr/lib/gpu-share-simulator")
STAND_IN: Final = (
    "__init__",
    "cgroup_limits",
    "exports",
    "machine",
    "mps_clients",
    "mps_daemon",
    "mps_file",
    "mps_words",
    "state",
    "tenants",
    "world",
)
"""What the MPS stand-in is made of: it has to run in the enforcer's container, which has none of it."""
MODELS: Final = {"B200": "10.0", "H100": "9.0", "H200": "9.0", "L4": "8.9", "A100": "8.0", "T4": "7.5", "V100": "7.0"}
DRIVER: Final = "580.159.04"
CUDA: Final = {615: 13040, 580: 13000, 0: 12080}
"""Driver branch to CUDA version, the newest first."""
MAX_GPUS: Final = 16
MAX_INSTANCES: Final = 7
PROFILE: Final = re.compile(r"[1-7]g\.[1-9][0-9]{0,2}gb")
GPU_LOST, UNKNOWN_ERROR = 15, 999
LAUNCH_FAILED: Final = 719
"""What every client of an MPS server is told after a fatal fault; the server takes nobody while one of them lives."""
MARKS: Final = ("ecc", "no-mps", "no-terminate")
"""What lasts on a GPU until it is well again."""
ERRORS: Final = {"lost": GPU_LOST, "silent": UNKNOWN_ERROR}


class WrongUseError(Exception):
    """Something that was asked for cannot be."""


def parser() -> argparse.ArgumentParser:
    """The command line without a verb: be a node's driver."""
    options = argparse.ArgumentParser(
        prog="gpu-share-simulator", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--root", type=Path, default=ROOT, help="(%(default)s)")
    options.add_argument("--gpus", type=int, default=2, help="how many (%(default)s)")
    options.add_argument("--memory", type=amount, default="16Gi", help="of each (%(default)s)")
    options.add_argument("--model", default="NVIDIA H100 80GB HBM3", help="(%(default)s)")
    options.add_argument("--driver", default=DRIVER, help="version of the driver it plays (%(default)s)")
    options.add_argument(
        "--mig", type=profiles, default=(), help="MIG instances of the last one, such as 1g.4gb,1g.4gb"
    )
    options.add_argument("--node", default=os.environ.get("NODE_NAME") or socket.gethostname(), help="($NODE_NAME)")
    options.add_argument(
        "--cdi-root", type=Path, help="write a CDI spec there, as NVIDIA's toolkit does (default: none)"
    )
    options.add_argument("--single-user", action="store_true", help="MPS serves one user's processes at a time")
    options.add_argument("--ready", type=Path, help="make this file once all is laid out (default: none)")
    options.add_argument("--once", action="store_true", help="lay everything out and end")
    return options


def verbs() -> argparse.ArgumentParser:
    """The command line with a verb."""
    options = argparse.ArgumentParser(prog="gpu-share-simulator")
    known = options.add_subparsers(dest="verb", required=True)
    show = known.add_parser("show", help="what the machine has and who holds what")
    fault = known.add_parser("fault", help="let something go wrong with a GPU from now on")
    fault.add_argument("gpu", help="gpu0, 0 or a UUID")
    fault.add_argument(
        "what", help="lost, silent, ecc, no-mps, no-terminate, mps-fault, xid:NUMBER, or well: all is well again"
    )
    for one in (show, fault):
        one.add_argument("--root", type=Path, default=ROOT, help="(%(default)s)")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop, or do what the verb says."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments[:1] in (["show"], ["fault"]):
            return _do(verbs().parse_args(arguments))
        return _run(parser().parse_args(arguments))
    except WrongUseError as error:
        sys.stderr.write(f"gpu-share-simulator: {error}\n")
        return 2


def profiles(text: str) -> tuple[str, ...]:
    """``1g.4gb,2g.8gb`` as a tuple."""
    found = tuple(filter(None, text.split(",")))
    wrong = next((each for each in found if not PROFILE.fullmatch(each)), None)
    if wrong is not None or len(found) > MAX_INSTANCES:
        problem = f"{wrong!r} is not a profile" if wrong else f"more than {MAX_INSTANCES}"
        raise argparse.ArgumentTypeError(f"{problem}; write such as 1g.4gb,1g.4gb")
    return found


def cut(shape: Machine, wanted: Sequence[str]) -> Machine:
    """The machine with its last GPU in MIG mode, cut into instances of these profiles."""
    if not wanted:
        return replace(shape, instances=())
    *others, card = shape.gpus
    instances = tuple(
        replace(
            card, uuid=f"MIG-{card.uuid[4:-2]}{index:02x}", name=f"{card.name} MIG {profile}", minor=index,
            memory_mib=_size(profile), reserved_mib=0, parent=card.uuid,
        )
        for index, profile in enumerate(wanted)
    )  # fmt: skip
    return replace(shape, gpus=(*others, replace(card, mig=True)), instances=instances)


def _size(profile: str) -> int:
    """MiB of an instance: a little less than its name says, as on real cards."""
    return int(profile.rpartition(".")[2].removesuffix("gb")) * 1024 - 128


def machine(node: str, gpus: int, memory_mib: int, model: str, driver: str = DRIVER) -> Machine:
    """The node's machine: its UUIDs are always the same, and no other node's."""
    cc = next((cc for name, cc in MODELS.items() if name in model.split()), "9.0")
    cards = [
        MachineGpu(
            uuid=_uuid(node, index), name=model, memory_mib=memory_mib, cc=cc, minor=index,
            pci=f"00000000:{index + 1:02X}:00.0",
        )
        for index in range(gpus)
    ]  # fmt: skip
    cuda = next(cuda for since, cuda in CUDA.items() if branch(driver) >= since)
    return Machine(driver=driver, nvml=f"{cuda // 1000}.{driver}", cuda=cuda, gpus=tuple(cards))


def branch(driver: str) -> int:
    """Return 615 of ``615.71.09``."""
    return int(driver.partition(".")[0])


def lay_out(root: Path, shape: Machine, *, single_user: bool = False, mig: Sequence[str] = ()) -> Sim:
    """Put driver and machine there; what a machine of before holds stays, and so do its UUIDs."""
    sim = Sim(root / "state")
    before = sim.machine.gpus if (sim.folder / "machine").is_file() else ()
    kept = [replace(gpu, uuid=old.uuid) for gpu, old in zip(shape.gpus, before, strict=False)]
    sim = Sim.create(sim.folder, cut(replace(shape, gpus=(*kept, *shape.gpus[len(kept) :])), mig))
    driver = root / "driver"
    sources = driver / SOURCES / "tests" / "fakes" / "gpu"
    for folder in (driver / LIBRARIES, driver / PROGRAMS, sources):
        folder.mkdir(parents=True, exist_ok=True)
    for package in (sources.parents[1], sources.parent):
        _put(package / "__init__.py", b"", 0o644)
    for name in STAND_IN:
        _put(sources / f"{name}.py", (HERE / f"{name}.py").read_bytes(), 0o644)
    built = PACKAGED if PACKAGED.is_dir() else library_folder()
    client = driver / PROGRAMS / MPS_CLIENT
    _put(client, (built / MPS_CLIENT).read_bytes(), 0o755)
    control = script(sim.folder, driver / SOURCES, client, *([] if single_user else [WHERE_SUPPORTED]))
    _put(driver / PROGRAMS / "nvidia-cuda-mps-control", control.encode(), 0o755)
    # Last: who waits for a driver waits for its library.
    _put(driver / LIBRARIES / LIBRARY, (built / LIBRARY).read_bytes(), 0o644)
    return sim


def serve_devices(root: Path, sim: Sim) -> list[Path]:
    """Let tenants hold memory without MPS."""
    shape = sim.machine
    folders = [root / "devices" / gpu.uuid for gpu in (*shape.gpus, *shape.instances) if not gpu.mig]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        Tenants(sim, folder.name, "compute", plain(sim, folder.name)).listen(folder)
    return folders


def cdi_spec(devices: Sequence[Path]) -> dict[str, object]:
    """The devices as NVIDIA's toolkit names them; each brings the folder in which it listens, below one of all."""
    inside = "/run/gpu-share-simulator/devices"
    mount = {"options": ["rbind", "ro"]}
    edits = [
        {
            "env": [f"{DEVICE_FOLDER}={inside}"],
            "mounts": [mount | {"hostPath": str(folder), "containerPath": f"{inside}/{folder.name}"}],
        }
        for folder in devices
    ]
    named = [{"name": folder.name, "containerEdits": each} for folder, each in zip(devices, edits, strict=True)]
    return {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": named}


def break_down(sim: Sim, gpu: str, what: str) -> None:
    """Let something go wrong with one GPU; what is wrong with others stays.

    Raises:
        WrongUseError: no such thing can.
    """
    kind, _, number = what.partition(":")
    if kind == "xid" and number.isdigit():
        sim.raise_xid(gpu, int(number))
    elif what in ERRORS:
        sim.fail(*_others(sim, gpu), Fault(call="*", error=ERRORS[what], gpu=gpu))
    elif what in MARKS:
        sim.mark(what, gpu)
    elif what == "mps-fault":
        clients = [pid for pid, rows in sim.processes().items() if any((r.gpu, r.kind) == (gpu, "mps") for r in rows)]
        for pid in clients:
            sim.strike(pid, gpu, LAUNCH_FAILED, fault=True)
    elif what == "well":
        sim.fail(*_others(sim, gpu))
        for mark in MARKS:
            sim.mark(mark, gpu, wrong=False)
    else:
        raise WrongUseError(
            f"{what!r} is no fault; there are {', '.join(ERRORS)}, {', '.join(MARKS)}, mps-fault, xid:NUMBER and well"
        )


def _others(sim: Sim, gpu: str) -> list[Fault]:
    return [fault for fault in sim.faults() if fault.gpu != gpu]


def _run(options: argparse.Namespace) -> int:
    memory = amount(options.memory) if isinstance(options.memory, str) else options.memory
    if not 1 <= options.gpus <= MAX_GPUS:
        raise WrongUseError(f"--gpus {options.gpus}: a simulated node has 1 to {MAX_GPUS}")
    if not re.fullmatch(r"[0-9]{3}(\.[0-9]{1,3}){1,2}", options.driver):
        raise WrongUseError(f"--driver {options.driver!r} is not a version; write such as {DRIVER}")
    if options.ready is not None:
        options.ready.unlink(missing_ok=True)
    root = _usable(options.root)
    shape = machine(options.node, options.gpus, memory, options.model, options.driver)
    sim = lay_out(root, shape, single_user=options.single_user, mig=options.mig)
    if not options.once:
        devices = serve_devices(root, sim)
        if options.cdi_root is not None:
            options.cdi_root.mkdir(parents=True, exist_ok=True)
            _put(options.cdi_root / "nvidia.com-gpu-simulated.json", json.dumps(cdi_spec(devices)).encode(), 0o644)
    if options.ready is not None:
        options.ready.touch()
    for gpu in sim.machine.gpus:
        print(f"{gpu.uuid} {gpu.name} {gpu.memory_mib} MiB", flush=True)
    print(f"driver root: {root / 'driver'}", flush=True)
    return 0 if options.once else _wait()


def _wait() -> int:
    stopped_by_signal().wait()
    return 0


def _do(options: argparse.Namespace) -> int:
    sim = Sim(options.root / "state")
    if not (sim.folder / "machine").is_file():
        raise WrongUseError(f"--root {options.root}: no simulator has run there")
    if options.verb == "fault":
        break_down(sim, _named(sim, options.gpu), options.what)
        return 0
    processes = sim.processes()
    for index, gpu in enumerate(sim.machine.gpus):
        print(f"gpu{index} {gpu.uuid} {gpu.name} {sim.used(gpu.uuid)} of {gpu.memory_mib} MiB")
        for pid, rows in processes.items():
            mine = sum(row.memory_mib or 0 for row in rows if row.gpu == gpu.uuid)
            print(f"  pid {pid}: {mine} MiB") if mine else None
    return 0


def _named(sim: Sim, name: str) -> str:
    gpus = [gpu.uuid for gpu in sim.machine.gpus]
    number = name.removeprefix("gpu")
    if number.isdigit() and int(number) < len(gpus):
        return gpus[int(number)]
    if name not in gpus:
        raise WrongUseError(f"{name!r} is not a GPU of this machine; it has {', '.join(gpus)}, or gpu0 and so on")
    return name


def _usable(root: Path) -> Path:
    """The root as an absolute path, where programs and libraries may be run from."""
    root.mkdir(parents=True, exist_ok=True)
    if os.statvfs(root).f_flag & os.ST_NOEXEC:
        message = f"--root {root} is mounted noexec; choose a folder from which programs may run, such as {ROOT}"
        raise WrongUseError(message)
    return root.resolve()


def _uuid(node: str, index: int) -> str:
    digest = hashlib.sha256(f"{node}/{index}".encode()).hexdigest()
    return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"


def _put(file: Path, content: bytes, mode: int) -> None:
    """Write it whole: it may be in use."""
    if file.is_file() and file.read_bytes() == content:
        return
    temporary = file.with_name(f".{file.name}.new")
    temporary.write_bytes(content)
    temporary.chmod(mode)
    shutil.move(temporary, file)


if __name__ == "__main__":
    sys.exit(main())
