"""Questions to this machine: can it serve shares of its GPUs?"""

import shutil
import socket
import tomllib
from collections.abc import Callable, Mapping
from contextlib import closing
from ctypes import CDLL
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from enforcer.attribution.procfs import in_initial_pid_namespace
from enforcer.nvml.driver_root import HERE, LIBRARY, PROGRAM, DriverRoot, inside
from enforcer.nvml.validation import classify_error
from enforcer.nvml.worker_handle import command
from enforcer.status.node_status import NAME
from gpushare import contract
from gpushare.errors import GpuShareError, MpsError, NvmlError
from gpushare.raw_objects import mapping, text
from gpushare_cli import extras, node_status
from gpushare_cli.check.arguments import Folders
from gpushare_cli.check.result import Checker, CheckResult, failed, ok, warning
from gpushare_cli.options import STATE_DIRECTORY
from gpushare_cli.words import counted

if TYPE_CHECKING:
    from enforcer.nvml.client import NvmlClient
MakeResult = Callable[[str], CheckResult]
_Question = tuple[str, Callable[[], CheckResult], str]
"""What it is about, what asks it, and what to do where the answer is not fine."""
SOCKETS: Final = (contract.REGISTRATION_SOCKET, contract.DRIVER_SOCKET)
NO_GPU: Final = "run nvidia-smi -L, and look for Xid errors in the kernel log"
NO_DRIVER: Final = "on a GPU node, nvidia-smi must work (--driver-root names another root); other nodes need no driver"
NO_MPS: Final = f"{PROGRAM} comes with the NVIDIA driver's compute utilities"
OTHER_NAMESPACE: Final = "set hostPID: true in the enforcer's pod: NVML reports pids of the host's pid namespace"
NO_ENFORCER: Final = (
    f"label the node {contract.NODE_LABEL}=true, and read the log of its enforcer; --state DIR names another state "
    "directory"
)
NO_SOCKETS: Final = (
    "the enforcer creates them; if the kubelet's root is not /var/lib/kubelet, give --kubelet-root to the enforcer and "
    "to this command"
)
NO_CDI: Final = (
    "the container runtime must read this folder: containerd 2.0 does, 1.7 with enable_cdi; --cdi-root DIR names "
    "another folder"
)
KNOCK_SECONDS: Final = 2.0
LIBRARY_NOT_FOUND: Final = 12
"""NVML's number for it."""
NVML_SECONDS: Final = 30.0
"""A driver that nobody uses may have to set up every GPU first; one that hangs would keep us for ever."""


def folders_of(given: Mapping[str, Path | None]) -> Folders:
    """Take what was given, then what the enforcer of this node uses, then the defaults."""
    chosen = {name: folder for name, folder in given.items() if folder is not None}
    try:
        used = mapping(node_status.load(chosen.get("state", STATE_DIRECTORY)).raw, "setup")
    except GpuShareError:
        used = {}
    keys = {"kubelet": "kubeletRoot", "cdi": "cdiRoot", "driver": "driverRoot"}
    known = {name: Path(folder) for name, key in keys.items() if (folder := text(used, key))}
    return Folders(**{**known, **chosen}, any_pid_namespace=used.get("anyPidNamespace") is True)


def checkers(folders: Folders, *, required: bool, pre: bool = False) -> list[Checker]:
    """Return the questions. Unless ``required``, a machine without GPUs is something to look at and nothing wrong.

    The questions about the enforcer are asked where it is expected, or has been: no laptop lacks one. With ``pre``
    nothing is installed yet, and they are not asked.
    """
    bad, driver = failed if required else warning, DriverRoot(folders.driver)
    expected = not pre and (required or (folders.state / NAME).exists())
    in_namespace = warning if folders.any_pid_namespace else bad
    machine: tuple[_Question, ...] = (
        ("GPUs through NVML", lambda: gpus(lambda: _reader(driver.root), bad), NO_DRIVER),
        ("MPS control program", lambda: mps(driver, bad), NO_MPS),
        ("container toolkit", lambda: envvar(folders.driver, bad), SETTING_HINT),
    )
    namespace: tuple[_Question, ...] = (
        ("initial pid namespace", lambda: pid_namespace(Path("/proc"), in_namespace), OTHER_NAMESPACE),
    )
    of_enforcer: tuple[_Question, ...] = (
        ("enforcer", lambda: enforcer(folders.state, bad), NO_ENFORCER),
        ("kubelet plugin sockets", lambda: sockets(folders.kubelet, bad), NO_SOCKETS),
        ("CDI folder", lambda: cdi(folders.cdi, bad), NO_CDI),
    )
    asked = (*machine, *(() if pre else namespace), *(of_enforcer if expected else ()))
    return [Checker(category="this machine", description=what, ask=ask, hint=hint) for what, ask, hint in asked]


def enforcer(state: Path, bad: MakeResult) -> CheckResult:
    """Read the enforcer's status: whether it runs, and its problems."""
    try:
        found = node_status.load(state)
    except GpuShareError as error:
        return bad(error.message)
    if node_status.stale(found):
        return bad(f"the enforcer does not run: {state / NAME} is out of date")
    if found.problems:
        return replace(bad("; ".join(found.problems)), hint="read the log of this node's enforcer")
    return ok(f"{counted(len(found.gpus), 'GPU')} seen")


def sockets(root: Path, bad: MakeResult) -> CheckResult:
    """Knock at the driver's two doors: the kubelet finds it by the one and prepares claims by the other."""
    missing = [f"{file}: {why}" for file in map(root.joinpath, SOCKETS) if (why := _shut(file))]
    return bad("; ".join(missing)) if missing else ok(f"below {root}")


def _shut(file: Path) -> str:
    """Why nobody answers at a socket; empty when somebody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
        knocking.settimeout(KNOCK_SECONDS)
        try:
            knocking.connect(str(file))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def cdi(folder: Path, bad: MakeResult) -> CheckResult:
    """Look for the folder that claims' specs are written to, and count ours."""
    if not folder.is_dir():
        return bad(f"{folder} is not there")
    claims = len(list(folder.glob(f"{contract.CDI_FILE_PREFIX}*.json")))
    return ok(f"{folder}, {counted(claims, 'claim')} prepared")


def _reader(root: Path) -> "NvmlClient":
    if lack := extras.missing(extras.ENFORCER):
        raise NvmlError(lack)
    if root == HERE:  # else the process that asks NVML looks for it, and need not be started where it is not
        try:
            CDLL(LIBRARY)
        except OSError:
            raise classify_error(LIBRARY_NOT_FOUND, "NVML Shared Library Not Found") from None
    from enforcer.nvml.client import NvmlClient, NvmlTimeouts  # noqa: PLC0415 - it logs, and that takes long to load

    return NvmlClient(command(root), NvmlTimeouts(deadline=NVML_SECONDS))


def gpus(make: "Callable[[], NvmlClient]", bad: MakeResult) -> CheckResult:
    """Ask NVML for its GPUs."""
    try:
        with closing(make()) as reader:
            found = reader.gpus()
    except NvmlError as error:
        return bad(error.message)
    if not found:
        return replace(bad("the driver is installed, but it lists no GPU"), hint=NO_GPU)
    return ok(", ".join(f"{gpu.model} {gpu.memory_mib} MiB" for gpu in found))


def mps(driver: DriverRoot, bad: MakeResult) -> CheckResult:
    """Tell where the MPS control program is: below the driver's root, or on the PATH."""
    try:
        where = shutil.which(str(driver.program()))
    except MpsError as error:
        return bad(error.message)
    return ok(where) if where else bad(f"{PROGRAM} is not on the PATH")


def pid_namespace(proc: Path, bad: MakeResult) -> CheckResult:
    """Tell whether processes here have the numbers the driver knows them by."""
    try:
        initial = in_initial_pid_namespace(proc)
    except OSError as error:
        return bad(f"cannot be read: {error.strerror}")
    return ok() if initial else bad("this pid namespace is the container's own")


SETTING: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
CONFIGS: Final = (
    "etc/nvidia-container-runtime/config.toml",
    "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml",
)
"""Of the distributions' packages, and of the GPU Operator, below the node's root."""
PROGRAMS: Final = ("usr/bin/nvidia-container-runtime", "usr/local/nvidia/toolkit/nvidia-container-runtime")
MAX_BYTES: Final = 1024 * 1024
SETTING_HINT: Final = (
    f"set {SETTING} = false in that file (GPU Operator: toolkit.env), then restart the container runtime"
)


def envvar(root: Path, bad: Callable[[str], CheckResult]) -> CheckResult:
    """Read the setting below the node's root; a container without a share may get every GPU unless it is false."""
    found = [file for each in CONFIGS if (file := inside(root, each)) is not None]
    if not found and any(inside(root, each) for each in PROGRAMS):
        return bad(
            f"{root / CONFIGS[0]} does not exist: by default, containers with NVIDIA_VISIBLE_DEVICES can get every GPU"
        )
    for file in found:
        try:
            value = _setting(file)
        except (OSError, ValueError) as error:
            return bad(f"{file} cannot be read: {error}")
        if value is not False:
            state = "is not set" if value is None else f"is {value!r:.40}"
            return bad(f"{file}: {SETTING} {state}: a container that sets NVIDIA_VISIBLE_DEVICES can get every GPU")
    return ok(str(found[0]) if found else f"not found below {root}")


def _setting(file: Path) -> object:
    """Return the value; ``None`` where it is not set. Raises OSError and ValueError."""
    with file.open("rb") as opened:
        content: dict[str, Any] = tomllib.loads(opened.read(MAX_BYTES).decode())
    return content.get(SETTING)
