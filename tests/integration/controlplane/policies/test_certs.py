"""``gpu-share certs`` against a real API server, with the rights it is shipped with."""

import base64
import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from gpushare.contract import SERVING_ENDS
from gpushare.errors import ClusterError
from gpushare.kube_client import ADMISSION_V1, CORE_V1, path
from tests.integration.controlplane.objects import Object
from tests.integration.controlplane.policies.world import World, refusal
from tests.unit.certs.world import handshake

pytestmark = pytest.mark.controlplane
SYSTEM = "gpu-share-system"
SECRET = path(CORE_V1, "secrets", "gpu-share-webhook-tls", SYSTEM)
AUTHORITY = path(CORE_V1, "secrets", "gpu-share-webhook-tls-ca", SYSTEM)
MUTATING = path(ADMISSION_V1, "mutatingwebhookconfigurations", "gpu-share")
HOST = "gpu-share-webhook.gpu-share-system.svc"


def webhook(name: str) -> Object:
    """A webhook that is never called."""
    return {
        "name": name,
        "clientConfig": {"url": "https://127.0.0.1:1/mutate"},
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "namespaceSelector": {"matchLabels": {"no": "namespace"}},
    }


@pytest.fixture
def configurations(world: World) -> Iterator[None]:
    two = [webhook("a.gpu-share.io"), webhook("b.gpu-share.io")]
    world.cluster.create(MUTATING.rpartition("/")[0], {"metadata": {"name": "gpu-share"}, "webhooks": two})
    yield
    clean(world, MUTATING)


@pytest.fixture(autouse=True)
def secrets(world: World) -> Iterator[None]:
    yield
    clean(world, SECRET, AUTHORITY)


def clean(world: World, *objects: str) -> None:
    for where in objects:
        try:
            world.cluster.delete(where)
        except ClusterError as error:
            assert error.status == 404, error


def start(kubeconfig: Path) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "gpushare_cli", "certs", "--secret", "gpu-share-system/gpu-share-webhook-tls"]
    command += ["--webhook-configuration", "gpu-share", "--dns", HOST, "--kubeconfig", str(kubeconfig)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def run(world: World) -> tuple[int, list[Object]]:
    """Run once, as the service account of the Deployment; returns the exit code and the log."""
    process = start(world.plane.service_account(SYSTEM, "gpu-share-certs"))
    _, log = process.communicate(timeout=60)
    return process.returncode, [json.loads(line) for line in log.splitlines()]


def data(world: World, where: str = SECRET) -> dict[str, bytes]:
    return {k: base64.b64decode(v) for k, v in world.cluster.get(where)["data"].items()}


def bundles(world: World) -> set[bytes]:
    configured = world.cluster.get(MUTATING)["webhooks"]
    return {base64.b64decode(w["clientConfig"].get("caBundle", "")) for w in configured}


def works(world: World) -> bool:
    """Whether a client of every published bundle accepts the stored pair."""
    stored = data(world)
    return all(handshake(bundle, (stored["tls.crt"], stored["tls.key"]), HOST) for bundle in bundles(world))


def ends_of(certificate: bytes) -> str:
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.isoformat()


def unchanging(item: Object) -> Object:
    """A configuration without what a write changes by itself, the bundles, and the end of the serving certificate."""
    plain = copy.deepcopy(item)
    plain["metadata"].setdefault("annotations", {}).pop(SERVING_ENDS, None)
    for key in ("resourceVersion", "generation", "managedFields"):
        plain["metadata"].pop(key, None)
    for each in plain["webhooks"]:
        each["clientConfig"].pop("caBundle", None)
    return plain


@pytest.mark.usefixtures("configurations")
def test_one_run_makes_both_secrets_and_every_bundle_and_the_next_writes_nothing(world: World) -> None:
    before = unchanging(world.cluster.get(MUTATING))
    assert run(world)[0] == 0
    assert works(world)
    assert world.cluster.get(MUTATING)["metadata"]["annotations"][SERVING_ENDS] == ends_of(data(world)["tls.crt"])
    assert unchanging(world.cluster.get(MUTATING)) == before, "no other field"
    assert "ca.key" in data(world, AUTHORITY)
    assert set(data(world)) == {"ca.crt", "tls.crt", "tls.key"}
    watched = (SECRET, AUTHORITY, MUTATING)
    versions = [world.cluster.get(where)["metadata"]["resourceVersion"] for where in watched]
    code, log = run(world)
    assert (code, [entry["reason"] for entry in log]) == (0, ["CertificateCurrent"])
    assert [world.cluster.get(where)["metadata"]["resourceVersion"] for where in watched] == versions


def test_without_the_configuration_it_says_what_to_do_and_goes_on_from_there(
    world: World, request: pytest.FixtureRequest
) -> None:
    code, log = run(world)
    assert code == 1
    assert "no webhook configuration gpu-share" in log[-1]["detail"]
    request.getfixturevalue("configurations")
    assert run(world)[0] == 0
    assert works(world)


@pytest.mark.usefixtures("configurations")
def test_four_runners_at_once_agree(world: World) -> None:
    kubeconfig = world.plane.service_account(SYSTEM, "gpu-share-certs")
    running = [start(kubeconfig) for _ in range(4)]
    logs = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [0] * 4, logs
    assert run(world)[0] == 0
    assert works(world)
    assert len(bundles(world)) == 1
    assert bundles(world).pop().count(b"BEGIN") == 1


@pytest.mark.usefixtures("configurations")
def test_a_bundle_somebody_emptied_is_put_back(world: World) -> None:
    run(world)
    pair = data(world)
    world.cluster.patch(MUTATING, {"webhooks": [webhook("a.gpu-share.io"), webhook("b.gpu-share.io")]})
    assert run(world)[0] == 0
    assert data(world) == pair
    assert works(world)


@pytest.mark.usefixtures("configurations")
@pytest.mark.parametrize("where", [SECRET, AUTHORITY])
@pytest.mark.parametrize("name", [".crt", ".key"])
def test_a_corrupt_secret_is_mended_and_reported(world: World, where: str, name: str) -> None:
    run(world)
    key = ("tls" if where == SECRET else "ca") + name
    world.cluster.patch(where, {"data": {key: base64.b64encode(b"corrupt").decode()}})
    code, log = run(world)
    assert code == 0
    assert log[0]["reason"] == "CertificateRejected" or "the CA cannot sign" in log[0]["why"]
    assert works(world)


@pytest.mark.usefixtures("configurations")
def test_a_secret_made_by_hand_is_taken_over_as_it_is(world: World) -> None:
    body = {"metadata": {"name": "gpu-share-webhook-tls"}, "type": "Opaque", "data": {}}
    world.cluster.create(path(CORE_V1, "secrets", namespace=SYSTEM), body)
    assert run(world)[0] == 0
    assert world.cluster.get(SECRET)["type"] == "Opaque"
    assert works(world)


def test_the_certs_identity_may_change_no_other_configuration(world: World) -> None:
    connection = type(world.cluster).connect(str(world.plane.service_account(SYSTEM, "gpu-share-certs")))
    other = path(ADMISSION_V1, "mutatingwebhookconfigurations", "other")
    assert "forbidden" in refusal(lambda: connection.patch(other, {"webhooks": []}))
    body = {"metadata": {"name": "gpu-share"}, "webhooks": []}
    where = path(ADMISSION_V1, "mutatingwebhookconfigurations")
    assert "forbidden" in refusal(lambda: connection.create(where, body))


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("other", "Opaque", "metadata.name"),
        ("gpu-share-webhook-tls", "kubernetes.io/service-account-token", "type"),
        ("gpu-share-webhook-tls", "kubernetes.io/tls", ""),
        ("gpu-share-webhook-tls-ca", None, ""),
    ],
)
def test_the_certs_identity_creates_its_own_two_secrets_and_no_token(
    name: str, kind: str | None, says: str, world: World
) -> None:
    connection = type(world.cluster).connect(str(world.plane.service_account(SYSTEM, "gpu-share-certs")))
    notes = {"kubernetes.io/service-account.name": "gpu-share-enforcer"}
    pair = {"data": {"tls.crt": "", "tls.key": ""}}
    body = {"metadata": {"name": name, "annotations": notes}, **pair, **({"type": kind} if kind else {})}
    said = refusal(lambda: connection.create(path(CORE_V1, "secrets", namespace=SYSTEM), body))
    assert (says in said) if says else said == ""
    generated = {**pair, "metadata": {"generateName": "gpu-share-webhook-tls"}}
    assert "metadata.name" in refusal(lambda: connection.create(path(CORE_V1, "secrets", namespace=SYSTEM), generated))
