"""Asking a kubelet, played by a real gRPC server on a socket, what device plugins offer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from enforcer.dra.podresources import METHOD, SOCKET, allocatable
from enforcer.dra.stubs import podresources_v1_pb2 as wire
from gpushare.errors import KubeletError

pytestmark = pytest.mark.node
Answer = list[tuple[str, list[str]]]


@pytest.fixture(name="kubelet")
def _kubelet(tmp_path: Path) -> Iterator[Answer]:
    """A kubelet below ``tmp_path``; what it answers may be changed. An empty id makes it fail."""
    offered: Answer = []

    def answer(_asked: object, context: Any) -> Any:
        if any("" in ids for _, ids in offered):
            context.abort(grpc.StatusCode.UNAVAILABLE, "still starting")
        devices = [wire.ContainerDevices(resource_name=name, device_ids=ids) for name, ids in offered]
        return wire.AllocatableResourcesResponse(devices=devices)

    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=wire.AllocatableResourcesRequest.FromString,
        response_serializer=wire.AllocatableResourcesResponse.SerializeToString,
    )
    service, _, method = METHOD[1:].partition("/")
    with ExitStack() as stack:
        server = grpc.server(stack.enter_context(ThreadPoolExecutor(1)))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        (tmp_path / SOCKET).parent.mkdir()
        server.add_insecure_port(f"unix://{tmp_path / SOCKET}")
        server.start()
        stack.callback(lambda: server.stop(0).wait())
        yield offered


def test_what_plugins_offer_is_read(kubelet: Answer, tmp_path: Path) -> None:
    assert allocatable(tmp_path) == []
    kubelet += [("nvidia.com/gpu", [f"GPU-{number}" for number in range(50)] * 400), ("example.com/nic", [])]
    assert [(name, len(ids)) for name, ids in allocatable(tmp_path)] == [
        ("nvidia.com/gpu", 20000),
        ("example.com/nic", 0),
    ]


def test_a_kubelet_that_refuses_or_is_not_there_is_said(kubelet: Answer, tmp_path: Path) -> None:
    kubelet += [("nvidia.com/gpu", [""])]
    with pytest.raises(KubeletError, match="does not answer: still starting"):
        allocatable(tmp_path)
    with pytest.raises(KubeletError, match=r"--kubelet-root \(chart value kubeletRoot\) says where"):
        allocatable(tmp_path / "elsewhere")


def test_a_socket_that_nobody_serves_is_said(tmp_path: Path) -> None:
    (tmp_path / SOCKET).parent.mkdir()
    (tmp_path / SOCKET).touch()
    with pytest.raises(KubeletError, match="does not answer"):
        allocatable(tmp_path)
