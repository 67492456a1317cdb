"""The kubelet's half of its plugin sockets: what it says, over real Unix sockets."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc

from enforcer.dra.stubs import dra_v1_pb2 as dra
from enforcer.dra.stubs import health_v1_pb2 as health
from enforcer.dra.stubs import registration_v1_pb2 as registration
from gpushare.contract import REGISTRATION_SOCKET

SECONDS = 30.0
PLUGIN = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
REGISTRATION = "/pluginregistration.Registration/"


class KubeletCalls:
    """Calls the driver of one kubelet root as the kubelet does: ask who it is, take it in, hand it claims."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.info: Any = None
        self._plugin: grpc.Channel | None = None

    def register(self, *, accepted: bool = True, error: str = "") -> Any:
        """Find out who the driver is and tell it what became of its registration."""
        with grpc.insecure_channel(f"unix:{self.root / REGISTRATION_SOCKET}") as channel:
            self.info = _call(channel, REGISTRATION + "GetInfo", registration.InfoRequest(), registration.PluginInfo)
            status = registration.RegistrationStatus(plugin_registered=accepted, error=error)
            notify = REGISTRATION + "NotifyRegistrationStatus"
            _call(channel, notify, status, registration.RegistrationStatusResponse)
        return self.info

    def prepare(self, *claims: tuple[str, str, str]) -> dict[str, Any]:
        """Prepare claims (namespace, name, UID); by UID, the answers."""
        request = dra.NodePrepareResourcesRequest(claims=_claims(claims))
        answer = _call(self.channel, PLUGIN + "NodePrepareResources", request, dra.NodePrepareResourcesResponse)
        return dict(answer.claims)

    def unprepare(self, *claims: tuple[str, str, str]) -> dict[str, str]:
        """Undo claims; by UID, the errors."""
        request = dra.NodeUnprepareResourcesRequest(claims=_claims(claims))
        answer = _call(self.channel, PLUGIN + "NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse)
        return {uid: each.error for uid, each in answer.claims.items()}

    def watch_health(self, service: str) -> Iterator[dict[str, tuple[str, str]]]:
        """Follow the devices' health; yields, by device, what it is and what is wrong. Ends with the channel."""
        written = health.NodeWatchResourcesRequest.SerializeToString
        read = health.NodeWatchResourcesResponse.FromString
        call: Any = self.channel.unary_stream(
            f"/{service}/NodeWatchResources", request_serializer=written, response_deserializer=read
        )
        for each in call(health.NodeWatchResourcesRequest()):
            names = health.HealthStatus.Name
            yield {one.device.device_name: (names(one.health), one.message) for one in each.devices}

    @property
    def channel(self) -> grpc.Channel:
        if self._plugin is None:
            self._plugin = grpc.insecure_channel(f"unix:{self.info.endpoint}")
        return self._plugin

    def close(self) -> None:
        if self._plugin is not None:
            self._plugin.close()
            self._plugin = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _claims(claims: Iterable[tuple[str, str, str]]) -> list[Any]:
    return [dra.Claim(namespace=namespace, name=name, uid=uid) for namespace, name, uid in claims]


def _call(channel: grpc.Channel, method: str, request: Any, answer: Any) -> Any:
    written = type(request).SerializeToString
    call: Any = channel.unary_unary(method, request_serializer=written, response_deserializer=answer.FromString)
    return call(request, timeout=SECONDS)
