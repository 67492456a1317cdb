"""What the controller checks again before it creates a template is what admission has checked."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import PolicyDenied
from gpushare.namespace_policy import NamespacePolicy
from gpushare.reasons import Reason
from webhook.mutation.demand import Demand
from webhook.mutation.mutate import mutate_pod
from webhook.mutation.resourceclaims import stored
from webhook.mutation.settings import Settings

REFUSE = Settings(root_tenants="refuse")


def pod(memory: int, compute: int | None = None, init: int = 0, user: int | None = 1000) -> dict[str, Any]:
    annotations = {"gpu-share.io/memory": f"{memory}Mi"} | ({"gpu-share.io/compute": str(compute)} if compute else {})
    annotations |= {"memory.gpu-share.io/first": f"{init}Mi"} if init else {}
    spec: dict[str, Any] = {"containers": [{"name": "main"}], "initContainers": [{"name": "first"}]}
    spec |= {"securityContext": {"runAsUser": user}} if user is not None else {}
    return {"metadata": {"name": "a", "annotations": annotations}, "spec": spec}


def demand_of(admitted: Any) -> Demand:
    found = stored(admitted)
    assert found is not None
    return Demand.of(found)


POLICIES = st.builds(
    NamespacePolicy,
    max_memory_mib=st.none() | st.integers(1024, 8192),
    max_compute=st.none() | st.integers(10, 100),
    default_compute=st.none(),
)


@given(
    st.builds(pod, st.integers(1024, 8192), st.none() | st.integers(1, 100), st.sampled_from([0, 1024, 8192])),
    POLICIES, POLICIES,
)  # fmt: skip
def test_it_allows_what_admission_allows_under_one_policy_and_refuses_what_admission_refuses(
    asked: dict[str, Any], at_admission: NamespacePolicy, later: NamespacePolicy
) -> None:
    try:
        admitted = mutate_pod(asked, policy=at_admission, settings=REFUSE).pod
    except PolicyDenied:
        return
    demand = demand_of(admitted)
    assert demand.refusal(at_admission, REFUSE) is None
    try:
        again = mutate_pod(admitted, policy=later, settings=REFUSE).patch == []
    except PolicyDenied:
        again = False
    assert (demand.refusal(later, REFUSE) is None) >= again


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        (NamespacePolicy(max_memory_mib=4095), True),
        (NamespacePolicy(max_memory_mib=4096), False),
        (NamespacePolicy(max_compute=50), True),
        (NamespacePolicy(), False),
    ],
)
def test_memory_and_a_missing_word_about_compute_are_held_against_the_maximum(
    policy: NamespacePolicy, *, refused: bool
) -> None:
    demand = demand_of(mutate_pod(pod(4096), policy=NamespacePolicy(), settings=Settings()).pod)
    found = demand.refusal(policy, Settings())
    assert (found is not None) is refused
    assert found is None or found[0] is Reason.ABOVE_MAXIMUM


def test_root_is_refused_where_the_cluster_refuses_it() -> None:
    demand = demand_of(mutate_pod(pod(4096, user=0), policy=NamespacePolicy(), settings=Settings()).pod)
    assert demand.refusal(NamespacePolicy(), Settings()) is None
    assert demand.refusal(NamespacePolicy(), REFUSE) is not None
