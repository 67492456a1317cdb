"""Four steps of the rehearsal on the node that all tests share: what `make rehearsal` takes at random, hours long.

No webhook for a while, an MPS daemon that dies, containerd started again, and a lost CA.
"""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e.site import Site
from tests.rehearsal.choice import repeat
from tests.rehearsal.steps import STEPS
from tests.rehearsal.taking import Stage, staged

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
SEED: Final = 1
NAMES: Final = ("webhooks-away", "mps-daemon-killed", "containerd-restarted", "authority-lost")


@pytest.fixture(scope="module")
def stage(site: Site) -> Iterator[Stage]:
    with staged(site, SEED) as stage:
        yield stage


@pytest.mark.parametrize(("number", "name"), list(enumerate(NAMES)), ids=NAMES)
def test_what_is_replaced_under_load_hurts_nobody_and_all_is_well_again(stage: Stage, number: int, name: str) -> None:
    entry = stage.take(STEPS[name], SEED, number)
    assert entry.name == name, "it could not be taken"
    assert entry.violations == (), repeat(SEED, number, name)
