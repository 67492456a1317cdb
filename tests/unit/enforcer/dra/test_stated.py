"""What the environment of a container states of its quota is kept beside the quota, to notice a mistake."""

from enforcer.dra.allocation import PrepareRequest, compute_limits
from enforcer.dra.quotas import quotas_of_prepared
from gpushare import contract
from tests.support.quotas import of_containers
from tests.unit.enforcer.dra.objects import NODE, claim, namespace, pod
from tests.unit.enforcer.made import DEVICE, GPU
from tests.unit.enforcer.test_loop import card

POD = pod("tts", {contract.MEMORY: "4Gi"})
PREPARED = compute_limits(NODE, PrepareRequest(claim(POD), POD, namespace()), {DEVICE: card(GPU, 0)})


def test_it_is_read_from_the_pod_and_known_after_the_pod_is_gone() -> None:
    (found,) = of_containers(quotas_of_prepared([PREPARED], [POD], [], ()))
    assert (found.memory_mib, found.stated_mib) == (4096, 4096)
    assert of_containers(quotas_of_prepared([PREPARED], [], [], [found])) == (found,)


def test_a_pod_that_states_nothing_is_not_in_doubt() -> None:
    (found,) = of_containers(quotas_of_prepared([PREPARED], [], [], ()))
    assert found.stated_mib is None
