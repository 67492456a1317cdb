"""H10: the literal words of this driver, as fixtures; our own parsers have to understand them."""

import json
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any, Final

import pynvml  # noqa: TID251 - a constant of its memory call

from enforcer.mps import protocol
from enforcer.mps.daemon import MpsDaemon
from gpushare.contract import MPS_MEMORY_LIMIT
from tests.gpu.kit.backend import Backend
from tests.gpu.kit.machine import logs_of
from tests.gpu.kit.registry import experiment
from tests.gpu.kit.replay import LIMIT_MIB, RECORDED, key_of, problems_with_mps, problems_with_nvml
from tests.gpu.kit.result import NotMeasurable, Result, judged

NOBODY: Final = 1
HELD_MIB: Final = 512
SYSTEM: Final = ("nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion_v2")
DEVICE: Final = (
    "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetMPSComputeRunningProcesses_v2",
)  # fmt: skip
COMMANDS: Final = (
    protocol.GET_PERCENTAGE, protocol.get_limit(), protocol.GET_SERVERS, "get_default_client_priority", "ps", "lspart",
    "device_query", "get_server_status <server>", "get_server_status <nobody>", "get_client_list <server>",
    "get_client_list <nobody>", "get_device_client_list", "get_device_client_list <server>",
    "get_active_thread_percentage <server>", "get_device_pinned_mem_limit <server> 0", "no_such_command",
    "terminate_client <server> <nobody>", "terminate_client <nobody> <client>", "terminate_client <server> <client>",
    "get_client_list <server>  after", "set_default_active_thread_percentage 150", "set_default_client_priority 2",
    "get_server_status <server>  after",
)  # fmt: skip


@experiment(
    "H10",
    title="Literal answers of driver and MPS",
    hypothesis="Our parsers and our NVML reader understand every answer of this driver that they read",
    limit_s=60,
    order=10,
)
def h10(backend: Backend) -> Result:
    """Ask everything once, with one CUDA process there; keep all of it."""
    with backend.client() as client:
        client.ask(f"alloc {HELD_MIB}")
        nvml = _nvml(backend)
    try:
        mps, logs = _mps(backend)
        told = f"{len(nvml)} calls and {len(mps)} commands are understood"
    except NotMeasurable as error:
        mps, logs, told = {}, {}, f"{len(nvml)} calls are understood; MPS not recorded: {error}"
    _keep(backend, nvml=nvml, mps=mps, logs=logs)
    wrong = [*problems_with_nvml(nvml, backend.gpu), *problems_with_mps(mps)]
    missing = sorted(name for name, answer in nvml.items() if isinstance(answer, dict) and "error" in answer)
    unknown = sorted(command for command, said in mps.items() if said["out"].startswith("Unknown command"))
    return judged(wrong, told, calls_refused=missing, commands_unknown=unknown)


def _nvml(backend: Backend) -> dict[str, Any]:
    plain = {name: backend.nvml(name) for name in SYSTEM} | {name: backend.nvml(name, "@") for name in DEVICE}
    version = pynvml.nvmlMemory_v2
    return plain | {key_of(DEVICE[7], version): backend.nvml(DEVICE[7], "@", version)}


def _mps(backend: Backend) -> tuple[dict[str, Any], dict[str, str]]:
    with backend.mps(limit_mib=LIMIT_MIB) as daemon, ExitStack() as stack:
        # Our daemon asks for whole GiB; between two of them it is seen that the answer is floored.
        backend.control(daemon, protocol.set_limit(LIMIT_MIB))
        without = backend.control(daemon, "ps")
        client = stack.enter_context(backend.client(backend.daemon_env(daemon, **{MPS_MEMORY_LIMIT: "0=2048M"})))
        if not client.usable:
            raise NotMeasurable(f"no client is served: {client.hello}")
        client.ask(f"alloc {HELD_MIB}")
        said = {command: asdict(_ask(backend, daemon, command, client.pid)) for command in COMMANDS}
        said["ps  without a server"] = asdict(without)
        logs = logs_of(daemon)
    return {command: {key: one[key] for key in ("status", "out", "err")} for command, one in said.items()}, logs


def _ask(backend: Backend, daemon: MpsDaemon, command: str, client: int) -> Any:
    """Two blanks and a word at a command's end tell repeated questions apart."""
    servers = daemon.servers() if "<server>" in command else ()
    filled = command.partition("  ")[0].replace("<client>", str(client)).replace("<nobody>", str(NOBODY))
    return backend.control(daemon, filled.replace("<server>", str(servers[0] if servers else NOBODY)))


def _keep(backend: Backend, *, nvml: dict[str, Any], mps: dict[str, Any], logs: dict[str, str]) -> None:
    facts = backend.facts
    origin = {"origin": RECORDED if backend.name == "real" else "simulated", "driver": facts.driver, "gpu": backend.gpu}
    for name, values in (("origin", origin), ("nvml", nvml), ("mps", mps)):
        backend.fixture(f"{name}.json", json.dumps(values, indent=1))
    for name, text in logs.items():
        backend.fixture(name, text)
