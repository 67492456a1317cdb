"""A small world for certificates: stores in memory, a clock that is turned by hand, clients that really verify."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.x509 import verification

from certs.rotation import CertificateRotator
from certs.rotation_plan import DesiredCertificates, Plan
from certs.store import ConflictError, Files

if TYPE_CHECKING:
    from collections.abc import Callable

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HOST = "gpu-share-webhook.gpu-share-system.svc"
NAMES = frozenset({f"DNS:{HOST}", "IP:127.0.0.1"})
NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: the handshake checks chain and name, ``accepts`` checks the time."""


class MemoryStore:
    """A store with compare-and-swap, and a hook that runs before each operation, as another runner might."""

    def __init__(self, name: str = "memory") -> None:
        self.name, self.files, self.version = name, dict[str, bytes](), 0
        self.before: Callable[[str], object] = str

    def __str__(self) -> str:
        return self.name

    def read(self) -> tuple[dict[str, bytes], str]:
        self.before("read")
        return dict(self.files), str(self.version) if self.version else ""

    def write(self, files: Files, version: str) -> None:
        self.before("write")
        if version != (str(self.version) if self.version else ""):
            raise ConflictError("raced")
        self.files, self.version = dict(files), self.version + 1


class Published:
    """A webhook configuration, reduced to its bundle and the end of the serving certificate."""

    def __init__(self) -> None:
        self.bundle, self.ends = b"", ""

    def publish(self, bundle: bytes, ends: str) -> bool:
        changed, self.bundle, self.ends = bundle != self.bundle, bundle, ends
        return changed


class World:
    def __init__(self, **wanted: object) -> None:
        self.now = START
        self.authority, self.serving, self.published = MemoryStore("authority"), MemoryStore("serving"), Published()
        self.wanted = DesiredCertificates(names=NAMES, **wanted)  # type: ignore[arg-type]

    def rotator(self) -> CertificateRotator:
        return CertificateRotator(
            self.authority, self.serving, self.wanted, publish=self.published.publish, clock=lambda: self.now
        )

    def run(self, **later: float) -> Plan:
        self.now += timedelta(**later)
        return self.rotator().reconcile()

    def pair(self) -> tuple[bytes, bytes]:
        return self.serving.files["tls.crt"], self.serving.files["tls.key"]

    def accepted(self) -> bool:
        return handshake(self.published.bundle, self.pair()) and accepts(self.published.bundle, self.pair(), self.now)


def leaf(files: dict[str, bytes]) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files["tls.crt"])


def accepts(bundle: bytes, pair: tuple[bytes, bytes], now: datetime, host: str = HOST) -> bool:
    """Whether a strict client whose clock shows ``now`` accepts the serving certificate."""
    store = verification.Store(x509.load_pem_x509_certificates(bundle))
    builder = verification.PolicyBuilder().store(store).time(now.replace(tzinfo=None))
    try:
        builder.build_server_verifier(x509.DNSName(host)).verify(x509.load_pem_x509_certificate(pair[0]), [])
    except verification.VerificationError:
        return False
    return True


def handshake(bundle: bytes, pair: tuple[bytes, bytes], host: str = HOST) -> bool:
    """A whole TLS 1.3 handshake between two real endpoints in memory."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    with TemporaryDirectory() as folder:
        for name, data in zip(("crt", "key"), pair, strict=True):
            Path(folder, name).write_bytes(data)
        server.load_cert_chain(Path(folder, "crt"), Path(folder, "key"))
    client = ssl.create_default_context(cadata=bundle.decode())
    client.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME) | ssl.VerifyFlags.VERIFY_X509_STRICT
    return _shake(client, server, host)


def _shake(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> bool:
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_hostname=host), server.wrap_bio(there, back, server_side=True)]
    for _ in range(10):
        waiting = False
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True
            except ssl.SSLError:
                return False
        if not waiting:
            return True
    return False
