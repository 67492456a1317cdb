"""Makes GPU memory, exports it as file descriptors, sends these over a socket, and releases it: nothing but the driver.

    exporter.py SOCKET_FD COUNT MIB
    exporter.py import MEMORY_FD MIB     maps what such a descriptor holds, and writes it

Prints one JSON line, ``{"ready": true, "made": COUNT}`` or ``{"error", "call"}``, and ends with its input. The handle
types and the layouts of ``CUmemAllocationProp`` and ``CUmemAccessDesc`` are those of cuda.h.
"""

import ctypes
import json
import os
import socket
import sys

MIB, PINNED, ON_DEVICE, POSIX_DESCRIPTOR, READ_AND_WRITE = 1 << 20, 1, 1, 1, 3

IMPORT = "import"


class Location(ctypes.Structure):
    """``CUmemLocation``."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Properties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = (
        ("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )  # fmt: skip


class CudaError(Exception):
    """A call was refused."""


def must(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    """Call it. Raises ``CudaError`` with the call and its error."""
    try:
        function = getattr(library, name)
    except AttributeError:
        raise CudaError(f"the driver library has no {name}") from None
    if code := function(*arguments):
        raise CudaError(f"{name}: error {code}")


def begin(library: ctypes.CDLL) -> None:
    """Have a context. Raises ``CudaError``."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    must(library, "cuInit", 0)
    must(library, "cuDeviceGet", ctypes.byref(device), 0)
    must(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    must(library, "cuCtxSetCurrent", context)


def take(library: ctypes.CDLL, descriptor: int, mib: int) -> None:
    """Map what a descriptor holds, and write all of it. Raises ``CudaError``."""
    begin(library)
    handle, address, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t(mib * MIB)
    none = ctypes.c_uint64(0)
    must(
        library, "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor),
        ctypes.c_int(POSIX_DESCRIPTOR),
    )  # fmt: skip
    must(library, "cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), none, none)
    must(library, "cuMemMap", address, size, ctypes.c_size_t(0), handle, none)
    access = (ctypes.c_int * 3)(ON_DEVICE, 0, READ_AND_WRITE)
    must(library, "cuMemSetAccess", address, size, access, ctypes.c_size_t(1))
    must(library, "cuMemsetD32_v2", address, ctypes.c_uint(1), ctypes.c_size_t(mib * MIB // 4))
    must(library, "cuCtxSynchronize")


def export(library: ctypes.CDLL, connection: socket.socket, count: int, mib: int) -> None:
    """Make, send and release ``count`` pieces of memory. Raises ``CudaError``."""
    begin(library)
    wanted = Properties(type=PINNED, handle_types=POSIX_DESCRIPTOR, location=Location(ON_DEVICE, 0))
    for _ in range(count):
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int(-1)
        must(
            library, "cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(mib * MIB), ctypes.byref(wanted),
            ctypes.c_ulonglong(0),
        )  # fmt: skip
        must(
            library, "cuMemExportToShareableHandle", ctypes.byref(descriptor), handle,
            ctypes.c_int(POSIX_DESCRIPTOR), ctypes.c_ulonglong(0),
        )  # fmt: skip
        socket.send_fds(connection, [b"x"], [descriptor.value])
        os.close(descriptor.value)
        must(library, "cuMemRelease", handle)


def main(first: str, second: str, mib: str) -> int:
    """Export or import, then live until the input ends."""
    made = 1 if first == IMPORT else int(second)
    try:
        library = ctypes.CDLL("libcuda.so.1")
        if first == IMPORT:
            take(library, int(second), int(mib))
        else:
            export(library, socket.socket(fileno=int(first)), made, int(mib))
    except (OSError, CudaError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    print(json.dumps({"ready": True, "made": made}), flush=True)
    sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
