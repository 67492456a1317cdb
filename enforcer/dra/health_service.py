"""Serve ``DRAResourceHealth``: the kubelet shows in each pod's status whether the pod's GPU is healthy, and why not.

The enforcer streams the health of all devices of prepared claims: at once when something changes, and again before the
kubelet would take it for unknown. The kubelet reads it where its gate ``ResourceHealthStatus`` is on, as by default.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from enforcer.dra.checkpoint import ClaimStore
from enforcer.dra.prepared_claim import AllocatedDevice
from enforcer.dra.stubs import health_v1_pb2 as health
from enforcer.resourceslices.availability import GpuAvailability
from enforcer.resourceslices.health_monitor import WORDS
from gpushare.reasons import Reason

SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Kubernetes 1.37 asks for the first, 1.36 for the second; their messages are the same."""
LOOK_SECONDS: Final = 1.0
REPEAT_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 30
"""What the kubelet has not heard of for so long is unknown to it; its own default."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceState:
    """One device as the kubelet gets it: ``health`` is a ``HealthStatus``, ``message`` says what is wrong."""

    pool: str
    device: str
    health: health.HealthStatus
    message: str = ""


class HealthService:
    """Answers ``NodeWatchResources``.

    Args:
        store: has the prepared claims.
        availability: knows the health of GPUs; that of a GPU that was not sampled is unknown.
    """

    def __init__(self, store: ClaimStore, availability: GpuAvailability) -> None:
        self._store, self._availability = store, availability
        self._ended = threading.Event()

    def watch(self, _: health.NodeWatchResourcesRequest, context: grpc.ServicerContext) -> Iterator[Any]:
        """Yield the health of all devices, until the caller goes or :meth:`end` is called."""
        ended, known, sent = self._ended, None, 0.0
        while context.is_active() and not ended.is_set():
            found, now = self.devices(), time.monotonic()
            if found != known or now - sent >= REPEAT_SECONDS:
                known, sent = found, now
                yield _response(found)
            ended.wait(LOOK_SECONDS)

    def end(self) -> None:
        """End the streams of now: a server that stops would wait for them."""
        ended, self._ended = self._ended, threading.Event()
        ended.set()

    def devices(self) -> tuple[DeviceState, ...]:
        """Return the health of each device of a prepared claim, by name."""
        gpus = self._availability.health()
        return tuple(sorted({_state(each, gpus) for claim in self._store.prepared() for each in claim.granted}))


def _state(device: AllocatedDevice, gpus: Mapping[str, Reason | None]) -> DeviceState:
    """Without a GPU it is the status device, which the enforcer serves."""
    if device.gpu is not None and device.gpu not in gpus:
        return DeviceState(device.pool, device.device, health.UNKNOWN)
    reason = None if device.gpu is None else gpus[device.gpu]
    if reason is None:
        return DeviceState(device.pool, device.device, health.HEALTHY)
    return DeviceState(device.pool, device.device, health.UNHEALTHY, f"{reason}: {WORDS.get(reason, str(reason))}")


def _response(devices: Sequence[DeviceState]) -> health.NodeWatchResourcesResponse:
    now = int(time.time())
    return health.NodeWatchResourcesResponse(
        devices=[
            health.DeviceHealth(
                device=health.DeviceIdentifier(pool_name=each.pool, device_name=each.device), health=each.health,
                last_updated_time=now, health_check_timeout_seconds=TIMEOUT_SECONDS, message=each.message,
            )
            for each in devices
        ]
    )  # fmt: skip
