"""A kubelet's PodResources socket, as far as the enforcer asks it: a real gRPC server that says what it is told to."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from enforcer.dra.podresources import METHOD, SOCKET
from enforcer.dra.stubs import podresources_v1_pb2 as wire

Offered = list[tuple[str, list[str]]]


@contextmanager
def pod_resources(root: Path) -> Iterator[Offered]:
    """Serve below a kubelet's root directory. What it answers may be changed at any time; an empty id makes it fail."""
    offered: Offered = []

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
    (root / SOCKET).parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        server.add_insecure_port(f"unix://{root / SOCKET}")
        server.start()
        try:
            yield offered
        finally:
            server.stop(0).wait()
