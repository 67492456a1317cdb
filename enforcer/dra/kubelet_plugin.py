"""The two sockets the kubelet knows: registration, and ``dra.v1.DRAPlugin`` with ``DRAResourceHealth`` beside it."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from enforcer.dra import health_service
from enforcer.dra.driver import ClaimRef, Driver, PrepareCall
from enforcer.dra.health_service import HealthService
from enforcer.dra.stubs import dra_v1_pb2 as dra
from enforcer.dra.stubs import health_v1_pb2 as health
from enforcer.dra.stubs import registration_v1_pb2 as registration
from enforcer.status.metrics import Metrics
from gpushare.contract import DRIVER, DRIVER_SOCKET, REGISTRATION_SOCKET
from gpushare.errors import ConfigError, PrepareError
from gpushare.reasons import Reason

log = structlog.get_logger()

PLUGIN_TYPE: Final = "DRAPlugin"
SERVICE_VERSION: Final = "v1.DRAPlugin"
WORKERS: Final = 128
"""Calls at once: each may wait, for its daemon or for room, and must not keep others from being answered."""
GRACE: Final = 4.0
"""Seconds for calls to come to their end when the enforcer stops; less than ``enforcer.runtime.manager`` waits."""
NOWHERE: Final = 0
"""No file has this inode."""
_VALUE: Final = "--kubelet-root (chart value kubeletRoot)"
MAX_SOCKET_PATH: Final = 107
"""The kernel's limit for the path of a Unix socket."""
BUG: Final = "internal error of the enforcer on this node; read the enforcer's log"

Handlers = Mapping[str, "grpc.RpcMethodHandler[Any, Any]"]


class PluginService:
    """Answers ``dra.v1.DRAPlugin``: each claim by itself, and every failure as a sentence."""

    def __init__(self, driver: Driver, metrics: Metrics) -> None:
        self._driver, self._metrics = driver, metrics

    def prepare(self, request: dra.NodePrepareResourcesRequest, context: grpc.ServicerContext) -> Any:
        """Answer ``NodePrepareResources``."""
        call = PrepareCall()
        if not context.add_callback(call.abandoned.set):  # it has ended already
            call.abandoned.set()
        answers = {each.uid: self._prepared(each, call) for each in request.claims}
        return dra.NodePrepareResourcesResponse(claims=answers)

    def unprepare(self, request: dra.NodeUnprepareResourcesRequest, _: grpc.ServicerContext) -> Any:
        """Answer ``NodeUnprepareResources``."""
        return dra.NodeUnprepareResourcesResponse(claims={each.uid: self._unprepared(each) for each in request.claims})

    def _prepared(self, claim: dra.Claim, call: PrepareCall) -> dra.NodePrepareResourceResponse:
        devices: list[dra.Device] = []

        def turn() -> None:
            devices.extend(
                dra.Device(
                    request_names=[each.request], pool_name=each.pool, device_name=each.device,
                    cdi_device_ids=each.cdi_ids, share_id=each.share_id,
                )
                for each in self._driver.prepare(_ref(claim), call)
            )  # fmt: skip

        error = self._tried("prepare", claim, turn)
        return dra.NodePrepareResourceResponse(error=error, devices=[] if error else devices)

    def _unprepared(self, claim: dra.Claim) -> dra.NodeUnprepareResourceResponse:
        error = self._tried("unprepare", claim, lambda: self._driver.unprepare(_ref(claim)))
        return dra.NodeUnprepareResourceResponse(error=error)

    def _tried(self, operation: str, claim: dra.Claim, turn: Callable[[], None]) -> str:
        """Do it. Return nothing, or why it failed (``Reason: sentence``), for the Event that the kubelet writes."""
        try:
            with self._metrics.claim_seconds.labels(operation).time():
                turn()
        except PrepareError as error:
            self._metrics.claim_failures.labels(operation, str(error.reason)).inc()
            log.warning(
                "claim operation failed", operation=operation, reason=str(error.reason), namespace=claim.namespace,
                claim=claim.name, error=error.message,
            )  # fmt: skip
            return f"{error.reason}: {error.message}"
        except Exception:  # a bug in one claim must not take the others' answers with it
            self._metrics.claim_failures.labels(operation, str(Reason.INTERNAL)).inc()
            log.exception(
                "claim operation raised an exception",
                operation=operation,
                reason=str(Reason.INTERNAL),
                claim=claim.name,
            )
            return f"{Reason.INTERNAL}: {BUG}"
        return ""

    def handlers(self) -> Handlers:
        """Both methods by name."""
        return {
            "NodePrepareResources": _method(self.prepare, dra.NodePrepareResourcesRequest),
            "NodeUnprepareResources": _method(self.unprepare, dra.NodeUnprepareResourcesRequest),
        }


class RegistrationService:
    """Answers ``pluginregistration.Registration``.

    Args:
        endpoint: socket of the plugin.
        registered: set each time the kubelet says that it has taken the driver in.
    """

    def __init__(self, endpoint: Path, registered: threading.Event) -> None:
        self._endpoint, self._registered = endpoint, registered
        self.problem: str | None = "the kubelet has not registered the driver yet"

    def info(self, _: registration.InfoRequest, __: grpc.ServicerContext) -> Any:
        """Answer ``GetInfo``."""
        return registration.PluginInfo(
            type=PLUGIN_TYPE,
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=[SERVICE_VERSION, *health_service.SERVICES],
        )

    def notified(self, status: registration.RegistrationStatus, _: grpc.ServicerContext) -> Any:
        """Answer ``NotifyRegistrationStatus``."""
        if status.plugin_registered:
            self.problem = None
            log.info("the kubelet has registered the driver", reason=str(Reason.DRIVER_REGISTERED))
            self._registered.set()
        else:
            self.problem = f"the kubelet refused to register the driver: {status.error}"
            log.error(
                "the kubelet refused to register the driver",
                reason=str(Reason.DRIVER_NOT_REGISTERED),
                error=status.error,
            )
        return registration.RegistrationStatusResponse()

    def handlers(self) -> Handlers:
        """Both methods by name."""
        return {
            "GetInfo": _method(self.info, registration.InfoRequest),
            "NotifyRegistrationStatus": _method(self.notified, registration.RegistrationStatus),
        }


class Sockets:
    """Serves both services, and again where somebody has removed a socket.

    Raises:
        ConfigError: a socket cannot be made below this kubelet root.
    """

    def __init__(
        self, kubelet_root: Path, plugin: PluginService, health: HealthService, registered: threading.Event
    ) -> None:
        self._plugin_socket, self._registration_socket = (
            kubelet_root / DRIVER_SOCKET,
            kubelet_root / REGISTRATION_SOCKET,
        )
        self.registration: Final = RegistrationService(self._plugin_socket, registered)
        self._plugin, self._health = plugin, health
        self._servers: dict[Path, tuple[grpc.Server, int]] = {}
        self._wanted: tuple[Path, ...] = ()
        self._lock = threading.Lock()
        self.unserved: str | None = None
        """Why a socket cannot be made again; ``None`` while both are there."""

    def start(self) -> None:
        """Serve: the plugin first, for registering means being called."""
        with self._lock:
            self._wanted = self._plugin_socket, self._registration_socket
            for socket in self._wanted:
                self._serve(socket)

    def check(self) -> None:
        """Serve again what is not reachable any more: a reinstalled kubelet has an empty directory."""
        try:
            self._check()
        except ConfigError as error:
            self.unserved = error.message
        else:
            self.unserved = None

    def _check(self) -> None:
        with self._lock:
            for socket in self._wanted:
                if not self._reachable(socket):
                    log.warning(
                        "kubelet plugin socket created again",
                        reason=str(Reason.DRIVER_NOT_REGISTERED),
                        socket=str(socket),
                    )
                    self._end(socket)
                    self._serve(socket)

    def stop(self) -> None:
        """Let calls come to their end, and take the sockets away: the registration first."""
        with self._lock:
            for socket in reversed(self._wanted):
                inode = self._end(socket)
                if _inode(socket) == inode != NOWHERE:
                    socket.unlink(missing_ok=True)
            self._wanted = ()

    def _reachable(self, socket: Path) -> bool:
        return socket in self._servers and _inode(socket) == self._servers[socket][1] != NOWHERE

    def _end(self, socket: Path) -> int:
        """End a server, if there is one, and wait: on its way out it takes away whatever is at its path by then.

        Returns the inode its socket had.
        """
        server, inode = self._servers.pop(socket, (None, NOWHERE))
        if server is not None:
            self._health.end()
            server.stop(GRACE).wait()
        return inode

    def _serve(self, socket: Path) -> None:
        services, workers = {"pluginregistration.Registration": self.registration.handlers()}, 2
        if socket == self._plugin_socket:
            services, workers = {f"{dra.DESCRIPTOR.package}.DRAPlugin": self._plugin.handlers()}, WORKERS
            services |= dict.fromkeys(health_service.SERVICES, _health_handlers(self._health))
        self._servers[socket] = _listen(socket, services, workers)


def _listen(socket: Path, services: Mapping[str, Handlers], workers: int) -> tuple[grpc.Server, int]:
    if len(str(socket)) > MAX_SOCKET_PATH:
        raise ConfigError(
            f"{_VALUE}: the socket path {socket} has more than {MAX_SOCKET_PATH} characters; write a shorter path"
        )
    server = grpc.server(ThreadPoolExecutor(workers, thread_name_prefix=socket.stem))
    server.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(name, dict(handlers)) for name, handlers in services.items())
    )
    try:
        socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        socket.chmod(0o600)
    except (OSError, RuntimeError) as error:
        server.stop(None)
        hint = "name the root directory of the kubelet, which has to be writable"
        raise ConfigError(f"{_VALUE}: the driver cannot listen on {socket}: {error}; {hint}") from error
    return server, _inode(socket)


def _inode(socket: Path) -> int:
    with suppress(OSError):
        return socket.stat().st_ino
    return NOWHERE


def _method(answer: Callable[[Any, grpc.ServicerContext], Any], request: Any) -> "grpc.RpcMethodHandler[Any, Any]":
    return grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request.FromString, response_serializer=lambda message: message.SerializeToString()
    )


def _health_handlers(service: HealthService) -> Handlers:
    watch: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(
        service.watch,
        request_deserializer=health.NodeWatchResourcesRequest.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
    return {"NodeWatchResources": watch}


def _ref(claim: dra.Claim) -> ClaimRef:
    return ClaimRef(claim.namespace, claim.name, claim.uid)
