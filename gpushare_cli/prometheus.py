"""A client of Prometheus' HTTP API, with bounds on size and time of answers."""

import argparse
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self

import urllib3

from gpushare.errors import ConfigError, GpuShareError
from gpushare.kube_client import GARBAGE
from gpushare.patterns import Pattern
from gpushare_cli.options import PROMETHEUS_TOKEN
from gpushare_cli.words import clean

CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 60.0
MOST_BYTES: Final = 32 * 1024 * 1024
CHUNK: Final = 64 * 1024
MOST_WORDS: Final = 300
"""Characters of a server's own message that are shown."""
LABEL: Final = Pattern(r"[a-zA-Z_][a-zA-Z0-9_]*=.*", 256)
JOB: Final = 'job="gpu-share-enforcer"'
"""Selects the series of enforcers. Tenants can write those of sidecars."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and its points as Unix time and value."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


def address(text: str) -> str:
    """Read the address of a server. Raises ``ConfigError``."""
    try:
        found = urllib3.util.parse_url(text)
    except urllib3.exceptions.LocationParseError:
        found = urllib3.util.Url()
    if found.scheme not in ("http", "https") or not found.host or found.query or found.fragment:
        raise ConfigError(
            f"--prometheus {text!r:.200} is not the address of a server; write for example http://localhost:9090"
        )
    if found.auth:
        raise ConfigError("--prometheus: leave user and password out of the address; give a token")
    return found.url.rstrip("/")


def label(text: str) -> str:
    """Read a label as a matcher of PromQL. Raises ``ConfigError``."""
    if LABEL.fullmatch(text) is None:
        raise ConfigError(f"--prometheus-label {text!r:.80} is not a label; write for example cluster=a")
    name, _, value = text.partition("=")
    return matcher(name, value)


def matcher(name: str, value: str) -> str:
    """Write a label as a matcher of PromQL."""
    return f"{name}={json.dumps(value)}"


class Prometheus:
    """A server. Safe to use from several threads.

    Args:
        url: its address, without ``/api/v1``.
        token: sent as bearer token; empty: none is sent.
        ca: file with the CA of its certificate.
        matchers: of PromQL, for every selector.

    Attributes:
        warnings: the server's warnings, of answers that may lack something.
    """

    def __init__(self, url: str, token: str = "", ca: Path | None = None, matchers: Sequence[str] = ()) -> None:
        self.url, self._matchers, self.warnings = url, matchers, dict[str, None]()
        self._headers = {"User-Agent": "gpu-share"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._pool = urllib3.PoolManager(cert_reqs="CERT_REQUIRED", ca_certs=None if ca is None else str(ca))

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self | None:
        """Return the server that the options name, if they do. Raises ``ConfigError``: one of them cannot be used."""
        if args.prometheus is None:
            return None
        token, file = os.environ.get(PROMETHEUS_TOKEN, ""), args.prometheus_token_file
        token = (_content("--prometheus-token-file", file) if file else token).strip()
        if not (token.isascii() and token.isprintable()):
            raise ConfigError(f"--prometheus-token-file or ${PROMETHEUS_TOKEN}: not a token; write one line of ASCII")
        if args.prometheus_ca and "-----BEGIN" not in _content("--prometheus-ca", args.prometheus_ca):
            raise ConfigError(f"--prometheus-ca {args.prometheus_ca}: no certificate in it; name a file in PEM")
        return cls(address(args.prometheus), token, args.prometheus_ca, [label(each) for each in args.prometheus_label])

    def selector(self, metric: str, *matchers: str) -> str:
        """Write the selector of a metric with these matchers and those of the options."""
        return f"{metric}{{{','.join((*matchers, *self._matchers))}}}"

    def at(self, query: str, moment: float) -> list[Series]:
        """Evaluate a query at a Unix time.

        Raises:
            GpuShareError: the server cannot be asked, or refuses; the message names it and says what to do.
        """
        return self._ask("query", query=query, time=f"{moment:.3f}")

    def between(self, query: str, start: float, end: float, step: float) -> list[Series]:
        """Evaluate a query every ``step`` seconds between two Unix times. Raises as ``at`` does."""
        return self._ask("query_range", query=query, start=f"{start:.3f}", end=f"{end:.3f}", step=f"{step:.3f}")

    def _ask(self, what: str, **fields: str) -> list[Series]:
        fields["timeout"] = f"{ANSWER_SECONDS:.0f}s"
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=ANSWER_SECONDS)
        try:
            response = self._pool.request(
                "GET", f"{self.url}/api/v1/{what}", fields=fields, headers=self._headers, timeout=timeout,
                preload_content=False, retries=False, redirect=False,
            )  # fmt: skip
            status, body = response.status, self._body(response)
            response.release_conn()
        except urllib3.exceptions.SSLError as error:
            raise self._error(f"its certificate is not accepted ({error}); name its CA with --prometheus-ca") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            hint = "check the address, or forward its port with kubectl port-forward"
            raise self._error(f"no answer ({error}); {hint}") from error
        if status != HTTPStatus.OK:
            raise self._error(_refusal(status, body, str(response.headers.get("Location"))))
        return self._read(body)

    def _read(self, body: bytes) -> list[Series]:
        try:
            answer = json.loads(body)
            self.warnings |= dict.fromkeys(clean(str(each))[:MOST_WORDS] for each in answer.get("warnings") or ())
            return [_series(each) for each in answer["data"]["result"]]
        except GARBAGE as error:
            raise self._error("its answer is not one of Prometheus' API; check the address and its path") from error

    def _body(self, response: urllib3.BaseHTTPResponse) -> bytes:
        """Read an answer, unless it is too large or does not come to its end."""
        deadline, pieces, size = time.monotonic() + ANSWER_SECONDS, [], 0
        while chunk := response.read1(CHUNK):
            pieces.append(chunk)
            size += len(chunk)
            if size > MOST_BYTES or time.monotonic() > deadline:
                response.close()
                bounds = f"its answer has more than {MOST_BYTES >> 20} MiB, or takes over {ANSWER_SECONDS:.0f} s"
                raise self._error(f"{bounds}; ask for one namespace: --prometheus-label namespace=NAME")
        return b"".join(pieces)

    def _error(self, problem: str) -> GpuShareError:
        return GpuShareError(f"Prometheus at {self.url}: {problem}")


def _content(option: str, file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option} {file}: {error}; name a file that you may read") from None


def _series(found: Mapping[str, Any]) -> Series:
    points = found["values"] if "values" in found else [found["value"]]
    numbers = ((float(when), float(value)) for when, value in points)
    return Series(dict(found["metric"]), [each for each in numbers if math.isfinite(each[1])])


def _refusal(status: int, body: bytes, location: str) -> str:
    """Say why it answered with an error, and what to do."""
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        other = f"--prometheus-token-file or ${PROMETHEUS_TOKEN}"
        return f"HTTP {status}: your token is not accepted; give another one with {other}"
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return f"HTTP {status}: it redirects to {clean(location)[:MOST_WORDS]}; name the address behind that"
    try:
        return f"HTTP {status}: {clean(json.loads(body)['error'])[:MOST_WORDS]}"
    except GARBAGE:
        return f"HTTP {status}: no API of Prometheus is there; check the address and its path"
