"""Keys of the test cluster: its CA, the API server's certificate, the key that signs service account tokens."""

import datetime as dt
import ipaddress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS: Final = 30
CLOCK_SLACK: Final = dt.timedelta(hours=1)


def write(folder: Path) -> None:
    """Write ``ca.crt``, ``apiserver.crt``, ``apiserver.key`` and ``service-accounts.key`` into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = _name("gpu-share-test-ca")
    ca = _builder(name, name, ca_key.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    leaf = _builder(_name("kube-apiserver"), name, key.public_key())
    leaf = leaf.add_extension(x509.SubjectAlternativeName(_names()), critical=False)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    _put(folder / "ca.crt", _pem(ca.sign(ca_key, hashes.SHA256())))
    _put(folder / "apiserver.crt", _pem(leaf.sign(ca_key, hashes.SHA256())))
    _put(folder / "apiserver.key", _key(key))
    _put(folder / "service-accounts.key", _key(rsa.generate_private_key(public_exponent=65537, key_size=2048)))


def _names() -> list[x509.GeneralName]:
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in ("127.0.0.1", "10.0.0.1")]
    return [x509.DNSName("localhost"), x509.DNSName("kubernetes.default.svc"), *addresses]


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=issuer,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - CLOCK_SLACK,
        not_valid_after=now + dt.timedelta(days=DAYS),
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _put(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
