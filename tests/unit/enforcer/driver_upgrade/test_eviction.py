"""Evictions are asked for once, again after a refusal with growing pauses, and few in one turn."""

from itertools import pairwise
from typing import Any

import pytest

from enforcer.driver_upgrade.eviction import MOST, MOST_RETRY, PodEvictor
from enforcer.quota.types import Quota
from enforcer.status.messages import UserMessage
from gpushare.errors import ClusterError
from gpushare.reasons import Reason
from tests.support.clock import FakeClock
from tests.support.wiring import Messages
from tests.unit.enforcer.made import quota


class Api:
    """Takes evictions, or refuses them with a status."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.sent = list[UserMessage]()
        self.now = 0.0
        self.evictor = PodEvictor(self, Messages(self.sent), FakeClock(lambda: self.now))  # type: ignore[arg-type] # stands in for the client

    def create(self, where: str, body: dict[str, Any]) -> None:
        self.asked.append((where, body))
        if self.status is not None:
            raise ClusterError("no", self.status)

    def turn(self, *quotas: Quota, later: float = 0.0) -> int:
        """Return how many pods were asked for."""
        self.now += later
        before = len(self.asked)
        self.evictor.evict_pods(quotas)
        return len(self.asked) - before


def test_a_pod_is_evicted_once_whatever_number_of_quotas_it_has() -> None:
    api = Api()
    assert api.turn(quota(), quota(container="other")) == 1
    assert api.turn(quota(), later=600) == 0
    where, body = api.asked[0]
    assert where == "/api/v1/namespaces/asr/pods/tts-0/eviction"
    assert body["deleteOptions"]["preconditions"] == {"uid": quota().pod_uid}
    assert [each.reason for each in api.sent] == [Reason.DRIVER_UPGRADE]


def test_a_refused_pod_is_asked_for_again_with_growing_pauses_and_one_message() -> None:
    api = Api()
    api.status = 429
    times = [second for second in range(200) if api.turn(quota(), later=1.0)]
    pauses = [later - before for before, later in pairwise(times)]
    assert pauses[:4] == [5, 10, 20, 40]
    assert max(pauses) == MOST_RETRY
    assert [each.reason for each in api.sent] == [Reason.EVICTION_REFUSED]
    assert len(api.evictor.problems()) == 1
    api.turn(later=1.0)
    assert api.evictor.problems() == [], "the pod has ended by itself"


@pytest.mark.parametrize("status", [404, 409])
def test_a_pod_that_is_gone_or_replaced_is_no_problem(status: int) -> None:
    api = Api()
    api.status = status
    assert api.turn(quota()) == 1
    assert api.turn(quota(), later=600) == 0
    assert (api.sent, api.evictor.problems()) == ([], [])


def test_while_the_api_server_does_not_answer_one_pod_is_asked_for_in_a_turn() -> None:
    api = Api()
    api.status = 0
    pods = [quota(pod=f"p{number}", pod_uid=f"u{number}") for number in range(5)]
    assert api.turn(*pods) == 1
    assert api.sent == []


def test_a_turn_asks_for_few_and_turns_come_to_all() -> None:
    api = Api()
    pods = [quota(pod=f"p{number}", pod_uid=f"u{number}") for number in range(MOST + 3)]
    assert [api.turn(*pods) for _ in range(3)] == [MOST, 3, 0]
