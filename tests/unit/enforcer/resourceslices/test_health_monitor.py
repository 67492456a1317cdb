import threading
from typing import Any

from enforcer.nvml.device_health import Health
from enforcer.resourceslices.health_monitor import GpuHealthMonitor
from tests.support.wiring import Messages, Quotas, sampler


def test_who_asks_while_a_gpu_is_found_gets_an_answer() -> None:
    nothing: Any = None
    doctor = GpuHealthMonitor(sampler(tuple), nothing, None, Quotas(tuple), Messages(), threading.Event())

    class Finding(Health):
        """As another thread finds one, at the worst moment."""

        __slots__ = ()

        @property
        def unhealthy(self) -> Any:
            doctor._known["GPU-new"] = Health()

        @unhealthy.setter
        def unhealthy(self, _: Any) -> None:
            pass

    found: Any = Finding
    doctor._known = {"GPU-old": found.__new__(found)}
    assert doctor.unhealthy == {}
