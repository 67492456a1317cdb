"""Another device plugin that offers the same GPUs, as NVIDIA's does: resource ``nvidia.com/gpu``, devices by UUID.

``python -m tests.e2e.deviceplugin UUID...`` runs it until SIGTERM, on the node it is started on. The kubelet's
device plugin API v1beta1 is spoken in bytes: its few messages are strings in numbered fields.
"""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from tests.testbed.cluster.node import Node
from tests.testbed.vm.node import VmNode

RESOURCE: Final = "nvidia.com/gpu"
SOCKET: Final = "gpu-share-test.sock"
SERVICE: Final = "v1beta1.DevicePlugin"
REGISTER: Final = "/v1beta1.Registration/Register"
SECONDS: Final = 10.0
FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
READY: Final = "registered"


def field(number: int, content: bytes) -> bytes:
    """One length-delimited field of a protobuf message shorter than 2¹⁴ bytes."""
    size = len(content)
    length = bytes([size]) if size < 0x80 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([number << 3 | 2]) + length + content


def device(uuid: str) -> bytes:
    """A healthy device."""
    return field(1, field(1, uuid.encode()) + field(2, b"Healthy"))


@contextmanager
def offering(folder: Path, uuids: Sequence[str]) -> Iterator[None]:
    """Offer these GPUs through the kubelet's ``device-plugins`` folder until the context ends."""
    ended = threading.Event()
    server = grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((_handler(b"".join(map(device, uuids)), ended),))
    server.add_insecure_port(f"unix://{folder / SOCKET}")
    server.start()
    try:
        _register(folder / "kubelet.sock")
        yield
    finally:
        ended.set()
        server.stop(1).wait()
        (folder / SOCKET).unlink(missing_ok=True)


@contextmanager
def running(node: Node | VmNode, uuids: Sequence[str]) -> Iterator[None]:
    """Run it on that node until the context ends."""
    command = node.command(sys.executable, "-m", "tests.e2e.deviceplugin", *uuids)
    process = node.plane.add("device-plugin", command)
    node.plane.wait("the device plugin is registered", lambda: READY in Path(process.log).read_text())
    try:
        yield
    finally:
        node.plane.drop("device-plugin")


def _handler(devices: bytes, ended: threading.Event) -> grpc.GenericRpcHandler:
    def listed(_request: bytes, _context: Any) -> Iterator[bytes]:
        yield devices
        ended.wait()

    def nothing(_request: bytes, _context: Any) -> bytes:
        return b""

    methods: dict[str, Any] = {
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(listed),
        **dict.fromkeys(
            ("GetDevicePluginOptions", "Allocate", "PreStartContainer", "GetPreferredAllocation"),
            grpc.unary_unary_rpc_method_handler(nothing),
        ),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def _register(kubelet: Path) -> None:
    request = field(1, b"v1beta1") + field(2, SOCKET.encode()) + field(3, RESOURCE.encode())
    with grpc.insecure_channel(f"unix://{kubelet}") as channel:
        register: Any = channel.unary_unary(REGISTER)
        register(request, timeout=SECONDS)


if __name__ == "__main__":
    with offering(FOLDER, sys.argv[1:]):
        print(READY, flush=True)
        signal.sigwait([signal.SIGTERM])
