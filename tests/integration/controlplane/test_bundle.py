"""``gpu-share bundle``, ``breaker`` and ``top`` on a real API server, of which no node answers: there is no kubelet."""

import json
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest

from gpushare.kube_client import CORE_V1, path
from gpushare_cli.main import main
from tests.integration.controlplane import objects
from tests.integration.controlplane.release import NODES, Release
from tests.testbed.cluster.controlplane import TENANT

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]
SINCE: Final = "2026-11-24T10:00:00Z"
SECRET: Final = "s3cr3t-{:03d}-do-not-show"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"


def plant(release: Release) -> list[bytes]:
    """Make sharing pods and a Secret with a secret wherever a tenant can write one; returns the secrets."""
    texts = [SECRET.format(number) for number in range(51)]
    left = iter(texts)
    release.cluster.create(
        path(CORE_V1, "secrets", namespace=release.namespace),
        {"metadata": {"name": "creds"}, "stringData": {f"k{number}": next(left) for number in range(11)}},
    )
    for number in range(8):
        pod = objects.pod(
            f"tenant-{number}", "1Gi", **{LAST_APPLIED: next(left), "vault.example.com/token": next(left)}
        )
        container = pod["spec"]["containers"][0]
        container |= {"env": [{"name": "TOKEN", "value": next(left)}], "args": [f"--token={next(left)}"]}
        container["envFrom"] = [{"secretRef": {"name": "creds"}}]
        container["livenessProbe"] = {"exec": {"command": ["probe", next(left)]}}
        release.cluster.create(path(CORE_V1, "pods", namespace=release.namespace), pod)
    assert next(left, None) is None
    return [each.encode() for each in texts]


def unpacked(file: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(file) as opened:
        for member in opened:
            stream = opened.extractfile(member)
            assert stream is not None
            found[member.name.partition("/")[2]] = stream.read()
    return found


def test_a_bundle_holds_no_secret_and_names_the_nodes_that_do_not_answer(installed: Release, tmp_path: Path) -> None:
    planted, file = plant(installed), tmp_path / "b.tar.gz"
    assert main(["bundle", "--to", str(file), "--kubeconfig", str(installed.admin)]) == 0
    content = unpacked(file)
    assert [each for each in planted if each in b"".join(content.values())] == []
    assert not any(each in file.read_bytes() for each in planted)
    index = {line["file"]: line for line in map(json.loads, content["index.jsonl"].splitlines()[1:])}
    missing = {name for name, line in index.items() if line["error"]}
    assert {f"nodes/{node}/status.json" for node in NODES} <= missing
    assert {name: index[name] for name in missing if not name.startswith(("nodes/", "logs/"))} == {}, (
        "all that the API server has is there"
    )
    pods: list[Any] = json.loads(content["sharing-pods.json"])
    mine = [each for each in pods if each["metadata"]["namespace"] == installed.namespace]
    assert len(mine) == 8
    assert {"name": "TOKEN"} in next(each for each in mine[0]["spec"]["containers"] if each["name"] == "main")["env"]
    policies = {each["metadata"]["name"] for each in json.loads(content["release/validatingadmissionpolicies.json"])}
    assert "gpu-share-last-word" in policies
    assert json.loads(content["versions.json"])["kubernetes"]["major"] == "1"
    for kind in ("resourceslices", "nodes", "namespaces", "release/daemonsets", "release/pods", "resourceclaims"):
        assert json.loads(content[f"{kind}.json"]), kind


def test_breakers_of_all_nodes_are_read_from_the_reports(installed: Release, capsys: Any) -> None:
    first, second = NODES
    installed.report(first, breaker=SINCE, breakerReason="containers to be killed: 7")
    line = ("--kubeconfig", str(installed.admin))
    assert main(["breaker", *line]) == 1
    rows = [row.split(maxsplit=3) for row in capsys.readouterr().out.splitlines()]
    assert [first, "open", SINCE, "containers to be killed: 7"] in rows
    assert [second, "closed", "N/A", "N/A"] in rows
    assert main(["breaker", "--node", second, *line]) == 0
    assert main(["breaker", "--node", first, "--reset", *line]) == 1, "no kubelet runs the command"
    assert capsys.readouterr().err.startswith(f"gpu-share: node {first}: ")
    installed.report(first)
    assert main(["breaker", "--node", first, *line]) == 0


def test_nodes_that_do_not_answer_are_rows_of_top(installed: Release, capsys: Any) -> None:
    assert main(["top", "-A", "--kubeconfig", str(installed.admin)]) == 1
    rows = capsys.readouterr().out.splitlines()
    assert all(any(row.startswith(node) and row.endswith("no answer") for row in rows) for node in NODES)


def test_a_tenant_sees_the_pods_of_its_namespace(installed: Release, capsys: Any) -> None:
    installed.cluster.create(
        path(CORE_V1, "pods", namespace=installed.namespace), objects.pod("seen-by-its-tenant", "1Gi")
    )
    tenant = installed.bed.plane.kubeconfig(TENANT)
    assert main(["top", "-n", installed.namespace, "--kubeconfig", str(tenant)]) == 0
    assert "seen-by-its-tenant" in capsys.readouterr().out
