"""Answers a healthy driver never gives: the reader turns each into a moment of blindness, and goes on."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml  # noqa: TID251 - its error classes are what the reader catches
import pytest

from enforcer.nvml.reader import LISTS, NvmlReader, Row, read_rows_lightly
from enforcer.nvml.types import ComputeMode, GpuProcess, GpuSample, Utilization
from enforcer.nvml.validation import check
from gpushare.errors import NvmlError
from gpushare.reasons import Reason
from tests.fakes.gpu.sim_nvml import SimNvml
from tests.fakes.gpu.state import Sim


class Broken(SimNvml):
    """The simulated library, except that calls listed in ``raises`` raise those errors, one after the other."""

    def __init__(self, sim: Sim) -> None:
        super().__init__(sim)
        self.raises: dict[str, list[Exception]] = {}

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        waiting = object.__getattribute__(self, "__dict__").get("raises", {}).get(name)

        def call(*arguments: Any) -> Any:
            if waiting:
                raise waiting.pop(0)
            return found(*arguments)

        return found if waiting is None else call


@pytest.fixture(name="library")
def _library(tmp_path: Path) -> Broken:
    return Broken(Sim.create(tmp_path, "single-16g"))


@pytest.fixture(name="uuid")
def _uuid(library: Broken) -> str:
    return library._sim.machine.gpus[0].uuid


def test_a_count_beyond_the_buffer_is_read_again_and_then_refused(library: Broken, uuid: str) -> None:
    reader = NvmlReader(library)
    library.raises = {"nvmlDeviceGetComputeRunningProcesses": [IndexError(), IndexError()]}
    assert reader.sample(uuid).processes == ()
    library.raises = {"nvmlDeviceGetComputeRunningProcesses": [IndexError()] * 3}
    with pytest.raises(NvmlError) as caught:
        reader.sample(uuid)
    assert caught.value.reason is Reason.IMPLAUSIBLE_SAMPLE


@pytest.mark.parametrize("version", ["c_nvmlProcessInfo_v2_t", "c_nvmlProcessInfo_v3_t"])
def test_a_row_says_of_a_process_what_nvidias_own_says(version: str) -> None:
    struct = getattr(pynvml, version)()
    struct.pid, struct.usedGpuMemory = 4711, 5 * 2**30
    own, row = pynvml.nvmlStructToFriendlyObject(struct), Row(struct)
    assert (row.pid, row.usedGpuMemory) == (own.pid, own.usedGpuMemory) == (4711, 5 * 2**30)
    row.usedGpuMemory = None  # as nvidia-ml-py does where NVML does not say
    assert row.usedGpuMemory is None


def test_nvidias_library_makes_such_rows_of_all_its_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(_: object, count: Any, rows: Any) -> int:
        if rows is None:
            count._obj.value = 1
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
        count._obj.value = 2
        rows[0].pid, rows[0].usedGpuMemory = 101, 2**30
        rows[1].pid, rows[1].usedGpuMemory = 102, pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value
        return int(pynvml.NVML_SUCCESS)

    monkeypatch.setattr(pynvml, "nvmlStructToFriendlyObject", pynvml.nvmlStructToFriendlyObject)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", lambda _: listed)
    read_rows_lightly()
    for name in (f"{each}_v{version}" for each in LISTS for version in (2, 3)):
        rows = getattr(pynvml, name)(None)
        assert [type(row) for row in rows] == [Row, Row], name
        assert [(row.pid, row.usedGpuMemory) for row in rows] == [(101, 2**30), (102, None)], name


def test_a_process_that_ends_between_list_and_total_blinds_nobody(
    library: Broken, uuid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library._sim.register(os.getpid(), uuid, 4096)
    reader = NvmlReader(library)
    empty = {"total": 16384, "reserved": 0, "used": 0}
    totals = iter([empty, empty])
    whole = reader._memory
    monkeypatch.setattr(reader, "_memory", lambda handle: next(totals, None) or whole(handle))
    assert [process.used_mib for process in reader.sample(uuid).processes] == [4096]
    monkeypatch.setattr(reader, "_memory", lambda _: empty)
    with pytest.raises(NvmlError, match=r"processes with 4096 MiB on .*, but 0"):
        reader.sample(uuid)


@pytest.mark.parametrize(
    "error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), ValueError("x")], ids=["text", "value"]
)
def test_a_name_that_is_no_text_is_refused(library: Broken, error: Exception) -> None:
    library.raises = {"nvmlDeviceGetName": [error]}
    reader = NvmlReader(library)
    with pytest.raises(NvmlError) as caught:
        reader.gpus()
    assert caught.value.reason is Reason.IMPLAUSIBLE_SAMPLE
    assert len(reader.gpus()) == 1


def test_a_compute_mode_nobody_knows_is_refused(library: Broken, uuid: str) -> None:
    library._sim.set_compute_mode(uuid, 1)
    reader = NvmlReader(library)
    with pytest.raises(NvmlError):
        reader.compute_mode(uuid)
    reader.set_compute_mode(uuid, ComputeMode.DEFAULT)
    assert reader.compute_mode(uuid) is ComputeMode.DEFAULT


def test_a_library_that_cannot_be_loaded_is_an_nvml_error(library: Broken) -> None:
    library.raises = {"nvmlInitWithFlags": [OSError("libnvidia-ml.so.1: wrong ELF class")]}
    with pytest.raises(NvmlError, match="wrong ELF class"):
        NvmlReader(library).gpus()


def test_closing_twice_and_asking_again_is_fine(library: Broken) -> None:
    reader = NvmlReader(library)
    reader.close()
    assert len(reader.gpus()) == 1
    reader.close()
    reader.close()
    assert len(reader.gpus()) == 1


@pytest.mark.parametrize(
    ("total", "used", "held", "plausible"),
    [(1000, 1000, [1000], True), (1000, 0, [256], True), (1000, 0, [257], False), (1000, 1001, [], False),
     (1000, 1000, [1001], False), (1000, 500, [400, 356], True), (1000, 500, [400, 357], False)],
)  # fmt: skip
def test_lists_and_totals_have_to_agree_within_the_slack(
    total: int,
    used: int,
    held: list[int],
    plausible: bool,  # noqa: FBT001
) -> None:
    processes = tuple(GpuProcess(pid, mib) for pid, mib in enumerate(held, 1))
    sample = GpuSample(uuid="GPU-x", total_mib=total, used_mib=used, processes=processes)
    if plausible:
        check(sample)
    else:
        with pytest.raises(NvmlError) as caught:
            check(sample)
        assert caught.value.reason is Reason.IMPLAUSIBLE_SAMPLE


def test_a_list_that_could_be_read_is_not_empty_because_it_fails(library: Broken, uuid: str) -> None:
    """Else what it showed would seem to be gone, and a container over its quota within it."""
    library._sim.register(os.getpid(), uuid, 4096, "graphics")
    silent = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    library.raises = {"nvmlDeviceGetGraphicsRunningProcesses": [silent]}
    reader = NvmlReader(library)
    assert reader.sample(uuid).processes == ()
    assert [process.used_mib for process in reader.sample(uuid).processes] == [4096]
    library.raises = {"nvmlDeviceGetGraphicsRunningProcesses": [silent]}
    with pytest.raises(NvmlError, match="does not support the query"):
        reader.sample(uuid)


def test_a_card_of_another_size_than_it_was_counted_with_is_not_believed_until_it_is_counted_again(
    library: Broken, uuid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = NvmlReader(library)
    reader.gpus()
    smaller = {"total": 8192, "reserved": 0, "used": 0}
    monkeypatch.setattr(reader, "_memory", lambda _: smaller)
    with pytest.raises(NvmlError, match="with 8192 MiB, but 16384 MiB before"):
        reader.sample(uuid)
    reader.gpus()
    assert reader.sample(uuid).total_mib == 8192


def ran_kernels(found: Utilization | None) -> tuple[int, ...] | None:
    return None if found is None else tuple(sorted(pid for pid, percent in found if percent))


def test_who_ran_kernels_after_a_moment_is_known_or_nobody_says(library: Broken, uuid: str) -> None:
    reader, own = NvmlReader(library), os.getpid()
    before = time.time_ns() // 1000 - 1
    library._sim.run_kernel(own, uuid)
    assert ran_kernels(reader.utilization(uuid, before)) == (own,)
    assert ran_kernels(reader.utilization(uuid, time.time_ns() // 1000)) == ()
    library.raises = {"nvmlDeviceGetProcessUtilization": [pynvml.NVMLError(number) for number in (3, 13, 7, 15, 999)]}
    assert [ran_kernels(reader.utilization(uuid, before)) for _ in range(5)] == [None] * 5
    assert reader._started, "a hint that cannot be had is no failure of the library"
    rows = [(0, 50), (own, 0), (7, 101), (8, 100), (own, 1)]
    library.nvmlDeviceGetProcessUtilization = lambda *_: [  # type: ignore[method-assign] # a fake answer
        SimpleNamespace(pid=pid, timeStamp=1, smUtil=share) for pid, share in rows
    ]
    assert ran_kernels(reader.utilization(uuid, before)) == tuple(sorted((8, own))), "rows that cannot be are left out"
    assert reader.utilization(uuid, before) == tuple(sorted(((8, 100), (own, 1))))
