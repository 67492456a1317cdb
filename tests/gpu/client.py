"""One CUDA program for all experiments: nothing but Python 3.11 and the driver (``libcuda.so.1``), kernels as PTX text.

It takes a context on the GPU and prints ``{"ready": true, "pid", "context_ms", "gpu", "name", "driver"}``, or an error,
with which it ends (status 1). Then it answers each line of standard input with one JSON object, until ``quit``:

    alloc MIB [HOW]         id, mib, how, ms: plain, created (cuMemCreate), pooled (cuMemAllocAsync), managed (bounded)
    free ID                 freed, mib: also what was imported or filled
    fill STEP [CAP [HOW]]   id, mib, steps, ms, refused, refused_name: allocates until it is refused, or has CAP MiB
    meminfo                 free_mib, total_mib as CUDA says, held_mib by our own account
    attributes              name, uuid, sm_count, cc, driver, devices, memory_mib
    gemm N REPEATS|SECONDSs ok, wrong, repeats, n, ms, median_ms, p99_ms, max_ms: every cell of every product is checked
    export ID               handle, mib (CUDA IPC)
    import HANDLE           id, mib, word: the exporter wrote its own id there
    fault                   an error: a kernel writes where nothing is
    sync                    synchronised: shows an error that struck meanwhile
    sleep SECONDS           slept
    setenv NAME VALUE       set, value: in the running process; ``--setenv`` counts from before the driver is loaded

Errors are ``{"error": code, "name", "call"}`` with CUDA's code; -1: the command makes no sense, -2: there is no driver.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
import uuid
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

LIBRARY: Final = "libcuda.so.1"
MIB: Final = 1 << 20
OUT_OF_MEMORY, USAGE, NO_DRIVER, ATTACH_GLOBAL, LAZY_PEER_ACCESS, PINNED, ON_DEVICE = 2, -1, -2, 1, 1, 1, 1
ATTRIBUTES: Final = (16, 75, 76)  # number of SMs, major and minor compute capability
THREADS, WILD_ADDRESS, MANAGED_CAP_MIB, MIN_N, MAX_N = 128, 0x10, 6144, 2, 4096
TAKES: Final[dict[str, tuple[Any, ...]]] = {
    "plain": ("cuMemAlloc_v2",), "managed": ("cuMemAllocManaged", ATTACH_GLOBAL), "pooled": ("cuMemAllocAsync", None),
    "created": ("",),
}  # fmt: skip
GIVES: Final = {
    "created": ("cuMemUnmap", "cuMemAddressFree"), "pooled": ("cuMemFreeAsync",), "imported": ("cuIpcCloseMemHandle",),
}  # fmt: skip
Answer = dict[str, Any]

PTX: Final = """\
.version 6.0
.target sm_70
.address_size 64
// c = (a + seed) * b, n by n, 32-bit words that wrap around; a row of the grid is a row of c.
.visible .entry gemm(.param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u32 p_n, .param .u32 p_seed) {
    .reg .pred %p<2>; .reg .b32 %r<12>; .reg .b64 %d<7>; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x; mov.u32 %r5, %ctaid.y;                                          // r5: row, r4: column
    mad.lo.u32 %r4, %r1, %r2, %r3; ld.param.u32 %r6, [p_n]; ld.param.u32 %r7, [p_seed];  // r9: the sum
    setp.ge.u32 %p1, %r4, %r6; @%p1 bra GEMM_END; mov.u32 %r9, 0; ld.param.u64 %d1, [p_a]; cvta.to.global.u64 %d1, %d1;
    ld.param.u64 %d2, [p_b]; cvta.to.global.u64 %d2, %d2; ld.param.u64 %d3, [p_c]; cvta.to.global.u64 %d3, %d3;
    mul.lo.u32 %r8, %r5, %r6; mul.wide.u32 %d4, %r8, 4;       // d4: bytes before the row
    mul.wide.u32 %d5, %r4, 4; mul.wide.u32 %d6, %r6, 4;       // d5: before the column, d6: of a row
    add.s64 %d1, %d1, %d4; add.s64 %d2, %d2, %d5; add.s64 %d3, %d3, %d4; add.s64 %d3, %d3, %d5;
GEMM_LOOP:
    ld.global.u32 %r10, [%d1]; ld.global.u32 %r11, [%d2]; add.u32 %r10, %r10, %r7; mad.lo.u32 %r9, %r10, %r11, %r9;
    add.s64 %d1, %d1, 4; add.s64 %d2, %d2, %d6; sub.u32 %r6, %r6, 1; setp.ne.u32 %p1, %r6, 0; @%p1 bra GEMM_LOOP;
    st.global.u32 [%d3], %r9; GEMM_END: ret;
}
.visible .entry fault(.param .u64 p_at) {
    .reg .b32 %r<2>; .reg .b64 %d<2>; ld.param.u64 %d1, [p_at]; mov.u32 %r1, 1; st.global.u32 [%d1], %r1; ret; }
"""


class IpcHandle(ctypes.Structure):  # CUipcMemHandle: goes by value into the call that opens it
    _fields_ = (("data", ctypes.c_ubyte * 64),)


INT, UINT, SIZE, VOID, TEXT = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
ADDRESS, UUID = ctypes.c_uint64, ctypes.c_ubyte * 16
OUT: Final = {each: ctypes.POINTER(each) for each in (INT, SIZE, ADDRESS, VOID, TEXT, UUID, IpcHandle)}
# The symbols behind cuda.h's macros. Contexts are the primary ones: cuCtxCreate is another function in CUDA 13.
SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (UINT,), "cuDriverGetVersion": (OUT[INT],), "cuGetErrorName": (INT, OUT[TEXT]),
    "cuDeviceGetCount": (OUT[INT],), "cuDeviceGet": (OUT[INT], INT), "cuDeviceGetUuid_v2": (OUT[UUID], INT),
    "cuDeviceGetName": (TEXT, INT, INT), "cuDeviceGetAttribute": (OUT[INT], INT, INT), "cuCtxSetCurrent": (VOID,),
    "cuDeviceTotalMem_v2": (OUT[SIZE], INT), "cuDevicePrimaryCtxRetain": (OUT[VOID], INT), "cuCtxSynchronize": (),
    "cuDevicePrimaryCtxRelease_v2": (INT,), "cuMemGetInfo_v2": (OUT[SIZE], OUT[SIZE]),
    "cuMemAlloc_v2": (OUT[ADDRESS], SIZE), "cuMemAllocManaged": (OUT[ADDRESS], SIZE, UINT), "cuMemFree_v2": (ADDRESS,),
    "cuMemsetD32_v2": (ADDRESS, UINT, SIZE), "cuMemcpyHtoD_v2": (ADDRESS, VOID, SIZE),
    "cuMemcpyDtoH_v2": (VOID, ADDRESS, SIZE), "cuIpcGetMemHandle": (OUT[IpcHandle], ADDRESS),
    "cuIpcOpenMemHandle_v2": (OUT[ADDRESS], IpcHandle, UINT), "cuIpcCloseMemHandle": (ADDRESS,),
    "cuMemCreate": (OUT[ADDRESS], SIZE, VOID, ADDRESS), "cuMemRelease": (ADDRESS,), "cuMemUnmap": (ADDRESS, SIZE),
    "cuMemAddressReserve": (OUT[ADDRESS], SIZE, SIZE, ADDRESS, ADDRESS), "cuMemAddressFree": (ADDRESS, SIZE),
    "cuMemMap": (ADDRESS, SIZE, SIZE, ADDRESS, ADDRESS), "cuMemSetAccess": (ADDRESS, SIZE, VOID, SIZE),
    "cuMemAllocAsync": (OUT[ADDRESS], SIZE, VOID), "cuMemFreeAsync": (ADDRESS, VOID),
    "cuModuleLoadData": (OUT[VOID], TEXT), "cuModuleGetFunction": (OUT[VOID], VOID, TEXT),
    "cuLaunchKernel": (VOID, *(UINT,) * 7, VOID, OUT[VOID], OUT[VOID]),
}  # fmt: skip


class CudaError(Exception):
    """A call that failed, as it is answered: CUDA's number and name, and which call."""

    def __init__(self, code: int, name: str, call: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.answer: Answer = {"error": code, "name": name, "call": call}


class Driver:
    """``libcuda.so.1`` with every call's types set. Raises ``CudaError`` (-2) where there is none."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
            for name, types in SIGNATURES.items():
                function = getattr(self._library, name)
                function.argtypes, function.restype = types, INT
        except (OSError, AttributeError) as error:
            raise CudaError(NO_DRIVER, str(error), LIBRARY) from None

    def call(self, name: str, *arguments: Any) -> None:
        """One call. Raises ``CudaError``."""
        code, text = getattr(self._library, name)(*arguments), TEXT()
        if code != 0:
            self._library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(code, (text.value or b"CUDA error %d" % code).decode(), name)

    def out(self, kind: Any, name: str, *arguments: Any) -> Any:
        """A call whose first parameter takes a value out; a handle comes as a number, too."""
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value if hasattr(value, "value") else value


class Gpu:
    """One GPU with its primary context current in this thread. Raises ``CudaError``."""

    def __init__(self, driver: Driver, wanted: str) -> None:
        self.driver = driver
        driver.call("cuInit", 0)
        found = [driver.out(INT, "cuDeviceGet", ordinal) for ordinal in range(driver.out(INT, "cuDeviceGetCount"))]
        raw = (bytes(driver.out(UUID, "cuDeviceGetUuid_v2", device)) for device in found)
        self.devices = [f"GPU-{uuid.UUID(bytes=each)}" for each in raw]
        self.uuid = self._chosen(wanted)
        self.device = found[self.devices.index(self.uuid)]
        driver.call("cuCtxSetCurrent", driver.out(VOID, "cuDevicePrimaryCtxRetain", self.device))
        name = ctypes.create_string_buffer(256)
        driver.call("cuDeviceGetName", name, len(name), self.device)
        self.name, self.version = name.value.decode(errors="replace"), driver.out(INT, "cuDriverGetVersion")
        self._functions: dict[str, int] = {}

    def _chosen(self, wanted: str) -> str:
        if wanted.isdecimal() and int(wanted) < len(self.devices):
            return self.devices[int(wanted)]
        # An instance of MIG shows its own UUID here, without saying which kind it is.
        found = [each for each in self.devices if each[4:] == wanted.removeprefix("GPU-").removeprefix("MIG-")]
        if found:
            return found[0]
        raise CudaError(USAGE, f"CUDA shows no GPU {wanted}; it shows {self.devices}", "--gpu")

    def memory(self) -> tuple[int, int]:
        """Free and total bytes as CUDA says."""
        free, total = SIZE(), SIZE()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def launch(self, name: str, side: int, *arguments: Any) -> None:
        """Run a kernel, one thread per cell of a square, and wait for its end."""
        if not self._functions:
            # Not before it is needed: compiling PTX takes a library that a container may lack.
            module = self.driver.out(VOID, "cuModuleLoadData", PTX.encode())
            for each in ("gemm", "fault"):
                self._functions[each] = self.driver.out(VOID, "cuModuleGetFunction", module, each.encode())
        addresses = (VOID * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        sizes = (-(-side // THREADS), side, 1, min(side, THREADS), 1, 1, 0)
        self.driver.call("cuLaunchKernel", self._functions[name], *sizes, None, addresses, None)
        self.driver.call("cuCtxSynchronize")


class Product:
    """(a + seed) * b for two known matrices: a[i][k] = i + k, b[k][j] = k + 2j + 1, so that each cell is known too."""

    def __init__(self, gpu: Gpu, n: int) -> None:
        self._gpu, self.n, self._bytes, self._turn = gpu, n, 4 * n * n, 0
        self._result, self._expected = (ctypes.c_char * self._bytes)(), [self._right(seed) for seed in (0, 1)]
        self.mib, self._base = (
            round(3 * self._bytes / MIB, 1),
            gpu.driver.out(ADDRESS, "cuMemAlloc_v2", 3 * self._bytes),
        )
        self._addresses = [self._base + part * self._bytes for part in range(3)]
        a, b = (range(i, i + n) for i in range(n)), (range(k + 1, k + 2 * n + 1, 2) for k in range(n))
        for address, matrix in zip(self._addresses, (a, b), strict=False):
            data = b"".join(array("I", row).tobytes() for row in matrix)
            gpu.driver.call("cuMemcpyHtoD_v2", address, data, self._bytes)

    def _right(self, seed: int) -> bytes:
        # With p = i + seed, q = 2j + 1: the sum over k of (p + k)(q + k). Along a row it grows by the same each time.
        n, first, second = self.n, sum(range(self.n)), sum(k * k for k in range(self.n))
        along = ((n * p + p * first + first + second, 2 * (n * p + first)) for p in range(seed, n + seed))
        rows = (array("Q", range(start, start + n * step, step)) for start, step in along)
        low = 0 if sys.byteorder == "little" else 1
        return b"".join(array("I", row.tobytes())[low::2].tobytes() for row in rows)

    def compute(self) -> tuple[float, bool]:
        """One product: milliseconds, and whether every cell is right. Two seeds take turns: what is left is wrong."""
        self._turn, begun = 1 - self._turn, time.perf_counter()
        self._gpu.launch("gemm", self.n, *map(ADDRESS, self._addresses), UINT(self.n), UINT(self._turn))
        took = since(begun)
        self._gpu.driver.call("cuMemcpyDtoH_v2", self._result, self._addresses[2], self._bytes)
        return took, self._result.raw == self._expected[self._turn]

    def free(self) -> None:
        self._gpu.driver.call("cuMemFree_v2", self._base)


class Session:
    """Answers commands. Every method that begins with ``do_`` is one; its parameters are the command's words."""

    def __init__(self, gpu: Gpu, managed_cap_mib: int) -> None:
        self._gpu, self._driver, self._cap = gpu, gpu.driver, managed_cap_mib
        self._blocks: dict[int, tuple[int, str, tuple[int, ...]]] = {}  # MiB, how, addresses
        self._product: Product | None = None
        self._ids = 0

    def answer(self, line: str) -> Answer:
        """The answer to one line, errors included."""
        word, *rest = line.split() or [""]
        method: Callable[..., Answer] | None = getattr(self, f"do_{word}", None)
        try:
            return method(*rest) if method else {"error": USAGE, "name": "no such command", "call": word}
        except CudaError as error:
            return error.answer
        except (TypeError, ValueError, IndexError) as error:
            return {"error": USAGE, "name": f"{line.strip()}: {error}", "call": word}

    def _keep(self, mib: int, how: str, *addresses: int) -> int:
        self._ids += 1
        self._blocks[self._ids] = mib, how, addresses
        return self._ids

    def _block(self, number: str) -> tuple[int, str, tuple[int, ...]]:
        if not number.isdecimal() or int(number) not in self._blocks:
            raise ValueError(f"nothing is held under {number!r}")
        return self._blocks[int(number)]

    def do_alloc(self, mib: str, how: str = "plain") -> Answer:
        # More managed memory than is free would move out what others have.
        if how == "managed" and int(mib) > (bound := min(self._cap, self._gpu.memory()[0] // MIB)):
            raise ValueError(f"managed memory is bounded by --managed-cap and by what is free: {bound} MiB")
        begun, address = time.perf_counter(), self._take(int(mib), how)
        return {"id": self._keep(int(mib), how, address), "mib": int(mib), "how": how, "ms": since(begun)}

    def _take(self, mib: int, how: str) -> int:
        if how not in TAKES or mib <= 0:
            raise ValueError(f"MIB more than 0, then one of {', '.join(TAKES)}")
        call, *more = TAKES[how]
        address: int = self._driver.out(ADDRESS, call, mib * MIB, *more) if call else self._created(mib * MIB)
        if how == "managed":  # on the GPU because the GPU wrote it
            self._driver.call("cuMemsetD32_v2", address, 1, mib * MIB // 4)
            self._driver.call("cuCtxSynchronize")
        return address

    def _created(self, size: int) -> int:
        # CUmemAllocationProp and CUmemAccessDesc, as words: memory of this device, which reads and writes it.
        wanted, access = (INT * 8)(PINNED, 0, ON_DEVICE, self._gpu.device), (INT * 3)(ON_DEVICE, self._gpu.device, 3)
        handle = self._driver.out(ADDRESS, "cuMemCreate", size, wanted, 0)
        address: int = self._driver.out(ADDRESS, "cuMemAddressReserve", size, 0, 0, 0)
        self._driver.call("cuMemMap", address, size, 0, handle, 0)
        self._driver.call("cuMemRelease", handle)  # from now on it lives as long as it is mapped
        self._driver.call("cuMemSetAccess", address, size, access, 1)
        return address

    def do_free(self, number: str) -> Answer:
        mib, how, addresses = self._block(number)
        more: tuple[Any, ...] = {"created": (mib * MIB // max(1, len(addresses)),), "pooled": (None,)}.get(how, ())
        for address in addresses:
            for call in GIVES.get(how, ("cuMemFree_v2",)):
                self._driver.call(call, address, *more)
        self._driver.call("cuCtxSynchronize")  # until then a pool keeps what was freed
        del self._blocks[int(number)]
        return {"freed": int(number), "mib": mib}

    def do_fill(self, step: str, cap: str = "0", how: str = "plain") -> Answer:
        """As fast as it goes: nothing is asked between two steps, and managed memory is bounded by its cap alone."""
        size, begun, addresses, refused = int(step), time.perf_counter(), list[int](), Answer()
        most = min(int(cap) or sys.maxsize, self._cap if how == "managed" else sys.maxsize)
        while not refused and size * (len(addresses) + 1) <= most:
            try:
                addresses.append(self._take(size, how))
            except CudaError as error:
                refused = error.answer
        figures: Answer = {"mib": size * len(addresses), "steps": len(addresses), "ms": since(begun)}
        figures["id"] = self._keep(figures["mib"], how, *addresses)
        if refused.get("error", OUT_OF_MEMORY) != OUT_OF_MEMORY:
            return refused | figures
        return figures | {"refused": refused.get("error", 0), "refused_name": refused.get("name", "")}

    def do_meminfo(self) -> Answer:
        free, total = self._gpu.memory()
        held = sum(mib for mib, _, _ in self._blocks.values()) + (self._product.mib if self._product else 0)
        return {"free_mib": free // MIB, "total_mib": total // MIB, "held_mib": held}

    def do_attributes(self) -> Answer:
        sms, *cc = [self._driver.out(INT, "cuDeviceGetAttribute", each, self._gpu.device) for each in ATTRIBUTES]
        said = {"name": self._gpu.name, "uuid": self._gpu.uuid, "devices": self._gpu.devices}
        said["memory_mib"] = self._driver.out(SIZE, "cuDeviceTotalMem_v2", self._gpu.device) // MIB
        return said | {"sm_count": sms, "cc": "{}.{}".format(*cc), "driver": self._gpu.version}

    def do_gemm(self, n: str, repeats: str) -> Answer:
        """REPEATS products, or as many as fit into so many seconds (``2.5s``); the buffers stay for the next."""
        timed = repeats.endswith("s")
        seconds, most = (float(repeats[:-1]), sys.maxsize) if timed else (float("inf"), int(repeats))
        if not MIN_N <= int(n) <= MAX_N:
            raise ValueError(f"gemm works on {MIN_N} to {MAX_N}")
        if self._product is not None and self._product.n != int(n):
            self._product.free()
            self._product = None
        self._product = self._product or Product(self._gpu, int(n))
        end, turns = time.monotonic() + seconds, list[tuple[float, bool]]()
        while time.monotonic() < end and len(turns) < most:
            turns.append(self._product.compute())
        wrong = sum(not right for _, right in turns)
        return {"ok": not wrong, "wrong": wrong, "n": int(n), "repeats": len(turns), **spread([ms for ms, _ in turns])}

    def do_export(self, number: str) -> Answer:
        mib, _, addresses = self._block(number)
        self._driver.call("cuMemsetD32_v2", addresses[0], int(number), MIB // 4)
        self._driver.call("cuCtxSynchronize")
        handle = self._driver.out(IpcHandle, "cuIpcGetMemHandle", addresses[0])
        return {"handle": f"{bytes(handle).hex()}:{mib}", "mib": mib}

    def do_import(self, handle: str) -> Answer:
        data, _, mib = handle.partition(":")
        if len(data) != 2 * ctypes.sizeof(IpcHandle) or not mib.isdecimal():
            raise ValueError("import what export said")
        opened, word = IpcHandle.from_buffer_copy(bytes.fromhex(data)), UINT()
        address = self._driver.out(ADDRESS, "cuIpcOpenMemHandle_v2", opened, LAZY_PEER_ACCESS)
        number = self._keep(int(mib), "imported", address)
        self._driver.call("cuMemcpyDtoH_v2", ctypes.byref(word), address, 4)
        return {"id": number, "mib": int(mib), "word": word.value}

    def do_fault(self) -> Answer:
        self._gpu.launch("fault", 1, ADDRESS(WILD_ADDRESS))
        return {"fault": "nothing happened"}

    def do_sync(self) -> Answer:
        self._driver.call("cuCtxSynchronize")
        return {"synchronised": True}

    def do_sleep(self, seconds: str) -> Answer:
        time.sleep(float(seconds))
        return {"slept": float(seconds)}

    def do_setenv(self, name: str, value: str) -> Answer:
        os.environ[name] = value
        return {"set": name, "value": value}


def spread(times: Sequence[float]) -> Answer:
    """What there is to say about some durations in milliseconds."""
    ordered = sorted(times) or [0.0]
    p99 = ordered[min(len(ordered) - 1, 99 * len(ordered) // 100)]
    figures = {"ms": sum(times), "median_ms": statistics.median(ordered), "p99_ms": p99, "max_ms": ordered[-1]}
    return {name: round(value, 4) for name, value in figures.items()}


def since(begun: float) -> float:
    """Milliseconds since a moment of ``perf_counter``."""
    return round(1000 * (time.perf_counter() - begun), 4)


def main(argv: Sequence[str]) -> int:
    """Take a context, then answer."""
    options = argparse.ArgumentParser(prog="client.py", description="one CUDA program for experiments")
    options.add_argument("--gpu", default="0", help="UUID, or ordinal among what CUDA shows (default: 0)")
    options.add_argument("--setenv", action="append", default=[], help="NAME=VALUE, before the driver is loaded")
    options.add_argument("--managed-cap", type=int, default=MANAGED_CAP_MIB, help="MiB of managed memory at a time")
    chosen = options.parse_args(argv)
    # No compiled kernels are left in a home folder, which a tenant's user may not have.
    os.environ.update({"CUDA_CACHE_DISABLE": "1"} | dict(each.partition("=")[::2] for each in chosen.setenv))
    begun = time.perf_counter()
    try:
        gpu = Gpu(Driver(), chosen.gpu)
    except CudaError as error:
        print(json.dumps(error.answer | {"pid": os.getpid()}), flush=True)
        return 1
    ready = {"ready": True, "pid": os.getpid(), "context_ms": since(begun), "gpu": gpu.uuid, "name": gpu.name}
    print(json.dumps(ready | {"driver": gpu.version}), flush=True)
    session = Session(gpu, chosen.managed_cap)
    for line in iter(sys.stdin.readline, ""):
        if line.split() == ["quit"]:
            break
        print(json.dumps(session.answer(line)), flush=True)
    with suppress(CudaError):
        gpu.driver.call("cuDevicePrimaryCtxRelease_v2", gpu.device)
    print(json.dumps({"quit": True}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
