"""Which back end keeps limits, from what there is and what the operator wants."""

from itertools import product

from enforcer.limits.backend import Backend, RequestedBackend, choose


def test_the_container_is_limited_before_its_processes_and_anything_before_nothing() -> None:
    assert choose(mps=True, cgroups=True).backend is Backend.DRIVER_CGROUP
    assert choose(mps=False, cgroups=True).backend is Backend.DRIVER_CGROUP
    assert choose(mps=True, cgroups=False).backend is Backend.MPS_V2
    assert choose(mps=False, cgroups=False).backend is Backend.WATCH_ONLY


def test_a_wanted_back_end_that_can_work_is_taken() -> None:
    for wanted in (RequestedBackend.MPS_V2, RequestedBackend.DRIVER_CGROUP, RequestedBackend.WATCH_ONLY):
        found = choose(mps=True, cgroups=True, wanted=wanted)
        assert (str(found.backend), found.problem) == (str(wanted), None)


def test_a_wanted_back_end_that_cannot_work_is_reported_with_the_way_out() -> None:
    found = choose(mps=True, cgroups=False, wanted=RequestedBackend.DRIVER_CGROUP)
    assert found.backend is Backend.MPS_V2
    problem = str(found.problem)
    assert problem.startswith("--limit-backend driver-cgroup cannot work: the driver does not limit cgroups")
    assert problem.endswith("uses mps-v2; write auto into the chart value enforcer.limitBackend")
    assert "no MPS daemon" in str(choose(mps=False, cgroups=False, wanted=RequestedBackend.MPS_V2).problem)


def test_nothing_is_ever_chosen_that_is_not_there() -> None:
    for mps, cgroups, wanted in product((False, True), (False, True), RequestedBackend):
        found = choose(mps=mps, cgroups=cgroups, wanted=wanted).backend
        assert found is not Backend.MPS_V2 or mps
        assert found is not Backend.DRIVER_CGROUP or cgroups
        assert found is not Backend.MIG_INSTANCE


def test_what_prevents_is_left_for_watching_only_where_that_is_wanted() -> None:
    for mps, cgroups, wanted in product((False, True), (False, True), RequestedBackend):
        prevents = choose(mps=mps, cgroups=cgroups, wanted=wanted).backend is not Backend.WATCH_ONLY
        assert prevents or not (mps or cgroups) or wanted is RequestedBackend.WATCH_ONLY
