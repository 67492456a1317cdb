"""Each right that the chart asks for the enforcer is taken away once, and the promises that then break are named.

On a node with AppArmor, and with tenants of another user, as clusters have them. ``SYS_ADMIN`` is asked for with real
GPUs alone: NVIDIA's driver wants it for a GPU's compute mode, which no simulator can show. ``SYS_PTRACE`` also finds a
process that blocks an MPS daemon: ``tests/safety/test_32_least_privilege.py`` shows it. Here such a connection ended
without that right as well.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from gpushare import contract
from tests.e2e import pods
from tests.e2e.site import SYSTEM, Site
from tests.support.extent import figure
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(2400)]
GREEDY: Final = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")
UNREADABLE: Final = "the enforcer cannot read the limit in the environment"
ENDED: Final = ("OUTCOME", "UNKILLABLE")
VERIFY_SECONDS: Final = 60.0
"""Twice the time between two verifications."""
Promise = Callable[[Site, str], bool]


def over_quota_is_killed(site: Site, namespace: str) -> bool:
    def found() -> list[pods.Object]:
        return [each for each in site.records(namespace, "greedy") if each["kind"] in ENDED]

    site.until("the kill has an end", found, 90)
    return bool(found()[0]["result"] == "Killed")


def a_limit_is_verified(site: Site, namespace: str) -> bool:
    def limit() -> dict[str, str]:
        rows = [row for row in site.status()["containers"] if (row["namespace"], row["pod"]) == (namespace, "limited")]
        return next((row["limit"] for row in rows if row.get("limit")), {})

    def settled() -> bool:
        found = limit()
        return found.get("state") == "InForce" or UNREADABLE in found.get("sentence", "")

    site.until("the limit is verified, or cannot be", settled, VERIFY_SECONDS)
    return limit()["state"] == "InForce"


PROMISES: Final[dict[str, Promise]] = {
    "a container over its quota is killed": over_quota_is_killed,
    "a limit is verified": a_limit_is_verified,
}
BROKEN: Final = {
    "KILL": ["a container over its quota is killed"],
    "SYS_PTRACE": ["a limit is verified"],
}
"""Each promise is broken without one right, and kept without the other."""


@pytest.fixture(scope="module", name="asked")
def _asked(site: Site, vm: VmNode) -> Iterator[list[str]]:
    """The chart's capabilities, which the enforcer has again afterwards."""
    before = granted(site)
    yield before
    run_with(site, before)


def granted(site: Site) -> list[str]:
    """Capabilities of the enforcer's container."""
    found: dict[str, Any] = json.loads(site.shell(f"kubectl -n {SYSTEM} get daemonset gpu-share-enforcer -o json"))
    (enforcer,) = found["spec"]["template"]["spec"]["containers"]
    return list(enforcer["securityContext"]["capabilities"]["add"])


def run_with(site: Site, wanted: list[str]) -> None:
    """Run the enforcer with these capabilities alone."""
    where = "/spec/template/spec/containers/0/securityContext/capabilities/add"
    patch = json.dumps([{"op": "replace", "path": where, "value": wanted}])
    site.shell(f"kubectl -n {SYSTEM} patch daemonset gpu-share-enforcer --type=json -p '{patch}'")
    site.shell(f"kubectl -n {SYSTEM} rollout status daemonset/gpu-share-enforcer --timeout=3m")
    site.until("the enforcer is ready", site.enforcer_ready, 120)


def test_the_chart_asks_for_no_other_capability(asked: list[str]) -> None:
    assert {*asked} == {*BROKEN}


@pytest.mark.parametrize("right", BROKEN)
def test_what_breaks_without_it(site: Site, asked: list[str], right: str) -> None:
    run_with(site, [each for each in asked if each != right])
    namespace = site.namespace("rights", **{contract.GRACE_PERIOD: "2s"})
    site.run(namespace, pods.pod("limited", "hold", "1Gi"))
    site.run(namespace, pods.pod("greedy", *GREEDY))
    broken = [promise for promise, kept in PROMISES.items() if not kept(site, namespace)]
    assert broken == BROKEN[right]
    site.drop(namespace)
    figure("32", f"fails without {right} on cgroup v2 with AppArmor", ", ".join(broken))
