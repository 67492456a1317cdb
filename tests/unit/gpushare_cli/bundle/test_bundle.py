"""``gpu-share bundle``: what is in it, what never is, and what becomes of parts that fail."""

import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from gpushare.contract import DRIVER, ENFORCER, MANAGED_LABEL, NAMESPACE_LABEL, NODE_LABEL
from gpushare.errors import ClusterError
from gpushare.kube_client import KubeClient
from gpushare_cli.bundle import arguments, command, parts
from gpushare_cli.main import main
from tests.unit.gpushare_cli.clusters import SYSTEM, Cluster
from tests.unit.gpushare_cli.test_top import container, status

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
PART_OF = {"app.kubernetes.io/part-of": "gpu-share"}
LISTS = (
    "resourceslices", "resourceclaims", "pods", "events", "nodes", "namespaces", "deployments", "daemonsets", "jobs",
    "deviceclasses", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
    "mutatingwebhookconfigurations",
)  # fmt: skip


class Planted:
    """Secrets that are planted, each another text."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return self.text(self.count)

    @staticmethod
    def text(number: int) -> str:
        return f"s3cr3t-{number:03d}-do-not-show"

    def all(self) -> list[bytes]:
        return [self.text(number).encode() for number in range(1, self.count + 1)]


def env(secret: Planted) -> list[dict[str, Any]]:
    return [
        {"name": "TOKEN", "value": secret()},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ]


def metadata(secret: Planted, name: str, namespace: str = "", **labels: str) -> dict[str, Any]:
    applied = json.dumps({"env": [{"name": "TOKEN", "value": secret()}]})
    return {
        "name": name, "namespace": namespace, "uid": name, "labels": labels,
        "annotations": {LAST_APPLIED: applied, "vault.example.com/token": secret(), ENFORCER: "{}"},
        "managedFields": [{"fieldsV1": {"f:x": secret()}}],
    }  # fmt: skip


def tenant(secret: Planted, name: str) -> dict[str, Any]:
    """Return a sharing pod with a secret wherever a tenant can write one."""
    probe = {"httpGet": {"httpHeaders": [{"name": "Authorization", "value": secret()}]}}
    each = {
        "name": "model", "image": "i", "env": env(secret), "envFrom": [{"secretRef": {"name": "creds"}}],
        "command": ["serve", secret()], "args": [f"--token={secret()}"], "livenessProbe": probe,
        "lifecycle": {"preStop": {"exec": {"command": [secret()]}}},
    }  # fmt: skip
    ended = {"terminated": {"reason": "Error", "exitCode": 1, "message": secret()}}
    volumes = [{"name": "v", "csi": {"driver": "x", "volumeAttributes": {"password": secret()}}}]
    spec = {"containers": [each], "initContainers": [{**each, "env": env(secret)}], "volumes": volumes}
    state = {"phase": "Failed", "containerStatuses": [{"name": "model", "state": ended, "lastState": ended}]}
    return {"metadata": metadata(secret, name, "asr", **{MANAGED_LABEL: "true"}), "spec": spec, "status": state}


def workload(secret: Planted, name: str) -> dict[str, Any]:
    pod = {"containers": [{"name": "enforcer", "args": ["enforcer", "--mode=mps"], "env": env(secret)}]}
    template = {"metadata": metadata(secret, name), "spec": pod}
    return {"metadata": metadata(secret, name, SYSTEM, **PART_OF), "spec": {"template": template}}


def claim(secret: Planted) -> dict[str, Any]:
    foreign = {"driver": "other.example.com", "parameters": {"key": secret()}}
    request = {"name": "model", "exactly": {"deviceClassName": DRIVER}}
    devices = {"requests": [request], "config": [{"opaque": foreign}]}
    entry = {"driver": "other.example.com", "data": {"key": secret()}}
    return {"metadata": metadata(secret, "c", "asr"), "spec": {"devices": devices}, "status": {"devices": [entry]}}


def event(secret: Planted, reason: str, message: str, namespace: str = "asr") -> dict[str, Any]:
    return {
        "metadata": metadata(secret, reason, namespace), "reason": reason, "message": message,
        "involvedObject": {"kind": "Pod", "namespace": namespace},
    }  # fmt: skip


@pytest.fixture(name="secret")
def _secret() -> Planted:
    return Planted()


@pytest.fixture(name="cluster")
def _cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secret: Planted) -> Cluster:
    cluster = Cluster()
    raw = json.dumps(status(container("tts", 3072, "Within", 7))).encode()
    cluster.enforcer("gpu-1", raw)
    cluster.logs["enforcer-gpu-1/enforcer"] = b"".join(b"line %d\n" % number for number in range(2500))
    slices = {"metadata": metadata(secret, "gpu-1"), "spec": {"nodeName": "gpu-1", "driver": DRIVER}}
    cluster.add("resourceslices", slices)
    cluster.add("resourceclaims", claim(secret), {"metadata": metadata(secret, "theirs", "asr")})
    cluster.add("pods", *(tenant(secret, f"tts-{number}") for number in range(3)))
    cluster.add("deployments", workload(secret, "gpu-share-webhook"))
    cluster.add("daemonsets", workload(secret, "gpu-share-mps"))
    cluster.add(
        "nodes", {"metadata": metadata(secret, "gpu-1", **{NODE_LABEL: "true"}), "spec": {"providerID": secret()}}
    )
    cluster.add("namespaces", {"metadata": metadata(secret, "asr", **{NAMESPACE_LABEL: "true"})})
    cluster.add("mutatingwebhookconfigurations", {"metadata": metadata(secret, "gpu-share", **PART_OF)})
    cluster.add("secrets", {"metadata": metadata(secret, "creds", "asr"), "data": {"password": secret()}})
    cluster.add("configmaps", {"metadata": metadata(secret, "settings", SYSTEM), "data": {"password": secret()}})
    probe = f"Liveness probe failed: {secret()}"
    cluster.add("events", event(secret, "Unhealthy", probe), event(secret, "FailedScheduling", "0/1 nodes"))
    cluster.add("events", event(secret, "BackOff", "restarting", SYSTEM))
    monkeypatch.setattr(KubeClient, "connect", lambda *_: cluster)
    monkeypatch.chdir(tmp_path)
    return cluster


def unpacked(file: Path) -> dict[str, bytes]:
    found = {}
    with tarfile.open(file) as opened:
        for member in opened:
            stream = opened.extractfile(member)
            assert stream is not None
            found[member.name.partition("/")[2]] = stream.read()
    return found


def index(content: dict[str, bytes]) -> dict[str, str]:
    """Return the error of each part."""
    return {line["file"]: line["error"] for line in map(json.loads, content[arguments.INDEX].splitlines()[1:])}


def test_no_secret_and_no_environment_value_is_in_it(cluster: Cluster, secret: Planted, tmp_path: Path) -> None:
    assert main(["bundle", "--to", "b.tar.gz"]) == 0
    content = unpacked(tmp_path / "b.tar.gz")
    assert secret.count >= 50
    whole = b"\n".join(content.values())
    assert [each for each in secret.all() if each in whole] == []
    assert LAST_APPLIED.encode() not in whole
    assert not [where for where in cluster.read if "secrets" in where or "configmaps" in where]
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600


def test_what_support_needs_is_in_it(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bundle", "--to", "b.tar.gz"]) == 0
    content = unpacked(tmp_path / "b.tar.gz")
    found = {name: json.loads(data) for name, data in content.items() if name.endswith(".json")}
    assert found["versions.json"]["kubernetes"] == {"gitVersion": "v1.37.0"}
    assert "Kubernetes" in {each["description"] for each in found["check-result.json"]}
    assert found["nodes/gpu-1/status.json"]["containers"][0]["pod"] == "tts"
    assert [each["metadata"]["name"] for each in found["resourceclaims.json"]] == ["c"], "those of others stay out"
    (model,) = found["sharing-pods.json"][0]["spec"]["containers"]
    assert [each["name"] for each in model["env"]] == ["TOKEN", "KEY"]
    assert model["envFrom"] == [{"secretRef": {"name": "creds"}}]
    (ours,) = found["release/deployments.json"][0]["spec"]["template"]["spec"]["containers"]
    assert ours["args"] == ["enforcer", "--mode=mps"]
    assert found["resourceslices.json"][0]["metadata"]["annotations"] == {ENFORCER: "{}"}
    assert [each["reason"] for each in found["events.json"]] == ["FailedScheduling", "BackOff"]
    log = content["logs/enforcer-gpu-1/enforcer.log"].splitlines()
    assert (len(log), log[-1]) == (2000, b"line 2499")
    assert {f"release/{kind}.json" for kind in LISTS[6:]} <= content.keys()
    assert set(index(content).values()) == {""}
    assert "0 missing or incomplete" in capsys.readouterr().out


def test_a_part_that_fails_is_a_line_of_the_index(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.enforcer("gpu-2", error=ClusterError("no route to host", 500))
    cluster.refused = {kind: ClusterError(f"{kind} away", 500) for kind in ("events", "jobs", "nodes")}
    cluster.add("resourceclaims", {"metadata": {"name": "odd"}, "spec": {"devices": 3}, "status": {"allocation": 7}})
    assert main(["bundle", "--to", "b.tar.gz"]) == 0
    content = unpacked(tmp_path / "b.tar.gz")
    failed = {name: error for name, error in index(content).items() if error}
    assert failed == {
        "events.json": "events away", "release/jobs.json": "jobs away", "nodes.json": "nodes away",
        "nodes/gpu-2/status.json": "no route to host",
        "logs/enforcer-gpu-2/enforcer.log": "the node of that pod does not answer",
    }  # fmt: skip
    assert "nodes/gpu-1/status.json" in content
    assert all(f"{name}: {error}" in capsys.readouterr().err for name, error in list(failed.items())[:1])


@pytest.mark.parametrize("kind", LISTS)
def test_no_right_alone_keeps_the_archive_from_being_written(kind: str, cluster: Cluster, tmp_path: Path) -> None:
    cluster.refused = {kind: ClusterError("no", 403)}
    assert main(["bundle", "--to", "b.tar.gz"]) == 0
    assert any(index(unpacked(tmp_path / "b.tar.gz")).values())


def test_restarted_containers_have_the_log_before(cluster: Cluster, tmp_path: Path) -> None:
    cluster.lists["pods"][0]["status"]["containerStatuses"] = [{"name": "enforcer", "restartCount": 3}]
    assert main(["bundle", "--to", "b.tar.gz"]) == 0
    assert "logs/enforcer-gpu-1/enforcer.previous.log" in unpacked(tmp_path / "b.tar.gz")


def test_the_time_has_a_bound(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["bundle", "--to", "b.tar.gz", "--timeout", "0s"]) == 0
    assert set(index(unpacked(tmp_path / "b.tar.gz")).values()) == {parts.OUT_OF_TIME}
    source = parts.Source(api=cluster, namespace=SYSTEM, connection=(None, None), ends=time.monotonic() + 60)  # type: ignore[arg-type] # a stand-in
    monkeypatch.setattr(parts, "MAX_OBJECTS", 2)
    part = parts._listed("pods.json", lambda: source.items("/api/v1", "pods"), dict)
    assert (len(json.loads(part.data)), part.error) == (2, "cut after 2 objects")


def test_the_size_has_a_bound(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_PART", 1000)
    monkeypatch.setattr(command, "MAX_PART", 4000)
    monkeypatch.setattr(command, "MAX_TOTAL", 9000)
    assert main(["bundle", "--to", "b.tar.gz"]) == 0
    content = unpacked(tmp_path / "b.tar.gz")
    sizes = {name: len(data) for name, data in content.items() if name != arguments.INDEX}
    assert (max(sizes.values()) <= 4000, sum(sizes.values()) <= 9000) == (True, True)
    assert index(content)["sharing-pods.json"].startswith("cut after 1 object: ")
    assert all(isinstance(json.loads(content[name]), list) for name in ("sharing-pods.json", "events.json"))


@pytest.mark.parametrize(("file", "code"), [("there", 2), ("no/such/folder", 1)])
def test_where_it_cannot_be_written_is_one_sentence(
    file: str, code: int, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").write_text("mine")
    assert main(["bundle", "--to", file]) == code
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "there").read_text() == "mine"


def test_what_is_interrupted_leaves_no_file(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command.Archive, "add", interrupted)
    assert main(["bundle", "--to", "b.tar.gz"]) == 130
    assert not (tmp_path / "b.tar.gz").exists()
