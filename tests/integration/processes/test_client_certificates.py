"""The running webhook where clients need certificates: who gets an answer, and what the others cost."""

import http.client
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.integration.processes.test_webhook_server import eventually
from tests.support import pki, reviews
from tests.support.webhook import Webhook, serving

pytestmark = [pytest.mark.node, pytest.mark.xdist_group("webhook-server")]

NAME = "kube-apiserver"
REFUSED = 'gpu_share_connections_closed_total{reason="certificate"}'


@dataclass(slots=True)
class Site:
    """A webhook, the file of its clients' CA, and a CA for it."""

    webhook: Webhook
    ca: Path
    authority: pki.Authority = field(default_factory=pki.Authority)

    def status(self, pair: pki.Pair | None) -> int:
        """Send one review with that certificate, and return the answer's status.

        Raises:
            OSError: there is no answer.
        """
        context = self.webhook.client_context()
        if pair is not None:
            context = pki.client_of(pair, self.webhook.authority, self.webhook.folder / pair.serial)
        connection = http.client.HTTPSConnection("127.0.0.1", self.webhook.port, context=context, timeout=20)
        try:
            connection.request("POST", "/mutate", reviews.encoded(reviews.pod()), {"Content-Type": "application/json"})
            return connection.getresponse().status
        except http.client.RemoteDisconnected as error:
            raise ConnectionResetError from error
        finally:
            connection.close()

    def refuses(self, pair: pki.Pair | None) -> bool:
        try:
            return self.status(pair) == -1
        except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
            return True

    def issue(self, name: str = NAME) -> pki.Pair:
        return self.authority.issue(name=name, usage=ExtendedKeyUsageOID.CLIENT_AUTH)


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Iterator[Site]:
    ca, authority = tmp_path / "client-ca.crt", pki.Authority()
    ca.write_bytes(authority.bundle)
    with serving(tmp_path, options=["--client-ca", str(ca), "--client-name", NAME]) as webhook:
        yield Site(webhook, ca, authority)


def strangers(site: Site) -> list[pki.Pair | None]:
    return [None, pki.Authority().issue(name=NAME, usage=ExtendedKeyUsageOID.CLIENT_AUTH), site.issue("kubelet")]


def test_only_the_named_client_gets_an_answer(site: Site) -> None:
    for stranger in strangers(site):
        assert site.refuses(stranger)

    assert site.status(site.issue()) == 200
    eventually(lambda: site.webhook.metric(REFUSED) == 3)
    assert "Traceback" not in site.webhook.log.read_text()


def test_many_refusals_hold_no_thread_and_log_nothing(site: Site) -> None:
    eventually(lambda: any(line["event"] == "serving certificate loaded" for line in site.webhook.log_lines()))
    before = len(site.webhook.log_lines())
    for _ in range(100):
        assert all(site.refuses(stranger) for stranger in strangers(site)[:2])

    assert site.status(site.issue()) == 200
    assert len([line for line in site.webhook.log_lines()[before:] if line["event"] != "review patched"]) == 0


def test_another_ca_is_taken_up_without_a_restart(site: Site) -> None:
    former, fresh = site.issue(), pki.Authority()
    site.ca.write_bytes(fresh.bundle)
    site.authority = fresh

    eventually(lambda: not site.refuses(site.issue()))
    assert site.refuses(former)


def test_without_a_ca_it_is_not_ready_and_accepts_nobody(tmp_path: Path) -> None:
    ca = tmp_path / "client-ca.crt"
    with serving(tmp_path, options=["--client-ca", str(ca)], certificate=False) as webhook:
        pki.write(webhook.certs, webhook.authority.issue())
        site = Site(webhook, ca)
        eventually(lambda: b"client-ca.crt" in webhook.admin("/readyz").body)
        assert webhook.admin("/readyz").status == 503
        assert site.refuses(site.issue())
        assert site.refuses(None)

        ca.write_bytes(site.authority.bundle)
        eventually(lambda: webhook.admin("/readyz").status == 200)
        assert site.status(site.issue("anybody")) == 200
        assert site.refuses(None)
