"""The webhook with ``webhook.clientCA`` and a real API server, set up with the files of docs/operators/security.md."""

import http.client
import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
import yaml
from cryptography.x509.oid import ExtendedKeyUsageOID

from gpushare.contract import MANAGED_LABEL
from gpushare.errors import ClusterError
from tests.integration.controlplane import objects
from tests.integration.controlplane.bed import Bed
from tests.integration.controlplane.conftest import BUILD
from tests.integration.controlplane.objects import Object
from tests.support import pki, reviews
from tests.testbed.cluster.controlplane import ControlPlane
from tests.testbed.cluster.need import require_binaries
from tests.testbed.cluster.servers import KUBELET_CLIENT

pytestmark = pytest.mark.controlplane

README: Final = Path(__file__).parents[3] / "docs" / "operators" / "security.md"
REFUSED: Final = "gpu_share_connections_closed_total"


@pytest.fixture(name="strict", scope="module")
def _strict() -> Iterator[Bed]:
    """Install the product on a control plane of its own; its API server has no certificate for the webhook yet."""
    require_binaries()
    plane = ControlPlane.start(BUILD / f"{os.getpid()}-clients")
    try:
        bed = Bed.install(plane, replicas=1)
        bed.stop_webhooks()
        ca = str(plane.root / "pki" / "ca.crt")
        bed.replicas[0].extra = {"GPU_SHARE_CLIENT_CA": ca, "GPU_SHARE_CLIENT_NAME": KUBELET_CLIENT}
        bed.start_webhooks()
        yield bed
    finally:
        plane.stop()


def documented(kind: str) -> Object:
    """One of the two files, as docs/operators/security.md shows it."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    found: Object = next(each for each in map(yaml.safe_load, blocks) if each.get("kind") == kind)
    return found


def files(bed: Bed, folder: Path) -> Path:
    """Write both files with this cluster's paths, and the webhook's URL where a cluster names its Service."""
    keys, kubeconfig = bed.plane.root / "pki", documented("Config")
    (user,) = kubeconfig["users"]
    assert user["name"] == "gpu-share-webhook.gpu-share-system.svc"
    user["name"] = urlsplit(bed.url).netloc
    assert user["user"].keys() == {"client-certificate", "client-key"}
    user["user"] = {"client-certificate": f"{keys}/{KUBELET_CLIENT}.crt", "client-key": f"{keys}/{KUBELET_CLIENT}.key"}
    (folder / "webhooks.kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    admission = documented("AdmissionConfiguration")
    admission["plugins"][0]["configuration"]["kubeConfigFile"] = str(folder / "webhooks.kubeconfig")
    (folder / "admission.yaml").write_text(yaml.safe_dump(admission))
    return folder / "admission.yaml"


def answered(bed: Bed, context: ssl.SSLContext) -> bool:
    """Whether a review sent with that context gets any answer."""
    connection = http.client.HTTPSConnection("127.0.0.1", bed.replicas[0].port, context=context, timeout=20)
    try:
        connection.request("POST", "/mutate", reviews.encoded(reviews.pod()), {"Content-Type": "application/json"})
        connection.getresponse()
    except (ssl.SSLError, http.client.RemoteDisconnected, ConnectionError):
        return False
    finally:
        connection.close()
    return True


def trusting(bed: Bed) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(bed.tls / "ca.crt"))


def test_clients_without_the_certificate_get_no_answer(strict: Bed, tmp_path: Path) -> None:
    stranger = pki.Authority().issue(name=KUBELET_CLIENT, usage=ExtendedKeyUsageOID.CLIENT_AUTH)
    pki.write(tmp_path, stranger)
    of_another_ca = trusting(strict)
    of_another_ca.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    strict.plane.certified("node", "system:node:a", "system:nodes")
    of_a_kubelet, keys = trusting(strict), strict.plane.root / "pki"
    of_a_kubelet.load_cert_chain(keys / "node.crt", keys / "node.key")
    before = strict.metric(strict.replicas[0], REFUSED)

    assert [answered(strict, each) for each in (trusting(strict), of_another_ca, of_a_kubelet)] == [False] * 3
    strict.until("they are counted", lambda: strict.metric(strict.replicas[0], REFUSED) == before + 3)
    assert "Traceback" not in strict.plane.log(strict.replicas[0].name).read_text()


def test_the_api_server_gets_one_once_it_has_the_documented_files(strict: Bed, tmp_path: Path) -> None:
    namespace = strict.namespace("team")
    with pytest.raises(ClusterError, match="failed calling webhook"):
        strict.create(namespace, objects.pod("before", "1Gi"))

    flag = f"--admission-control-config-file={files(strict, tmp_path)}"
    gone = strict.plane.drop("kube-apiserver", patience=0)
    strict.plane.again(replace(each, command=[*each.command, flag]) for each in gone)

    created = strict.create(namespace, objects.pod("after", "1Gi"))
    assert created["metadata"]["labels"] == {MANAGED_LABEL: "true"}
