"""A tenant over its quota: warned, ended, restarted, and told why; its neighbour does not notice."""

import json

import pytest

from gpushare import contract
from gpushare_cli.main import main
from tests.e2e import pods, readme
from tests.e2e.site import Site, restarts

pytestmark = [pytest.mark.controlplane, pytest.mark.node_e2e, pytest.mark.timeout(1200)]
GREEDY = ("hold", "1Gi", "--then", "6Gi", "--after", "4s", "--over-limit")


def test_the_quickstart_ends_with_a_kill_and_a_record_that_verifies(site: Site) -> None:
    team, blocks = site.namespace("quick"), readme.blocks(readme.QUICKSTART)
    printed = {block: site.run_block(block, readme.QUICKSTART, TEAM=team) for block in blocks}
    for block in blocks:
        shown = readme.shown(block, readme.QUICKSTART)
        assert readme.not_printed(shown, printed[block].replace(f"{team}/", "demo/")) == []
    share, kill, audit, end = printed.values()
    assert "steady     4Gi    4Gi, no cap  GPU-" in share
    assert "Killed: container greedy" in kill
    assert kill.splitlines()[-1].split()[:4] == ["steady", "2/2", "Running", "0"]
    assert [kind in audit for kind in ("WARNED", "INTENT", "OUTCOME")] == [True] * 3
    assert "ok: " in audit
    assert "greedy" in end


@pytest.fixture(scope="module")
def namespace(site: Site) -> str:
    return site.namespace("tenants", **{contract.GRACE_PERIOD: "2s"})


@pytest.fixture(scope="module")
def killed(site: Site, namespace: str) -> str:
    """Name of a pod whose container was ended once for what it took."""
    site.run(namespace, pods.pod("modest", "hold", "2Gi"))
    site.run(namespace, pods.pod("greedy", *GREEDY))
    site.until(
        "it is ended and started again", lambda: restarts(site.bed.pod(namespace, "greedy")).get(pods.MAIN, 0) > 0
    )
    return "greedy"


def test_the_kubelet_restarts_it_and_leaves_its_neighbour_alone(site: Site, namespace: str, killed: str) -> None:
    counts = restarts(site.bed.pod(namespace, killed))
    assert counts[contract.SIDECAR] == 0, "its sidecar goes on"
    assert set(restarts(site.bed.pod(namespace, "modest")).values()) == {0}


def test_warning_and_kill_are_events_of_the_pod(site: Site, namespace: str, killed: str) -> None:
    site.until("both have Events", lambda: {"OverQuota", "Killed"} <= site.events(namespace, killed).keys())
    assert "6144 MiB of its 2048 MiB" in site.events(namespace, killed)["Killed"]
    assert not {"OverQuota", "Killed"} & site.events(namespace, "modest").keys()


def test_the_kill_stands_in_the_pods_own_status(site: Site, namespace: str, killed: str) -> None:
    (main,) = [
        each for each in site.bed.pod(namespace, killed)["status"]["containerStatuses"] if each["name"] == "main"
    ]
    assert "6144 MiB of its 2048 MiB" in main["lastState"]["terminated"]["message"], main


@pytest.mark.parametrize(
    "changes",
    [
        {"terminationMessagePolicy": "FallbackToLogsOnError"},
        {"terminationMessagePath": "/tmp/why"},
        {"securityContext": {**pods.RESTRICTED, "readOnlyRootFilesystem": True}},
    ],
)
def test_it_does_whatever_the_tenant_writes_of_termination_messages(
    site: Site, namespace: str, changes: pods.Object
) -> None:
    pod = pods.pod("other", *GREEDY)
    pod["spec"]["containers"][0] |= changes
    _ends_with_a_reason(site, namespace, pod)


def test_an_init_container_says_why_too(site: Site, namespace: str) -> None:
    pod = pods.pod("first", memory=None, **{f"{contract.MEMORY_OF}early": "2Gi"})
    pod["spec"] |= {"initContainers": [pods.container(*GREEDY, name="early")], "containers": [pods.idle("main")]}
    _ends_with_a_reason(site, namespace, pod)


def _ends_with_a_reason(site: Site, namespace: str, pod: pods.Object) -> None:
    name = pod["metadata"]["name"]
    site.create(namespace, pod | {"spec": {**pod["spec"], "restartPolicy": "Never"}})
    site.until("it says why", lambda: "6144 MiB of its 2048 MiB" in _why(site, namespace, name))
    site.delete(namespace, name)


def _why(site: Site, namespace: str, name: str, state: str = "state") -> str:
    status = site.bed.pod(namespace, name)["status"]
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return "".join(each[state].get("terminated", {}).get("message", "") for each in containers)


def test_its_sidecar_says_why_in_one_line(site: Site, namespace: str, killed: str) -> None:
    def lines() -> list[str]:
        return [line for line in site.logs(namespace, killed).splitlines() if "6144 MiB" in line]

    site.until("the warning and the kill are printed", lambda: len(lines()) >= 2)
    assert any("2048 MiB" in line and "Killed" in line for line in lines()), lines()
    assert "modest" not in site.logs(namespace, killed)


def test_the_record_verifies_and_holds_intent_and_outcome(site: Site, namespace: str, killed: str) -> None:
    mine = [each["kind"] for each in site.records(namespace, killed)]
    assert mine[:4] == ["GRACE_STARTED", "WARNED", "INTENT", "OUTCOME"]
    assert "ok:" in site.in_enforcer("gpu-share audit verify")


def test_from_a_workstation_the_record_is_read_through_the_api_server_and_fits_the_events_anchor(
    site: Site, namespace: str, killed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    reach = ["-A", "--kubeconfig", str(site.bed.plane.kubeconfig())]
    site.until("the kill has an Event", lambda: "Killed" in site.events(namespace, killed))
    head = site.events(namespace, killed)["Killed"].rpartition("audit log ")[2]
    capsys.readouterr()
    code = main(["audit", "verify", *reach, "--anchor", head])
    printed = capsys.readouterr()
    assert (code, "1 anchor matches" in printed.out) == (0, True), printed
    assert main(["audit", "show", *reach, "-n", namespace, "--pod", killed, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)[:4] == site.records(namespace, killed)[:4]
    assert main(["audit", "export", *reach, "-n", namespace, "--pod", killed]) == 0
    exported = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert exported[:4] == site.records(namespace, killed)[:4], "as they are in the log"


def test_afterwards_it_can_be_deleted(site: Site, namespace: str, killed: str) -> None:
    site.delete(namespace, killed)
