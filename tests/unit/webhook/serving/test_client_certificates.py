"""Certificates of clients: who is let in, and that nobody is where the CA cannot be used."""

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.support import pki
from tests.unit.webhook.serving.test_tls import Clocks, reloads
from webhook.flags import Clients
from webhook.metrics import Metrics
from webhook.serving import tls

CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


class World:
    """A server with its certificate, the CA of its clients, and the file that names it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.metrics, self.clocks = folder, Metrics(), Clocks()
        self.server, self.authority = pki.Authority(), pki.Authority()
        self.ca = folder / "ca.crt"
        pki.write(folder / "serving", self.server.issue())

    def certificates(self, name: str = "") -> tls.Certificates:
        return tls.Certificates(
            self.folder / "serving",
            self.metrics,
            clients=Clients(ca=self.ca, name=name),
            monotonic=self.clocks.monotonic,
            now=self.clocks.now,
        )

    def client(self, pair: pki.Pair | None) -> ssl.SSLContext:
        if pair is None:
            return ssl.create_default_context(cadata=self.server.bundle.decode())
        return pki.client_of(pair, self.server, self.folder / pair.serial)


@pytest.fixture(name="world")
def _world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.ca.write_bytes(made.authority.bundle)
    return made


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Shake hands in memory, and compare the client's name as the server does.

    Raises:
        ssl.SSLError: the server refuses.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    for _ in range(2):
        with suppress(ssl.SSLWantReadError):
            theirs.do_handshake()
        with suppress(ssl.SSLWantReadError):
            ours.do_handshake()
    tls.check_client(ours)
    theirs.do_handshake()


def test_a_certificate_of_the_ca_is_enough_where_no_name_is_wanted(world: World) -> None:
    context = world.certificates().context()

    for name in ("", "somebody"):
        shake(context, world.client(world.authority.issue(name=name, usage=CLIENT)))


@pytest.mark.parametrize("which", ["none", "another CA's", "a server's", "expired", "the webhook's own"])
def test_other_clients_are_refused(world: World, which: str) -> None:
    pair = {
        "none": None,
        "another CA's": pki.Authority().issue(usage=CLIENT),
        "a server's": world.authority.issue(),
        "expired": world.authority.issue(begins=-2, ends=-1, usage=CLIENT),
        "the webhook's own": world.server.issue(usage=CLIENT),
    }[which]

    with pytest.raises(ssl.SSLError) as caught:
        shake(world.certificates().context(), world.client(pair))
    assert tls.refuses_client(caught.value)


def test_a_name_is_compared_whole(world: World) -> None:
    context = world.certificates("kube-apiserver").context()

    shake(context, world.client(world.authority.issue(name="kube-apiserver", usage=CLIENT)))
    for name in ("", "kube-apiserver2", "kube-apiserve", "Kube-apiserver", "*"):
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            shake(context, world.client(world.authority.issue(name=name, usage=CLIENT)))
        assert tls.refuses_client(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"# nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_without_a_usable_ca_there_is_no_handshake(world: World, content: bytes | None) -> None:
    if content is None:
        world.ca.unlink()
    else:
        world.ca.write_bytes(content)
    certificates = world.certificates()

    with pytest.raises(ssl.SSLError, match="no usable"):
        certificates.context()
    assert not certificates.loaded
    assert reloads(world.metrics, "unreadable") == 1


def test_another_ca_is_taken_up_and_the_former_one_forgotten(world: World) -> None:
    certificates, former, other = world.certificates(), world.authority, pki.Authority()
    before = certificates.context()
    world.ca.write_bytes(other.bundle)
    world.clocks.passed = 2.0

    context = certificates.context()
    assert context is not before
    shake(context, world.client(other.issue(usage=CLIENT)))
    with pytest.raises(ssl.SSLError):
        shake(context, world.client(former.issue(usage=CLIENT)))


def test_a_ca_that_is_broken_later_keeps_the_last_good_one(world: World) -> None:
    certificates = world.certificates()
    first = certificates.context()
    world.ca.write_bytes(b"")
    world.clocks.passed = 2.0

    assert certificates.context() is first
    assert first.verify_mode is ssl.CERT_REQUIRED
    assert certificates.loaded


def test_a_new_pair_needs_clients_certificates_too(world: World) -> None:
    certificates = world.certificates()
    certificates.refresh()
    pki.write(world.folder / "serving", world.server.issue())
    world.clocks.passed = 2.0

    with pytest.raises(ssl.SSLError):
        shake(certificates.context(), world.client(None))
