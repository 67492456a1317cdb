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
from tests.support.patience import holds_within
from tests.testbed.vm.node import VmNode

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(2400)]
GREEDY: Final = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")
UPGRADE: Final = "helm upgrade gpu-share deploy/helm/gpu-share -n gpu-share-system --reuse-values --set "
FAST: Final = "enforcer.limitVerificationSeconds=5"
USUAL: Final = "enforcer.limitVerificationSeconds=30"
ENDED: Final = ("OUTCOME", "UNKILLABLE")
VERIFY_SECONDS: Final = 30.0
Promise = Callable[[Site, str], bool]


def over_quota_is_killed(site: Site, namespace: str) -> bool:
    site.run(namespace, pods.pod("greedy", *GREEDY))

    def found() -> list[pods.Object]:
        return [each for each in site.records(namespace, "greedy") if each["kind"] in ENDED]

    site.until("the kill has an end", found, 90)
    return bool(found()[0]["result"] == "Killed")


def a_limit_is_verified(site: Site, namespace: str) -> bool:
    site.run(namespace, pods.pod("limited", "hold", "1Gi"))

    def state() -> str:
        rows = [row for row in site.status()["containers"] if (row["namespace"], row["pod"]) == (namespace, "limited")]
        return next((row["limit"]["state"] for row in rows if row.get("limit")), "")

    return holds_within(lambda: state() == "InForce", VERIFY_SECONDS, site.node.pause)


PROMISES: Final[dict[str, Promise]] = {
    "a container over its quota is killed": over_quota_is_killed,
    "a limit is verified": a_limit_is_verified,
}
BROKEN: Final = {
    "": [],
    "KILL": ["a container over its quota is killed"],
    "SYS_PTRACE": ["a limit is verified"],
}


@pytest.fixture(scope="module", name="fast")
def _fast(site: Site, vm: VmNode) -> Iterator[None]:
    """Verify limits every few seconds."""
    site.shell(f"{UPGRADE}{FAST} --wait")
    yield
    site.shell(f"{UPGRADE}{USUAL} --wait")


@pytest.fixture(name="grant")
def _grant(site: Site, fast: None) -> Iterator[Callable[[list[str]], None]]:
    before = granted(site)
    yield lambda wanted: run_with(site, wanted)
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


def test_the_chart_asks_for_no_other_capability(site: Site, vm: VmNode) -> None:
    assert {*granted(site)} == {*filter(None, BROKEN)}


@pytest.mark.parametrize("right", BROKEN, ids=lambda right: right or "none")
def test_what_breaks_without_it(site: Site, grant: Callable[[list[str]], None], right: str) -> None:
    if right:
        grant([each for each in granted(site) if each != right])
    namespace = site.namespace("rights", **{contract.GRACE_PERIOD: "2s"})
    broken = [promise for promise, kept in PROMISES.items() if not kept(site, namespace)]
    assert broken == BROKEN[right]
    site.drop(namespace)
    if right:
        figure("32", f"fails without {right} on cgroup v2 with AppArmor", ", ".join(broken))
