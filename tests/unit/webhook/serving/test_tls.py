"""The serving certificate: when it is looked at, what is taken up, what is refused."""

import errno
import ssl
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.support import pki
from webhook.metrics import Metrics
from webhook.serving import tls


class Clocks:
    def __init__(self) -> None:
        self.passed = self.ahead = 0.0

    def monotonic(self) -> float:
        return self.passed

    def now(self) -> float:
        return time.time() + self.passed + self.ahead


@pytest.fixture(name="clocks")
def _clocks() -> Clocks:
    return Clocks()


@pytest.fixture(name="authority", scope="module")
def _authority() -> pki.Authority:
    return pki.Authority()


@pytest.fixture(name="certificates")
def _certificates(tmp_path: Path, clocks: Clocks, metrics: Metrics) -> tls.Certificates:
    return tls.Certificates(tmp_path, metrics, monotonic=clocks.monotonic, now=clocks.now)


def reloads(metrics: Metrics, result: str) -> float | None:
    return metrics.registry.get_sample_value("gpu_share_cert_reloads_total", {"result": result})


def test_without_a_pair_there_is_no_handshake(certificates: tls.Certificates, metrics: Metrics) -> None:
    with pytest.raises(ssl.SSLError, match=r"no usable tls\.crt"):
        certificates.context()

    assert not certificates.loaded
    assert reloads(metrics, "unreadable") == 1


def test_the_context_is_kept_while_the_files_stay(
    certificates: tls.Certificates, clocks: Clocks, authority: pki.Authority, tmp_path: Path
) -> None:
    pki.write(tmp_path, authority.issue())
    first = certificates.context()
    clocks.passed = 5.0

    assert certificates.context() is first
    assert first.minimum_version is ssl.TLSVersion.TLSv1_3


def test_the_files_are_looked_at_once_a_second(
    certificates: tls.Certificates, clocks: Clocks, authority: pki.Authority, tmp_path: Path
) -> None:
    pki.write(tmp_path, authority.issue())
    first = certificates.context()
    pki.write(tmp_path, authority.issue())
    clocks.passed = 0.9
    assert certificates.context() is first

    clocks.passed = 1.0
    assert certificates.context() is not first


def test_a_pair_that_begins_later_is_taken_up_when_it_does(
    certificates: tls.Certificates, clocks: Clocks, authority: pki.Authority, tmp_path: Path, metrics: Metrics
) -> None:
    pki.write(tmp_path, authority.issue(begins=0.01))
    assert not certificates.loaded
    assert reloads(metrics, "not_yet_valid") == 1

    clocks.passed = 0.02 * 86400
    assert certificates.loaded


def test_a_pair_refused_by_a_clock_that_was_ahead_is_taken_up_when_it_is_right(
    certificates: tls.Certificates, clocks: Clocks, authority: pki.Authority, tmp_path: Path, metrics: Metrics
) -> None:
    pki.write(tmp_path, authority.issue(ends=7))
    clocks.ahead = 60 * 86400.0
    assert not certificates.loaded
    assert reloads(metrics, "expired") == 1
    clocks.ahead, clocks.passed = 0.0, 61.0
    assert certificates.loaded


@pytest.mark.parametrize("call", ["os.memfd_create", "ssl.SSLContext.load_cert_chain"])
def test_a_moment_without_descriptors_costs_neither_handshake_nor_renewal(
    certificates: tls.Certificates, clocks: Clocks, authority: pki.Authority, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, call: str,
) -> None:  # fmt: skip
    pki.write(tmp_path, authority.issue())
    first = certificates.context()
    pki.write(tmp_path, authority.issue())

    def none_left(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(call, none_left)
        clocks.passed = 2.0
        assert certificates.context() is first
    clocks.passed = 120.0
    assert certificates.context() is not first


def test_a_certificate_that_ends_is_reported_so_and_not_ready(
    certificates: tls.Certificates,
    clocks: Clocks,
    authority: pki.Authority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pki.write(tmp_path, authority.issue(ends=1))
    assert certificates.loaded
    for clocks.passed in (86401.0, 86410.0, 86420.0):
        assert not certificates.loaded

    assert capsys.readouterr().out.count("has expired") == 1


def test_the_end_is_a_metric(
    certificates: tls.Certificates, authority: pki.Authority, tmp_path: Path, metrics: Metrics
) -> None:
    pki.write(tmp_path, authority.issue(ends=7))
    certificates.refresh()

    ends = metrics.registry.get_sample_value("gpu_share_serving_cert_expiry_timestamp_seconds")
    assert ends == pytest.approx(time.time() + 7 * 86400, abs=60)


def encrypted(key: bytes) -> bytes:
    how = serialization.BestAvailableEncryption(b"secret")
    plain = serialization.load_pem_private_key(key, None)
    return plain.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


@pytest.mark.parametrize(
    "fault", ["key missing", "key encrypted", "key of another", "certificate cut", "both empty", "huge"]
)
def test_a_broken_pair_is_rejected_with_a_word(authority: pki.Authority, fault: str) -> None:
    pair, other = authority.issue(), authority.issue()
    certificate, key = {
        "key missing": (pair.certificate, b""),
        "key encrypted": (pair.certificate, encrypted(pair.key)),
        "key of another": (pair.certificate, other.key),
        "certificate cut": (pair.certificate[:-40], pair.key),
        "both empty": (b"", b""),
        "huge": (b"x" * 10_000_000, pair.key),
    }[fault]

    with pytest.raises(tls.Rejected) as caught:
        tls.load(certificate, key, now=time.time())

    assert caught.value.result == ("torn" if fault == "key of another" else "unreadable")
    assert "tls.crt" in str(caught.value)
