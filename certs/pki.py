"""Keys and certificates: makes them, and reads what it is given without trusting it.

P-256 throughout, random serials, and every extension a strict verifier asks for. What is read may come from a Secret
that anybody damaged: sizes and counts are bounded before anything is parsed, and what does not fit is a ``problem`` of
the certificate, not an exception.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.rotation_plan import Authority, Leaf

MAX_PEM: Final = 64 * 1024
"""Bytes of PEM read at most: parsing time grows with size (856 kB took 750 ms in another project)."""
MAX_CERTIFICATES: Final = 8
BEGIN: Final = b"-----BEGIN "


class Pair(NamedTuple):
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


def make_authority(begins: datetime, ends: datetime) -> Pair:
    """Make a self-signed authority that may sign serving certificates and no further authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"gpu-share CA {serial:x}"[:32])
    builder = _builder(name, name, key.public_key(), serial, begins, ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, names: Iterable[str], begins: datetime, ends: datetime) -> Pair:
    """Issue a serving certificate for ``DNS:…`` and ``IP:…`` names."""
    signer_key = _key(authority.key)
    signer = x509.load_pem_x509_certificate(authority.certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = [_alternative(n) for n in sorted(names)]
    builder = _builder(_name("gpu-share"), signer.subject, key.public_key(), x509.random_serial_number(), begins, ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False
    )
    return _pair(builder.sign(signer_key, hashes.SHA256()), key)


def read_certificates(pem: bytes) -> tuple[bytes, ...]:
    """Split PEM into certificates, each normalised; nothing at all if any of it is damaged or too much."""
    if len(pem) > MAX_PEM or not 1 <= pem.count(BEGIN) <= MAX_CERTIFICATES:
        return ()
    try:
        return tuple(_pem(c) for c in x509.load_pem_x509_certificates(pem))
    except ValueError:
        return ()


def read_authority(certificate: bytes, key: bytes | None) -> Authority | None:
    """Describe an authority; ``None`` if there is no sound CA to speak of. Without a key it cannot sign.

    Its signature of itself proves that no byte was altered: others must be able to read what is published.
    """
    parsed = _one(certificate)
    if parsed is None or not _signed(parsed, parsed):
        return None
    return Authority(
        fingerprint=_fingerprint(parsed),
        begins=parsed.not_valid_before_utc,
        ends=parsed.not_valid_after_utc,
        problem=_mismatch(parsed, key),
    )


def read_leaf(certificate: bytes, key: bytes, authorities: Sequence[bytes]) -> Leaf | None:
    """Describe a serving pair, and find which of the authorities (PEM, one each) signed it."""
    parsed = _one(certificate)
    if parsed is None:
        return None
    problem = "the certificate is a CA certificate" if _is_ca(parsed) else _mismatch(parsed, key)
    return Leaf(
        names=_names(parsed),
        issuer=next((_fingerprint(a) for a in map(_one, authorities) if a and _signed(parsed, a)), ""),
        begins=parsed.not_valid_before_utc,
        ends=parsed.not_valid_after_utc,
        problem=problem,
    )


def _one(pem: bytes) -> x509.Certificate | None:
    """The one certificate in a file that is byte for byte as we write them: other readers are pickier than this one.

    Keys that are not on an elliptic curve are not ours, and could be made slow to check.
    """
    if read_certificates(pem) != (pem,):
        return None
    try:
        found = x509.load_pem_x509_certificate(pem)
        elliptic = isinstance(found.public_key(), ec.EllipticCurvePublicKey)
        _ = found.extensions, found.not_valid_before_utc, found.not_valid_after_utc
    except (ValueError, UnsupportedAlgorithm, x509.DuplicateExtension):  # parsed only when asked for
        return None
    return found if elliptic else None


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key, serial_number=serial)
    builder = builder.not_valid_before(begins).not_valid_after(ends)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    others = "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        **dict.fromkeys((*others, "encipher_only", "decipher_only"), False),
    )  # fmt: skip


def _alternative(name: str) -> x509.GeneralName:
    kind, _, value = name.partition(":")
    return x509.DNSName(value) if kind == "DNS" else x509.IPAddress(ipaddress.ip_address(value))


def _names(certificate: x509.Certificate) -> frozenset[str]:
    with suppress(x509.ExtensionNotFound, ValueError):
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return frozenset(
            [f"DNS:{n}" for n in found.get_values_for_type(x509.DNSName)]
            + [f"IP:{n}" for n in found.get_values_for_type(x509.IPAddress)]
        )
    return frozenset()


def _is_ca(certificate: x509.Certificate) -> bool:
    with suppress(x509.ExtensionNotFound, ValueError):
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    return False


def _mismatch(certificate: x509.Certificate, key: bytes | None) -> str:
    """Why the pair is none; empty when it is one."""
    if not key:
        return "its private key is missing"
    try:
        private = _key(key)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return "its private key cannot be read"
    return "" if certificate.public_key() == private.public_key() else "the private key belongs to another certificate"


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    if len(pem) > MAX_PEM:
        raise ValueError("the file is too long for a private key")
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the private key is not an elliptic-curve key")
    if _key_pem(key) != pem:
        raise ValueError("the private key is not unencrypted PKCS#8 PEM as gpu-share writes it")
    return key


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    if not _is_ca(authority):
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _fingerprint(certificate: x509.Certificate) -> str:
    return certificate.fingerprint(hashes.SHA256()).hex()


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(_pem(certificate), _key_pem(key))
