"""One CUDA program for all experiments: nothing but Python 3.11 and the driver (``libcuda.so.1``), kernels as PTX text.

    python client.py [--gpu UUID|ORDINAL] [--setenv NAME=VALUE]... [--managed-cap MIB]

It takes a context on the GPU and prints ``{"ready": true, "pid", "context_ms", "gpu", "name", "driver"}``, or an error,
with which it ends (status 1). Then it answers each line of standard input with one JSON object, until ``quit``:

    alloc MIB [managed]     {"id", "mib", "managed", "ms"}         managed memory is touched by the GPU, and bounded
    free ID                 {"freed", "mib"}                       also what was imported or filled
    fill STEP [CAP]         {"id", "mib", "steps", "refused", "refused_name", "ms"}  allocates until refused (or CAP)
    meminfo                 {"free_mib", "total_mib", "held_mib"}  what cuMemGetInfo says, and what we hold by ourselves
    attributes              {"name", "uuid", "sm_count", "cc", "driver", "devices"}
    gemm N REPEATS|SECONDSs {"ok", "wrong", "repeats", "n", "ms", "median_ms", "p99_ms", "max_ms"}  every product checked
    export ID               {"handle", "mib"}                      CUDA IPC
    import HANDLE           {"id", "mib", "word"}                  "word": the exporter wrote its id there
    fault                   an error: a kernel writes where nothing is
    sync                    {"synchronised": true}                 shows an error that struck meanwhile
    sleep SECONDS           {"slept"}
    setenv NAME VALUE       {"set", "value"}                       in the running process
    quit                    {"quit": true}

Errors are ``{"error": code, "name", "call"}`` with CUDA's code; -1: the command makes no sense, -2: there is no driver.
The process goes on after an error, as a real program might. ``--setenv`` counts from before the driver is loaded.
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
from dataclasses import dataclass
from typing import Any, Final

LIBRARY: Final = "libcuda.so.1"
MIB: Final = 1 << 20
OUT_OF_MEMORY: Final = 2
USAGE: Final = -1
NO_DRIVER: Final = -2
ATTACH_GLOBAL: Final = 1
LAZY_PEER_ACCESS: Final = 1
SM_COUNT, CC_MAJOR, CC_MINOR = 16, 75, 76
BLOCK: Final = 128
MIN_N, MAX_N = 2, 4096
WILD_POINTER: Final = 0x10
MANAGED_CAP_MIB: Final = 6144
Answer = dict[str, Any]

PTX: Final = """\
.version 6.0
.target sm_70
.address_size 64

// c = (a + seed) * b, n by n, 32-bit words that wrap around; a row of the grid is a row of c.
.visible .entry gemm(.param .u64 p_a, .param .u64 p_b, .param .u64 p_c, .param .u32 p_n, .param .u32 p_seed)
{
    .reg .pred %p<2>;
    .reg .b32 %r<12>;
    .reg .b64 %d<7>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;  // column
    mov.u32 %r5, %ctaid.y;          // row
    ld.param.u32 %r6, [p_n];
    setp.ge.u32 %p1, %r4, %r6;
    @%p1 bra GEMM_END;
    ld.param.u32 %r7, [p_seed];
    ld.param.u64 %d1, [p_a];
    ld.param.u64 %d2, [p_b];
    ld.param.u64 %d3, [p_c];
    cvta.to.global.u64 %d1, %d1;
    cvta.to.global.u64 %d2, %d2;
    cvta.to.global.u64 %d3, %d3;
    mul.lo.u32 %r8, %r5, %r6;
    mul.wide.u32 %d4, %r8, 4;       // bytes before the row
    mul.wide.u32 %d5, %r4, 4;       // bytes before the column
    mul.wide.u32 %d6, %r6, 4;       // bytes of a row
    add.s64 %d1, %d1, %d4;
    add.s64 %d2, %d2, %d5;
    add.s64 %d3, %d3, %d4;
    add.s64 %d3, %d3, %d5;
    mov.u32 %r9, 0;                 // sum
GEMM_LOOP:
    ld.global.u32 %r10, [%d1];
    ld.global.u32 %r11, [%d2];
    add.u32 %r10, %r10, %r7;
    mad.lo.u32 %r9, %r10, %r11, %r9;
    add.s64 %d1, %d1, 4;
    add.s64 %d2, %d2, %d6;
    sub.u32 %r6, %r6, 1;
    setp.ne.u32 %p1, %r6, 0;
    @%p1 bra GEMM_LOOP;
    st.global.u32 [%d3], %r9;
GEMM_END:
    ret;
}

.visible .entry fault(.param .u64 p_at)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<2>;
    ld.param.u64 %d1, [p_at];
    mov.u32 %r1, 1;
    st.global.u32 [%d1], %r1;
    ret;
}
"""


class Uuid(ctypes.Structure):
    """CUuuid."""

    _fields_ = (("data", ctypes.c_ubyte * 16),)


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle: goes by value into the call that opens it."""

    _fields_ = (("data", ctypes.c_ubyte * 64),)


_INT, _UINT, _SIZE, _POINTER, _VOID, _TEXT = (
    ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p,
)  # fmt: skip
SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    # The symbols behind cuda.h's macros. Contexts are the primary ones: cuCtxCreate is another function in CUDA 13.
    "cuInit": (_UINT,),
    "cuDriverGetVersion": (ctypes.POINTER(_INT),),
    "cuDeviceGetCount": (ctypes.POINTER(_INT),),
    "cuDeviceGet": (ctypes.POINTER(_INT), _INT),
    "cuDeviceGetUuid_v2": (ctypes.POINTER(Uuid), _INT),
    "cuDeviceGetName": (_TEXT, _INT, _INT),
    "cuDeviceGetAttribute": (ctypes.POINTER(_INT), _INT, _INT),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(_VOID), _INT),
    "cuDevicePrimaryCtxRelease_v2": (_INT,),
    "cuCtxSetCurrent": (_VOID,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (ctypes.POINTER(_POINTER), _SIZE),
    "cuMemAllocManaged": (ctypes.POINTER(_POINTER), _SIZE, _UINT),
    "cuMemFree_v2": (_POINTER,),
    "cuMemGetInfo_v2": (ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE)),
    "cuMemsetD32_v2": (_POINTER, _UINT, _SIZE),
    "cuMemcpyHtoD_v2": (_POINTER, _VOID, _SIZE),
    "cuMemcpyDtoH_v2": (_VOID, _POINTER, _SIZE),
    "cuIpcGetMemHandle": (ctypes.POINTER(IpcHandle), _POINTER),
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(_POINTER), IpcHandle, _UINT),
    "cuIpcCloseMemHandle": (_POINTER,),
    "cuModuleLoadData": (ctypes.POINTER(_VOID), _TEXT),
    "cuModuleGetFunction": (ctypes.POINTER(_VOID), _VOID, _TEXT),
    "cuLaunchKernel": (_VOID, *(_UINT,) * 7, _VOID, ctypes.POINTER(_VOID), ctypes.POINTER(_VOID)),
    "cuGetErrorName": (_INT, ctypes.POINTER(_TEXT)),
}


class CudaError(Exception):
    """A call that failed: CUDA's number and name, and which call."""

    def __init__(self, code: int, name: str, call: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code, self.answer = code, {"error": code, "name": name, "call": call}


class Driver:
    """``libcuda.so.1`` with every call's types set. Raises ``CudaError`` (-2) where there is none."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError(NO_DRIVER, str(error), LIBRARY) from None
        for name, types in SIGNATURES.items():
            function = getattr(self._library, name, None)
            if function is None:
                raise CudaError(NO_DRIVER, f"the driver has no {name}", LIBRARY)
            function.argtypes, function.restype = types, _INT

    def call(self, name: str, *arguments: Any) -> None:
        """One call. Raises ``CudaError``."""
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise CudaError(code, self.name_of(code), name)

    def name_of(self, code: int) -> str:
        """CUDA_ERROR_..., or the bare number where the driver knows none."""
        text = _TEXT()
        known = self._library.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value is not None
        return (text.value or b"").decode() if known else f"CUDA error {code}"

    def number(self, name: str, *arguments: Any) -> int:
        """A call whose first parameter takes an int out."""
        value = _INT()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def pointer(self, name: str, *arguments: Any) -> int:
        """A call whose first parameter takes a device pointer out."""
        value = _POINTER()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def handle(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """A call whose first parameter takes an opaque handle out."""
        value = _VOID()
        self.call(name, ctypes.byref(value), *arguments)
        return value


class UsageError(CudaError):
    """A command that makes no sense; CUDA was not asked."""

    def __init__(self, text: str) -> None:
        super().__init__(USAGE, text, "command")


@dataclass(frozen=True, slots=True)
class Block:
    """Memory we hold under one id: pointers, MiB, and the call that gives each pointer back."""

    pointers: tuple[int, ...]
    mib: int
    give_back: str = "cuMemFree_v2"


class Gpu:
    """One GPU with its primary context current in this thread. Raises ``CudaError``."""

    def __init__(self, driver: Driver, wanted: str) -> None:
        self.driver = driver
        driver.call("cuInit", 0)
        count = driver.number("cuDeviceGetCount")
        self.devices = [self._uuid(driver.number("cuDeviceGet", ordinal)) for ordinal in range(count)]
        self.uuid = self._chosen(wanted)
        self.device = driver.number("cuDeviceGet", self.devices.index(self.uuid))
        driver.call("cuCtxSetCurrent", driver.handle("cuDevicePrimaryCtxRetain", self.device))
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _uuid(self, device: int) -> str:
        data = Uuid()
        self.driver.call("cuDeviceGetUuid_v2", ctypes.byref(data), device)
        return f"GPU-{uuid.UUID(bytes=bytes(data))}"

    def _chosen(self, wanted: str) -> str:
        if wanted.isdecimal() and int(wanted) < len(self.devices):
            return self.devices[int(wanted)]
        # An instance of MIG shows its own UUID here, without saying which kind it is.
        found = [each for each in self.devices if each[4:] == wanted.removeprefix("GPU-").removeprefix("MIG-")]
        if not found:
            raise UsageError(f"CUDA shows no GPU {wanted}; it shows {', '.join(self.devices) or 'none'}")
        return found[0]

    def attribute(self, number: int) -> int:
        """cuDeviceGetAttribute."""
        return self.driver.number("cuDeviceGetAttribute", number, self.device)

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self.driver.call("cuDeviceGetName", text, len(text), self.device)
        return text.value.decode(errors="replace")

    def memory(self) -> tuple[int, int]:
        """Free and total bytes as CUDA says."""
        free, total = _SIZE(), _SIZE()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def launch(self, name: str, side: int, *arguments: Any) -> None:
        """Run a kernel, one thread per cell of a square, and wait for its end."""
        if not self._functions:
            # Not before it is needed: compiling PTX takes a library that a container may lack.
            module = self.driver.handle("cuModuleLoadData", PTX.encode())
            for each in ("gemm", "fault"):
                self._functions[each] = self.driver.handle("cuModuleGetFunction", module, each.encode())
        addresses = (_VOID * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        sizes = (-(-side // BLOCK), side, 1, min(side, BLOCK), 1, 1, 0)
        self.driver.call("cuLaunchKernel", self._functions[name], *sizes, None, addresses, None)
        self.driver.call("cuCtxSynchronize")


class Product:
    """(a + seed) * b for two known matrices: a[i][k] = i + k, b[k][j] = k + 2j + 1, so that each cell is known too."""

    def __init__(self, gpu: Gpu, n: int) -> None:
        self._gpu, self.n, self._bytes = gpu, n, 4 * n * n
        self._pointers: list[int] = []
        self._result = (ctypes.c_char * self._bytes)()
        self._expected = [self._product(seed) for seed in (0, 1)]
        try:
            for _ in range(3):
                self._pointers.append(gpu.driver.pointer("cuMemAlloc_v2", self._bytes))
            rows = (range(i, i + n) for i in range(n)), (range(k + 1, k + 2 * n + 1, 2) for k in range(n))
            for pointer, matrix in zip(self._pointers, rows, strict=False):
                data = b"".join(array("I", row).tobytes() for row in matrix)
                gpu.driver.call("cuMemcpyHtoD_v2", pointer, data, self._bytes)
        except CudaError:
            self.free()
            raise

    def _product(self, seed: int) -> bytes:
        # With p = i + seed and q = 2j + 1: the sum over k of (p + k)(q + k). Along a row it grows by the same each time.
        n, first, second = self.n, sum(range(self.n)), sum(k * k for k in range(self.n))
        starts = [n * p + p * first + first + second for p in range(seed, n + seed)]
        steps = [2 * (n * p + first) for p in range(seed, n + seed)]
        rows = (array("Q", range(s, s + n * d, d)) for s, d in zip(starts, steps, strict=True))
        low = 0 if sys.byteorder == "little" else 1
        return b"".join(array("I", row.tobytes())[low::2].tobytes() for row in rows)

    def compute(self, turn: int) -> tuple[float, bool]:
        """One product: milliseconds, and whether every cell is right. Two seeds take turns: what is left is wrong."""
        seed, begun = turn % 2, time.perf_counter()
        values = [*map(_POINTER, self._pointers), _UINT(self.n), _UINT(seed)]
        self._gpu.launch("gemm", self.n, *values)
        took = 1000 * (time.perf_counter() - begun)
        self._gpu.driver.call("cuMemcpyDtoH_v2", self._result, self._pointers[2], self._bytes)
        return took, self._result.raw == self._expected[seed]

    def free(self) -> None:
        while self._pointers:
            self._gpu.driver.call("cuMemFree_v2", self._pointers.pop())

    @property
    def mib(self) -> float:
        return 3 * self._bytes / MIB


class Session:
    """Answers commands. Every method that begins with ``do_`` is one; its parameters are the command's words."""

    def __init__(self, gpu: Gpu, managed_cap_mib: int) -> None:
        self._gpu, self._cap = gpu, managed_cap_mib
        self._blocks: dict[int, Block] = {}
        self._product: Product | None = None
        self._ids = 0

    def answer(self, line: str) -> Answer:
        """The answer to one line, errors included."""
        word, *rest = line.split() or [""]
        method: Callable[..., Answer] | None = getattr(self, f"do_{word}", None)
        try:
            if method is None:
                raise UsageError(f"no command {word!r}")
            return method(*rest)
        except CudaError as error:
            return error.answer
        except (TypeError, ValueError) as error:
            return UsageError(f"{line.strip()}: {error}").answer

    def _keep(self, block: Block) -> int:
        self._ids += 1
        self._blocks[self._ids] = block
        return self._ids

    def _block(self, number: str) -> Block:
        if not number.isdecimal() or int(number) not in self._blocks:
            raise UsageError(f"nothing is held under {number!r}")
        return self._blocks[int(number)]

    def do_alloc(self, mib: str, kind: str = "plain") -> Answer:
        if kind not in {"plain", "managed"} or int(mib) <= 0:
            raise UsageError("alloc MIB [managed]")
        driver, size, begun = self._gpu.driver, int(mib) * MIB, time.perf_counter()
        if kind == "plain":
            pointer = driver.pointer("cuMemAlloc_v2", size)
        else:
            pointer = self._managed(size)
        number = self._keep(Block((pointer,), int(mib)))
        return {"id": number, "mib": int(mib), "managed": kind == "managed", "ms": since(begun)}

    def _managed(self, size: int) -> int:
        """Memory that is on the GPU because the GPU wrote it; more than is free would move out what others have."""
        driver, free = self._gpu.driver, self._gpu.memory()[0]
        if size > min(self._cap * MIB, free):
            raise UsageError(
                f"managed memory is bounded: at most {self._cap} MiB, and what is free ({free // MIB} MiB)"
            )
        pointer = driver.pointer("cuMemAllocManaged", size, ATTACH_GLOBAL)
        driver.call("cuMemsetD32_v2", pointer, 1, size // 4)
        driver.call("cuCtxSynchronize")
        return pointer

    def do_free(self, number: str) -> Answer:
        block = self._block(number)
        for pointer in block.pointers:
            self._gpu.driver.call(block.give_back, pointer)
        del self._blocks[int(number)]
        return {"freed": int(number), "mib": block.mib}

    def do_fill(self, step: str, cap: str = "0") -> Answer:
        """As fast as it goes: nothing is asked between two steps."""
        size, most, begun = int(step), int(cap), time.perf_counter()
        if size <= 0:
            raise UsageError("fill STEP_MIB [CAP_MIB]")
        pointers: list[int] = []
        refused: Answer = {}
        while not refused and not 0 < most < size * (len(pointers) + 1):
            try:
                pointers.append(self._gpu.driver.pointer("cuMemAlloc_v2", size * MIB))
            except CudaError as error:
                refused = error.answer
        mib = size * len(pointers)
        figures = {"mib": mib, "steps": len(pointers), "ms": since(begun), "id": self._keep(Block((*pointers,), mib))}
        if refused.get("error", OUT_OF_MEMORY) != OUT_OF_MEMORY:
            return refused | figures
        return figures | {"refused": refused.get("error", 0), "refused_name": refused.get("name", "")}

    def do_meminfo(self) -> Answer:
        free, total = self._gpu.memory()
        held = sum(block.mib for block in self._blocks.values()) + (self._product.mib if self._product else 0)
        return {"free_mib": free // MIB, "total_mib": total // MIB, "held_mib": held}

    def do_attributes(self) -> Answer:
        gpu = self._gpu
        return {
            "name": gpu.name, "uuid": gpu.uuid, "sm_count": gpu.attribute(SM_COUNT), "devices": gpu.devices,
            "cc": f"{gpu.attribute(CC_MAJOR)}.{gpu.attribute(CC_MINOR)}",
            "driver": gpu.driver.number("cuDriverGetVersion"),
        }  # fmt: skip

    def do_gemm(self, n: str, repeats: str) -> Answer:
        """REPEATS products, or as many as fit into so many seconds (``2.5s``); the buffers stay for the next."""
        if not MIN_N <= int(n) <= MAX_N:
            raise UsageError(f"gemm works on {MIN_N} to {MAX_N}")
        if self._product is None or self._product.n != int(n):
            self._drop_product()
            self._product = Product(self._gpu, int(n))
        timed = repeats.endswith("s")
        end = time.monotonic() + float(repeats[:-1]) if timed else float("inf")
        times, wrong = list[float](), 0
        while time.monotonic() < end and (timed or len(times) < int(repeats)):
            took, right = self._product.compute(len(times))
            times.append(took)
            wrong += not right
        return {"ok": not wrong, "wrong": wrong, "n": int(n), "repeats": len(times), **spread(times)}

    def _drop_product(self) -> None:
        product, self._product = self._product, None
        if product is not None:
            product.free()

    def do_export(self, number: str) -> Answer:
        block, driver, handle = self._block(number), self._gpu.driver, IpcHandle()
        if len(block.pointers) != 1:
            raise UsageError("only what alloc gave can be exported")
        driver.call("cuMemsetD32_v2", block.pointers[0], int(number), MIB // 4)
        driver.call("cuCtxSynchronize")
        driver.call("cuIpcGetMemHandle", ctypes.byref(handle), block.pointers[0])
        # The handle does not carry the size, and nothing in CUDA's documented calls tells it without one more context.
        return {"handle": f"{bytes(handle).hex()}:{block.mib}", "mib": block.mib}

    def do_import(self, handle: str) -> Answer:
        data, _, mib = handle.partition(":")
        opened = IpcHandle.from_buffer_copy(bytes.fromhex(data))
        pointer = self._gpu.driver.pointer("cuIpcOpenMemHandle_v2", opened, LAZY_PEER_ACCESS)
        number, word = self._keep(Block((pointer,), int(mib or 0), "cuIpcCloseMemHandle")), _UINT()
        self._gpu.driver.call("cuMemcpyDtoH_v2", ctypes.byref(word), pointer, 4)
        return {"id": number, "mib": int(mib or 0), "word": word.value}

    def do_fault(self) -> Answer:
        self._gpu.launch("fault", 1, _POINTER(WILD_POINTER))
        return {"fault": "nothing happened"}

    def do_sync(self) -> Answer:
        self._gpu.driver.call("cuCtxSynchronize")
        return {"synchronised": True}

    def do_sleep(self, seconds: str) -> Answer:
        time.sleep(float(seconds))
        return {"slept": float(seconds)}

    def do_setenv(self, name: str, value: str) -> Answer:
        os.environ[name] = value
        return {"set": name, "value": value}

    def do_quit(self) -> Answer:
        raise SystemExit(0)


def since(begun: float) -> float:
    """Milliseconds since a moment of ``perf_counter``."""
    return round(1000 * (time.perf_counter() - begun), 3)


def spread(times: Sequence[float]) -> Answer:
    """What there is to say about some durations in milliseconds."""
    if not times:
        return {"ms": 0.0}
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, 99 * len(ordered) // 100)]
    figures = {"ms": sum(times), "median_ms": statistics.median(times), "p99_ms": p99, "max_ms": ordered[-1]}
    return {name: round(value, 4) for name, value in figures.items()}


def say(answer: Answer) -> None:
    """One line."""
    print(json.dumps(answer), flush=True)


def main(argv: Sequence[str]) -> int:
    """Take a context, then answer."""
    options = argparse.ArgumentParser(prog="client.py", description="one CUDA program for experiments")
    options.add_argument("--gpu", default="0", help="UUID, or ordinal among what CUDA shows (default: 0)")
    options.add_argument(
        "--setenv", action="append", default=[], metavar="NAME=VALUE", help="before the driver is loaded"
    )
    options.add_argument(
        "--managed-cap", type=int, default=MANAGED_CAP_MIB, metavar="MIB", help="bound of managed memory"
    )
    chosen = options.parse_args(argv)
    os.environ.update(each.split("=", 1) for each in chosen.setenv)
    # No compiled kernels are left in a home folder, which a tenant's user may not have.
    os.environ.setdefault("CUDA_CACHE_DISABLE", "1")
    begun = time.perf_counter()
    try:
        gpu = Gpu(Driver(), chosen.gpu)
        ready = {"ready": True, "pid": os.getpid(), "context_ms": since(begun), "gpu": gpu.uuid, "name": gpu.name}
        say(ready | {"driver": gpu.driver.number("cuDriverGetVersion")})
    except CudaError as error:
        say(error.answer | {"pid": os.getpid()})
        return 1
    session = Session(gpu, chosen.managed_cap)
    for line in sys.stdin:
        if line.split()[:1] == ["quit"]:
            break
        say(session.answer(line))
    with suppress(CudaError):
        gpu.driver.call("cuDevicePrimaryCtxRelease_v2", gpu.device)
    say({"quit": True})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
