"""A drain: pods that use a GPU are released by the MPS daemon before they are killed. ``test_churn`` deletes many."""

from collections.abc import Iterator

import pytest

from gpushare.contract import MANAGED_LABEL
from tests.e2e import pods
from tests.e2e.departures import BY_ITSELF, Last, check_released, followed, releases
from tests.e2e.pods import Object
from tests.e2e.site import Site, ready

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(900)]
GRACE = 45


def stubborn(name: str, *more: str) -> Object:
    """A tenant that does not use the time it is given to end in; much of it, because the machine may be busy."""
    made = pods.pod(name, "hold", "256Mi", *more, memory="512Mi")
    made["spec"]["terminationGracePeriodSeconds"] = GRACE
    return made


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    return site.namespace("deletion")


@pytest.fixture(scope="module")
def last(site: Site, namespace: str) -> Iterator[Last]:
    with followed(site, namespace) as found:
        yield found


def start(site: Site, namespace: str, names: list[str]) -> dict[str, str]:
    """Start so many and wait until they run; their UIDs by name."""
    uids = {name: site.create(namespace, stubborn(name, "--ignore-term"))["metadata"]["uid"] for name in names}
    site.until("all run", lambda: sum(map(ready, site.pods(namespace))) >= len(names), 400)
    return uids


def test_a_drain_does_the_same_and_spares_who_ends_by_itself(site: Site, namespace: str, last: Last) -> None:
    uids = start(site, namespace, [f"drained-{number}" for number in range(10)])
    polite = site.run(namespace, stubborn("polite"))["metadata"]
    try:
        print(
            site.shell(
                f"kubectl drain {site.node.name} --force --ignore-daemonsets --delete-emptydir-data "
                f"--pod-selector {MANAGED_LABEL}=true --timeout 200s"
            )
        )
    finally:
        site.shell(f"kubectl uncordon {site.node.name}")
    site.until("their last state is known", lambda: {"polite", *uids} <= last.of.keys())
    check_released(site, last, uids)
    assert last.exit_code("polite") == BY_ITSELF
    assert polite["uid"] not in releases(site)


def test_neither_a_daemon_nor_the_enforcer_came_to_harm(site: Site, namespace: str) -> None:
    """The daemons that served before still serve: a share can be had and used."""
    site.run(namespace, pods.pod("after", "hold", "256Mi", memory="512Mi"))
    assert site.status()["problems"] == []
    assert site.enforcer_ready()
    site.delete(namespace, "after")
