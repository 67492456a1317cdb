"""The reader through the real nvidia-ml-py, loaded in processes of their own over the simulated library."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enforcer.nvml import validation
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.fakes.gpu.need import need_library
from tests.fakes.gpu.probe import Probe, plain
from tests.fakes.gpu.reader import SimReader
from tests.fakes.gpu.state import Fault, Machine, MachineGpu, Sim

pytestmark = pytest.mark.node
MIB = 1024 * 1024
LISTS = tuple(f"nvmlDeviceGet{kind}RunningProcesses" for kind in ("Compute", "Graphics", "MPSCompute"))


@pytest.fixture(name="sim")
def _sim(tmp_path: Path) -> Sim:
    return Sim.create(tmp_path / "sim", "single-16g")


@pytest.fixture(name="uuid")
def _uuid(sim: Sim) -> str:
    return sim.machine.gpus[0].uuid


@pytest.fixture(name="probe")
def _probe(sim: Sim) -> Iterator[Probe]:
    with Probe(sim, need_library()) as probe:
        yield probe


@pytest.fixture(name="sleepers")
def _sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    with ExitStack() as stack:
        found = [stack.enter_context(subprocess.Popen(["sleep", "600"])) for _ in range(4)]
        yield found
        for process in found:
            process.kill()


def _reason(probe: Probe, *question: Any) -> tuple[Any, str]:
    with pytest.raises(LookupError) as caught:
        probe.ask(*question)
    return caught.value.args[0], caught.value.args[1]


def test_a_gpu_is_described_as_the_machine_file_says(probe: Probe, uuid: str) -> None:
    assert probe.ask("gpus") == [
        {
            "uuid": uuid,
            "index": 0,
            "minor": 0,
            "model": "NVIDIA A100-SXM4-16GB",
            "memory_mib": 16384,
            "reserved_mib": 512,
            "compute_capability": [8, 0],
            "pci_bus_id": "00000000:01:00.0",
            "driver_version": "580.159.04",
            "cuda_version": [13, 0],
            "mig_enabled": False,
            "parent": None,
            "profile": "",
            "sms": 74,
        }
    ]


def test_index_and_minor_number_are_not_confused(sim: Sim, probe: Probe) -> None:
    sim.become(Machine.named("mixed"))
    found = probe.ask("gpus")
    assert [(gpu["index"], gpu["minor"]) for gpu in found] == [(0, 0), (1, 2), (2, 1)]
    assert [gpu["mig_enabled"] for gpu in found] == [False, True, False]


def test_an_idle_gpu_has_no_processes(probe: Probe, uuid: str) -> None:
    held = {"used_mib": 0, "processes": [], "clients": []}
    assert probe.ask("sample", uuid) == {"uuid": uuid, "total_mib": 16384, **held}


def test_a_process_in_several_lists_counts_once(
    sim: Sim, probe: Probe, uuid: str, sleepers: list[subprocess.Popen[bytes]]
) -> None:
    first, second, *_ = (process.pid for process in sleepers)
    sim.register(first, uuid, 3000, "mps")
    sim.register(second, uuid, 700, "compute")
    sim.register(second, uuid, 300, "graphics")
    probe.ask("gpus")
    for name in LISTS[0], LISTS[2]:
        assert first in [row["pid"] for row in probe.ask("raw", name, f"@{uuid}")]
    sample = probe.ask("sample", uuid)
    assert sample["processes"] == sorted(
        ({"pid": first, "used_mib": 3000}, {"pid": second, "used_mib": 1000}), key=lambda row: row["pid"]
    )
    assert sample["used_mib"] == 4000


def test_the_dead_and_zombies_hold_nothing(sim: Sim, probe: Probe, uuid: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        sim.register(process.pid, uuid, 100)
        assert [row["pid"] for row in probe.ask("sample", uuid)["processes"]] == [process.pid]
        process.kill()
        _until_zombie(process.pid)
        assert probe.ask("sample", uuid)["processes"] == []
    assert probe.ask("sample", uuid)["used_mib"] == 0


def test_a_zombie_leader_with_living_threads_still_holds_its_memory(sim: Sim, probe: Probe, uuid: str) -> None:
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        sim.register(process.pid, uuid, 100)
        _until_zombie(process.pid)
        held = [row["pid"] for row in probe.ask("sample", uuid)["processes"]]
        in_python = list(sim.processes())
        process.kill()
    assert held == in_python == [process.pid]


def test_a_reused_pid_inherits_nothing(sim: Sim, probe: Probe, uuid: str, sleepers: list[Any]) -> None:
    sim.register(sleepers[0].pid, uuid, 100)
    file = sim.folder / "processes" / str(sleepers[0].pid)
    file.write_text(file.read_text().replace("start=", "start=1"))
    assert probe.ask("sample", uuid)["processes"] == []
    assert sim.processes() == {}


def test_which_used_is_compared_is_known(sim: Sim, probe: Probe, uuid: str, sleepers: list[Any]) -> None:
    sim.register(sleepers[0].pid, uuid, 1000)
    assert probe.ask("sample", uuid)["used_mib"] == 1000
    assert probe.ask("raw", "nvmlDeviceGetMemoryInfo", f"@{uuid}")["used"] == str(1512 * MIB)
    sim.fail(Fault(call="nvmlDeviceGetMemoryInfo_v2", error=13))
    assert probe.ask("sample", uuid)["used_mib"] == 1512


def test_an_older_driver_without_the_third_lists_is_read_through_the_second(
    sim: Sim, probe: Probe, uuid: str, sleepers: list[Any]
) -> None:
    sim.register(sleepers[0].pid, uuid, 100, "mps")
    sim.fail(*(Fault(call=f"{name}_v3", error=13) for name in LISTS))
    assert [row["used_mib"] for row in probe.ask("sample", uuid)["processes"]] == [100]


def test_a_driver_without_mps_and_graphics_lists_is_read_all_the_same(
    sim: Sim, probe: Probe, uuid: str, sleepers: list[Any]
) -> None:
    sim.register(sleepers[0].pid, uuid, 100)
    missing = [Fault(call=f"{name}_{v}", error=13) for name in LISTS[1:] for v in ("v2", "v3")]
    sim.fail(*missing)
    assert [row["used_mib"] for row in probe.ask("sample", uuid)["processes"]] == [100]
    sim.fail(*(Fault(call=f"{name}_v3", error=3) for name in LISTS[1:]))
    assert [row["used_mib"] for row in probe.ask("sample", uuid)["processes"]] == [100]


def test_without_the_compute_list_nobody_is_evaluated(sim: Sim, probe: Probe, uuid: str) -> None:
    sim.fail(*(Fault(call=f"{LISTS[0]}_{v}", error=13) for v in ("v2", "v3")))
    assert _reason(probe, "sample", uuid)[0] == Reason.DRIVER_MISMATCH
    sim.fail(Fault(call=f"{LISTS[0]}_v3", error=3))
    assert _reason(probe, "sample", uuid)[0] == Reason.NVML_UNAVAILABLE


def test_a_list_that_outgrows_its_buffer_is_read_again(sim: Sim, probe: Probe, uuid: str, sleepers: list[Any]) -> None:
    sim.register(sleepers[0].pid, uuid, 100)
    # The NULL call counts too: the second call of a pair says the buffer is too small, twice.
    sim.fail(
        Fault(call=f"{LISTS[0]}_v3", error=7, after=1, times=1), Fault(call=f"{LISTS[0]}_v3", error=7, after=3, times=1)
    )
    assert [row["used_mib"] for row in probe.ask("sample", uuid)["processes"]] == [100]
    sim.fail(Fault(call=f"{LISTS[0]}_v3", error=7))
    assert _reason(probe, "sample", uuid)[0] == Reason.NVML_UNAVAILABLE


@pytest.mark.parametrize("code", [1, 2, 4, 6, 9, 10, 15, 17, 18, 20, 26, 999, 12345])
def test_every_error_makes_the_reader_blind_and_the_next_read_starts_afresh(
    sim: Sim, probe: Probe, uuid: str, code: int
) -> None:
    for call in "nvmlDeviceGetMemoryInfo_v2", f"{LISTS[0]}_v3", "nvmlDeviceGetHandleByUUID":
        sim.fail(Fault(call=call, error=code))
        reason, message = _reason(probe, "sample", uuid)
        wanted, hint = validation.ERRORS.get(code, validation.ERRORS[999])
        assert reason == wanted
        assert ("the driver cannot use the GPU" if code == 15 else "NVML returned an error") in message
        assert message.endswith(hint)
    sim.fail()
    assert probe.ask("sample", uuid)["uuid"] == uuid


def test_hardware_that_comes_back_is_seen_after_a_failure(sim: Sim, probe: Probe, uuid: str) -> None:
    assert len(probe.ask("gpus")) == 1
    sim.become(Machine.named("h100x4"))
    assert len(probe.ask("gpus")) == 1
    assert _reason(probe, "sample", "GPU-4a800000-0000-4000-8000-000000000000")[0] == Reason.NVML_UNAVAILABLE
    assert len(probe.ask("gpus")) == 4


def test_no_driver_is_an_error_that_says_so(sim: Sim, probe: Probe) -> None:
    (sim.folder / "machine").rename(sim.folder / "gone")
    assert "driver" in _reason(probe, "gpus")[1]
    (sim.folder / "gone").rename(sim.folder / "machine")
    assert probe.ask("gpus")


def test_no_library_is_an_error_that_says_so(sim: Sim, tmp_path: Path) -> None:
    with Probe(sim, tmp_path) as probe:
        reason, message = _reason(probe, "gpus")
    assert reason == Reason.NVML_UNAVAILABLE
    assert "Library" in message


@pytest.mark.parametrize(
    "fault",
    [
        Fault(pid=1, memory_mib="none"),
        Fault(pid=1, memory_mib=16385),
        Fault(pid=0, memory_mib=5),
        Fault(pid=1, memory_mib=3000),
        Fault(used_mib=16385),
        Fault(used_mib=100),
    ],
    ids=["no amount", "more than the card", "no process", "nobody's memory", "fuller than full", "less than held"],
)
def test_what_cannot_be_true_is_not_believed(
    sim: Sim, probe: Probe, uuid: str, sleepers: list[Any], fault: Fault
) -> None:
    sim.register(sleepers[0].pid, uuid, 1000)
    sim.fail(fault)
    assert _reason(probe, "sample", uuid)[0] == Reason.IMPLAUSIBLE_SAMPLE
    sim.fail()
    assert probe.ask("sample", uuid)["used_mib"] == 1000


def test_the_compute_mode_is_kept_by_the_card(sim: Sim, probe: Probe, uuid: str) -> None:
    assert probe.ask("mode", uuid) == 0
    probe.ask("set_mode", uuid, 3)
    assert probe.ask("mode", uuid) == sim.compute_mode(uuid) == SimReader(sim).compute_mode(uuid) == 3
    sim.fail(Fault(call="nvmlDeviceSetComputeMode", error=4))
    assert "Permission" in _reason(probe, "set_mode", uuid, 0)[1]


def test_mig_calls_say_not_supported(probe: Probe, uuid: str) -> None:
    probe.ask("gpus")
    assert probe.ask("raw", "nvmlDeviceGetMigMode", f"@{uuid}") == [0, 0]
    assert _reason(probe, "raw", "nvmlDeviceGetMigDeviceHandleByIndex", f"@{uuid}", 0) == (3, "NVMLError_NotSupported")
    assert _reason(probe, "raw", "nvmlDeviceGetGpuInstanceId", f"@{uuid}")[0] == 3


def test_a_slow_call_is_slow(sim: Sim, probe: Probe, uuid: str) -> None:
    sim.fail(Fault(call="nvmlDeviceGetMemoryInfo_v2", delay_ms=300))
    begun = time.monotonic()
    probe.ask("sample", uuid)
    assert time.monotonic() - begun > 0.29


def test_limits_per_cgroup_are_kept_where_the_driver_has_them(sim: Sim) -> None:
    program = """
import pynvml, os, sys
pynvml.nvmlInitWithFlags(0)
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
ask = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=b"/sys/fs/cgroup/kubepods/x")
try:
    pynvml.nvmlDeviceGetMemoryLimits_v1(gpu, ask)
except pynvml.NVMLError as error:
    sys.exit(f"error {error.value}")
before = ask.softLimit, ask.hardLimit == 2**64 - 1
pynvml.nvmlDeviceSetMemoryLimits_v1(gpu, pynvml.c_nvmlSetMemoryLimits_v1_t(b"/sys/fs/cgroup/kubepods/x", 5, 1 << 33))
pynvml.nvmlDeviceGetMemoryLimits_v1(gpu, ask)
print(before, ask.softLimit, ask.hardLimit, ask.currentUsed)
events = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlDeviceGetSupportedEventTypes(gpu), events)
os.system("printf 'gpu=%s\\\\txid=79\\\\n' " + pynvml.nvmlDeviceGetUUID(gpu) + " >> $GPU_SHARE_SIM/xid")
event = pynvml.nvmlEventSetWait_v2(events, 1000)
print(event.eventType, event.eventData)
try:
    pynvml.nvmlEventSetWait_v2(events, 10)
except pynvml.NVMLError_Timeout:
    print("quiet")
"""
    library = need_library()

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            env=os.environ | sim.environment(library),
            capture_output=True,
            text=True,
        )

    assert run().stderr.strip() == "error 13"
    sim.become(Machine.named("mixed"))
    assert run().stdout.splitlines() == ["(0, True) 5 8589934592 0", "8 79", "quiet"]


CARDS = st.builds(
    lambda n, memory, reserved, cc, mig, name: MachineGpu(
        uuid=f"GPU-{n:08x}-0000-4000-8000-000000000000", name=name, memory_mib=memory, reserved_mib=reserved, cc=cc,
        minor=n % 7, pci=f"00000000:{n % 200 + 1:02X}:00.0", mig=mig and cc in {"8.0", "9.0"},
    ),
    st.integers(0, 2**32 - 1), st.integers(4096, 200_000), st.integers(0, 1024),
    st.sampled_from(["6.1", "7.0", "7.5", "8.0", "8.9", "9.0", "10.0"]), st.booleans(),
    st.text("ABC 0123-", min_size=1, max_size=40),
)  # fmt: skip
MACHINES = st.builds(
    Machine,
    driver=st.sampled_from(["470.256.02", "535.309.01", "570.86.15", "615.71.09"]), nvml=st.just("13.0"),
    cuda=st.sampled_from([11040, 12020, 12080, 13040]),
    gpus=st.lists(CARDS, max_size=8, unique_by=lambda gpu: gpu.uuid).map(tuple),
)  # fmt: skip
HOLDINGS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, 7),
        st.none() | st.integers(0, 9000),
        st.sampled_from(["compute", "graphics", "mps"]),
    ),
    max_size=12,
)
ERRORS = st.builds(
    Fault,
    call=st.sampled_from([f"{name}_{v}" for name in LISTS for v in ("v2", "v3")] + ["nvmlDeviceGetMemoryInfo_v2"]),
    error=st.sampled_from([0, 3, 7, 13, 15]),
)
ROWS = st.builds(Fault, pid=st.integers(1, 2), memory_mib=st.integers(0, 9000) | st.just("none"))
SCRIPTS = st.lists(ERRORS | ROWS | st.builds(Fault, used_mib=st.integers(0, 9000)), max_size=3)


def _both(probe: Probe, other: SimReader, *question: Any) -> tuple[Any, Any]:
    try:
        first = probe.ask(*question)
    except LookupError as error:
        first = error.args[0]
    try:
        second: Any = getattr(other, question[0])(*question[1:])
    except NvmlError as error:
        return first, error.reason
    return first, json.loads(json.dumps(plain(second)))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(machine=MACHINES, holdings=HOLDINGS, script=SCRIPTS)
def test_both_doors_show_the_same_machine(
    sim: Sim, probe: Probe, sleepers: list[Any], machine: Machine, holdings: list[Any], script: list[Fault]
) -> None:
    for file in (sim.folder / "processes").iterdir():
        file.unlink()
    sim.become(machine)
    pids = [process.pid for process in sleepers] + [2**22 + 1]
    for who, where, mib, kind in holdings:
        if machine.gpus:
            sim.register(pids[who], machine.gpus[where % len(machine.gpus)].uuid, mib, kind)
    sim.fail(*script)
    probe.ask("afresh")
    other = SimReader(sim)
    first, second = _both(probe, other, "gpus")
    assert first == second
    for uuid in [gpu.uuid for gpu in machine.gpus] + ["GPU-unknown"]:
        first, second = _both(probe, other, "sample", uuid)
        assert first == second


def _until_zombie(pid: int) -> None:
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.005)


def test_both_doors_show_the_same_mig_instances(sim: Sim, probe: Probe, sleepers: list[Any]) -> None:
    sim.become(Machine.named("mig"))
    (parent, _), instances = sim.machine.gpus, sim.machine.instances
    sim.register(sleepers[0].pid, instances[1].uuid, 5000)
    probe.ask("afresh")
    other = SimReader(sim)
    first, second = _both(probe, other, "gpus")
    assert first == second
    assert [(each["profile"], each["parent"]) for each in first[2:]] == [
        (profile, parent.uuid) for profile in ("1g.10gb", "1g.10gb", "3g.40gb")
    ]
    for each in instances:
        first, second = _both(probe, other, "sample", each.uuid)
        assert (first, len(first["processes"])) == (second, each == instances[1])
    assert probe.ask("raw", "nvmlDeviceGetName", f"@{instances[0].uuid}").endswith("MIG 1g.10gb")
    assert _reason(probe, "raw", "nvmlDeviceGetMigMode", f"@{instances[0].uuid}")[0] == 3
