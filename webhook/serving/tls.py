"""The serving certificate: taken up from a folder while running, kept when what follows it is broken.

gunicorn asks for a context at each handshake. It gets the cached one; at most once a second the files are read again,
and a pair that differs is activated only if it is whole: readable, key and certificate belonging together, valid now.
Mounted Secrets give no reliable file events, so this compares contents and not times. Where clients need certificates,
the CA file of those is activated together with the pair, so that no handshake is without it.
"""

import os
import ssl
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog
from cryptography import x509

from gpushare.reasons import Reason
from webhook.flags import Clients
from webhook.metrics import Metrics

log = structlog.get_logger()

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
RECHECK_SECONDS: Final = 1.0
REMIND_SECONDS: Final = 60.0
MAX_FILE: Final = 64 * 1024
"""A chain of four certificates is 8 kB; what is larger is not a certificate."""


class Rejected(Exception):
    """A pair that is not activated.

    Args:
        result: the label under which it is counted.
        message: why.
        passing: whether the same pair may be good later; then it is tried again once a minute.
    """

    def __init__(self, result: str, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.result, self.passing = result, passing


class Context(ssl.SSLContext):
    """What handshakes are made with: a pair that ``expires`` (Unix time), and the name that a client needs, or none."""

    expires, serial, client_name = 0.0, "", ""


class Certificates:
    """The pair in ``folder``, as it is now or as it last was whole. Safe to use from several threads."""

    def __init__(
        self,
        folder: Path,
        metrics: Metrics,
        *,
        clients: Clients | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._metrics = folder, metrics
        self._clients = clients
        self._monotonic, self._now = monotonic, now
        self._lock = threading.Lock()
        self._serving: Context | None = None
        self._seen: list[bytes] | str = ""
        self._next_check = float("-inf")
        self._next_reminder = float("-inf")

    @property
    def loaded(self) -> bool:
        """Whether there is a certificate to serve, and it has not ended."""
        self.refresh()
        return self._serving is not None and self._serving.expires > self._now()

    def context(self) -> ssl.SSLContext:
        """The context for one handshake.

        Raises:
            ssl.SSLError: there has never been a usable pair, or no usable CA of clients where they need one.
        """
        self.refresh()
        if self._serving is None:
            raise ssl.SSLError(1, f"no usable {CERTIFICATE} and {KEY} in {self._folder} yet")
        return self._serving

    def refresh(self) -> None:
        """Read the files if the last time is a second ago."""
        with self._lock:
            if self._monotonic() >= self._next_check:
                self._next_check = self._monotonic() + RECHECK_SECONDS
                self._look()
                self._remind()

    def _look(self) -> None:
        found = self._read()
        if found == self._seen:
            return
        self._seen = found
        if isinstance(found, str):
            self._reject(Rejected("unreadable", found))
            return
        try:
            context = load(*found[:2], now=self._now())
            if self._clients:
                require_clients(context, found[2], self._clients)
            self._activate(context)
        except Rejected as error:
            self._reject(error)

    def _read(self) -> list[bytes] | str:
        """The files, or why they cannot be read: a state like any other content, reported once."""
        paths = [self._folder / CERTIFICATE, self._folder / KEY, *([self._clients.ca] if self._clients else [])]
        try:
            return [_read(each) for each in paths]
        except OSError as error:
            return f"{error.strerror}: {error.filename}"

    def _activate(self, serving: Context) -> None:
        self._serving = serving
        self._metrics.certificate_expiry.set(serving.expires)
        self._metrics.certificate_reloads.labels("loaded").inc()
        facts = {"serial": serving.serial, "expires": _date(serving.expires)}
        log.info("serving certificate loaded", reason=Reason.CERTIFICATE_RENEWED, **facts)

    def _reject(self, error: Rejected) -> None:
        if error.passing:
            self._seen, self._next_check = "", self._monotonic() + REMIND_SECONDS
        self._metrics.certificate_reloads.labels(error.result).inc()
        log.error(
            "serving certificate rejected",
            keeps_last_good=self._serving is not None,
            reason=Reason.CERTIFICATE_REJECTED,
            result=error.result,
            error=str(error),
            folder=str(self._folder),
        )

    def _remind(self) -> None:
        """Say once a minute that the certificate being served has ended."""
        if self._serving is None or self._serving.expires > self._now() or self._monotonic() < self._next_reminder:
            return
        self._next_reminder = self._monotonic() + REMIND_SECONDS
        log.error(
            "serving certificate has expired; the API server refuses this webhook",
            reason=Reason.CERTIFICATE_REJECTED,
            expires=_date(self._serving.expires),
        )


def load(certificate: bytes, key: bytes, *, now: float) -> Context:
    """Make a pair ready to serve: TLS 1.3 only, no resumption (it would outlive a rotation).

    Args:
        certificate: PEM chain, leaf first.
        key: PEM private key, unencrypted.
        now: Unix time at which the leaf has to be valid.

    Raises:
        Rejected: the pair is unreadable, torn, not yet valid or expired.
    """
    try:
        leaf = x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise Rejected("unreadable", f"{CERTIFICATE} is not a PEM certificate: {error}") from error
    context = Context(ssl.PROTOCOL_TLS_SERVER)
    context.expires, context.serial = leaf.not_valid_after_utc.timestamp(), f"{leaf.serial_number:x}"
    starts, expires = leaf.not_valid_before_utc.timestamp(), context.expires
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, certificate, key)
    if expires <= now:
        raise Rejected("expired", f"{CERTIFICATE} ended {_date(expires)}", passing=True)  # by a clock that may be wrong
    if starts > now:
        raise Rejected(
            "not_yet_valid",
            f"{CERTIFICATE} is not valid before {_date(starts)}; check the clocks of the nodes",
            passing=True,
        )
    return context


def require_clients(context: Context, ca: bytes, clients: Clients) -> None:
    """Let a context accept only clients with a certificate of the CAs in ``ca`` (PEM), made for TLS clients.

    Raises:
        Rejected: there is no CA in it.
    """
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise Rejected("unreadable", f"{clients.ca} holds no PEM certificates of a CA: {error}") from error
    context.verify_mode = ssl.CERT_REQUIRED
    context.client_name = clients.name


def check_client(connection: ssl.SSLSocket | ssl.SSLObject) -> None:
    """Compare the name in a verified client's certificate with the one wanted. Call it after the handshake.

    Raises:
        ssl.SSLCertVerificationError: it has another name, or several.
    """
    wanted = getattr(connection.context, "client_name", "")
    if not wanted:
        return
    subject: Any = (connection.getpeercert() or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    if names != [wanted]:
        raise ssl.SSLCertVerificationError(1, f"the common name of the client's certificate is not {wanted!r:.80}")


def refuses_client(error: OSError) -> bool:
    """Tell whether a handshake failed because the client's certificate is missing or not accepted."""
    missing = getattr(error, "reason", "") == "PEER_DID_NOT_RETURN_A_CERTIFICATE"  # only OpenSSL's own errors have one
    return missing or isinstance(error, ssl.SSLCertVerificationError)


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load exactly the bytes that were compared. OpenSSL wants a path, so they go through memory that has one."""
    try:
        with os.fdopen(os.memfd_create("gpu-share-serving-pair"), "wb") as file:
            file.write(certificate + b"\n" + key)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=str)  # or OpenSSL asks on the terminal
    except ssl.SSLError as error:
        torn = error.reason == "KEY_VALUES_MISMATCH"
        says = "do not belong together" if torn else f"cannot be used: {error.reason or error}"
        raise Rejected("torn" if torn else "unreadable", f"{CERTIFICATE} and {KEY} {says}") from error
    except OSError as error:
        raise Rejected("unreadable", f"{CERTIFICATE} and {KEY} cannot be loaded now: {error}", passing=True) from error


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_FILE)


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
