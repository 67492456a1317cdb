"""Keys of the test cluster: its CA, the API server's certificate, the key that signs service account tokens."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS: Final = 30
CLOCK_SLACK: Final = dt.timedelta(hours=1)


def write(folder: Path, addresses: Sequence[str] = ()) -> None:
    """Write keys and certificates of the CA (``ca``) and the API server, and the key ``service-accounts.key``.

    Args:
        folder: where to; made if missing.
        addresses: where the API server listens besides loopback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("gpu-share-test-ca")
    ca = _builder(name, name, key.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    _put(folder / "ca.crt", _pem(ca.sign(key, hashes.SHA256())))
    _put(folder / "ca.key", _key(key))
    names, every = ("localhost", "kubernetes.default.svc"), ("127.0.0.1", "10.0.0.1", *addresses)
    issue(folder, "apiserver", "kube-apiserver", names=names, addresses=every)
    _put(folder / "service-accounts.key", _key(rsa.generate_private_key(public_exponent=65537, key_size=2048)))


def issue(
    folder: Path, file: str, common: str, *, group: str = "", names: Sequence[str] = (), addresses: Sequence[str] = ()
) -> None:
    """Write ``file``.crt and ``file``.key into ``folder``, signed by its CA.

    With ``names`` it is a server's certificate for them and for ``addresses``; without, a client's: user ``common`` of
    ``group``.
    """
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = _builder(_name(common, group), authority.subject, key.public_key())
    usage = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if names:
        leaf = leaf.add_extension(x509.SubjectAlternativeName(_names(names, addresses)), critical=False)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    _put(folder / f"{file}.crt", _pem(leaf.sign(signer, hashes.SHA256())))
    _put(folder / f"{file}.key", _key(key))


def _names(names: Sequence[str], addresses: Sequence[str]) -> list[x509.GeneralName]:
    return [*map(x509.DNSName, names), *(x509.IPAddress(ipaddress.ip_address(each)) for each in addresses)]


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


def _name(common: str, group: str = "") -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _put(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
