"""Which back end keeps limits, from what there is and what the operator wants."""

from hypothesis import given
from hypothesis import strategies as st

from enforcer.limits.backend import Backend, DriverSupport, RequestedBackend, choose

ABILITIES = st.builds(DriverSupport, mps=st.booleans(), cgroups=st.booleans(), mig=st.booleans())


def test_the_container_is_limited_before_its_processes_and_anything_before_nothing() -> None:
    assert choose(DriverSupport(mps=True, cgroups=True)).backend is Backend.DRIVER_CGROUP
    assert choose(DriverSupport(cgroups=True)).backend is Backend.DRIVER_CGROUP
    assert choose(DriverSupport(mps=True)).backend is Backend.MPS_V2
    assert choose(DriverSupport()).backend is Backend.WATCH_ONLY
    assert choose(DriverSupport(mps=True, cgroups=True, mig=True)).backend is Backend.MIG_INSTANCE


def test_a_wanted_back_end_that_can_work_is_taken() -> None:
    everything = DriverSupport(mps=True, cgroups=True)
    for wanted in (RequestedBackend.MPS_V2, RequestedBackend.DRIVER_CGROUP, RequestedBackend.WATCH_ONLY):
        assert str(choose(everything, wanted).backend) == str(wanted)
        assert choose(everything, wanted).problem is None


def test_a_wanted_back_end_that_cannot_work_is_reported_with_the_way_out() -> None:
    found = choose(DriverSupport(mps=True), RequestedBackend.DRIVER_CGROUP)
    assert found.backend is Backend.MPS_V2
    problem = str(found.problem)
    assert problem.startswith("--limit-backend driver-cgroup cannot work: the driver does not limit cgroups")
    assert problem.endswith("uses mps-v2; write auto into the chart value enforcer.limitBackend")
    assert "no MPS daemon" in str(choose(DriverSupport(), RequestedBackend.MPS_V2).problem)


@given(ABILITIES, st.sampled_from(RequestedBackend))
def test_nothing_is_ever_chosen_that_is_not_there(ability: DriverSupport, wanted: RequestedBackend) -> None:
    found = choose(ability, wanted).backend
    assert found is not Backend.MPS_V2 or ability.mps
    assert found is not Backend.DRIVER_CGROUP or ability.cgroups
    assert (found is Backend.MIG_INSTANCE) is ability.mig


@given(ABILITIES, st.sampled_from(RequestedBackend))
def test_what_prevents_is_left_for_watching_only_where_that_is_wanted(
    ability: DriverSupport, wanted: RequestedBackend
) -> None:
    can = ability.mps or ability.cgroups or ability.mig
    prevents = choose(ability, wanted).backend is not Backend.WATCH_ONLY
    assert prevents or not can or wanted is RequestedBackend.WATCH_ONLY
