"""What a body costs the webhook is bounded by its size, whatever a stranger fills it with.

Calls are counted, so that the bound holds on any machine; the seconds are measured by ``make bench ARGS=fair``.
"""

import random
import sys

import pytest

from tests.support import extent
from tests.support.bodies import families
from tests.support.bodies.families import FREE_SIZE
from tests.support.bodies.search import Search

FREE_STEPS = 160_000
"""Calls and returns below 64 kB: about 20 ms."""
STEPS_OF_BYTE = 2.5
STEPS = 5000 if extent.full() else 50
"""Of the search."""
SMALL = 20_000


def steps(body: bytes) -> int:
    """Count the calls and returns of one answer."""
    counted = 0

    def count(_frame: object, _event: str, _argument: object) -> None:
        nonlocal counted
        counted += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        families.respond(body)
    finally:
        sys.setprofile(before)
    return counted


def allowed(size: int) -> float:
    return FREE_STEPS + max(0, size - FREE_SIZE) * STEPS_OF_BYTE


@pytest.mark.parametrize("room", [SMALL, FREE_SIZE, 4 * FREE_SIZE])
def test_no_family_of_bodies_takes_more_steps_than_its_size_allows(room: int) -> None:
    found = []
    for name, make in families.bodies(room):
        body = make()
        assert len(body) <= room
        found.append((steps(body) / allowed(len(body)), name))
    assert max(found) <= (1.0, ""), sorted(found)[-5:]


@pytest.mark.parametrize("seed", range(2))
def test_a_search_finds_no_body_that_takes_more_steps(seed: int) -> None:
    search = Search(lambda body: steps(body) / allowed(len(body)), SMALL, random.Random(seed))
    search.begin()
    for _ in range(STEPS):
        search.step()
    worst, body, family = search.best[0]
    assert worst <= 1.0, (family, len(body), body[:2000])
