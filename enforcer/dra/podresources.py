"""Asks the kubelet what device plugins offer on this node (PodResources, ``GetAllocatableResources``)."""

from pathlib import Path
from typing import Any, Final

import grpc

from enforcer.dra.stubs import podresources_v1_pb2 as wire
from enforcer.resourceslices.contention import Allocatable
from gpushare.errors import KubeletError

SOCKET: Final = "pod-resources/kubelet.sock"
METHOD: Final = "/v1.PodResourcesLister/GetAllocatableResources"
TIMEOUT: Final = 5.0
MAX_ANSWER: Final = 16 * 2**20
"""Bytes, as the kubelet's own clients allow: thousands of replicas make long lists."""


def allocatable(kubelet_root: Path, *, optional: bool = False) -> Allocatable:
    """Ask once.

    Args:
        kubelet_root: the kubelet's directory.
        optional: whether a kubelet that does not answer offers nothing, for it may not be there at all.

    Raises:
        KubeletError: it does not answer.
    """
    try:
        return _ask(kubelet_root / SOCKET)
    except KubeletError:
        if optional:
            return ()
        raise


def _ask(socket: Path) -> Allocatable:
    if not socket.exists():
        raise KubeletError(
            f"{socket} does not exist; set --kubelet-root (chart value kubeletRoot) to the kubelet's --root-dir"
        )
    options = [("grpc.max_receive_message_length", MAX_ANSWER)]
    try:
        with grpc.insecure_channel(f"unix://{socket.absolute()}", options) as channel:
            ask = channel.unary_unary(
                METHOD,
                request_serializer=wire.AllocatableResourcesRequest.SerializeToString,
                response_deserializer=wire.AllocatableResourcesResponse.FromString,
            )
            answer = ask(wire.AllocatableResourcesRequest(), timeout=TIMEOUT)
    except grpc.RpcError as error:
        raise KubeletError(f"the kubelet does not answer on {socket}: {_error_text(error)}") from error
    return [(each.resource_name, tuple(each.device_ids)) for each in answer.devices]


def _error_text(error: Any) -> str:
    """What went wrong, in gRPC's words: its errors are calls, which their type does not say."""
    return str(error.details() if isinstance(error, grpc.Call) else error)
