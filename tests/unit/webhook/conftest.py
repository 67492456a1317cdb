"""A controller of claim templates, with what stands around it."""

import pytest

from tests.unit.webhook.controlled import Clock, Server, make
from webhook.claim_templates.controller import Controller
from webhook.metrics import Metrics


@pytest.fixture(name="server")
def _server() -> Server:
    return Server()


@pytest.fixture(name="clock")
def _clock() -> Clock:
    return Clock()


@pytest.fixture(name="metrics")
def _metrics() -> Metrics:
    return Metrics()


@pytest.fixture(name="controller")
def _controller(server: Server, clock: Clock, metrics: Metrics) -> Controller:
    return make(server, clock, metrics)
