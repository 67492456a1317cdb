"""Requests of one connection, as llhttp parses the bytes that come in. Pure.

llhttp is the only HTTP parser of the webhook: it finds the end of a request and reads its head in one go, in C, and
refuses what can be read in two ways (two lengths, a length beside chunks, bare line feeds). The limits are here.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import httptools

CHECK: Final = "/check"
"""Where reviews of `gpu-share check` come: each ends its connection, so that the next may reach another replica."""
MAX_BODY: Final = 7 * 1024 * 1024
"""An UPDATE carries two objects of at most 3 MB (etcd's limit is 1.5 MiB, a request's 3) and less than 1 MB around."""
MAX_HEAD: Final = 64 * 1024
CHUNK_OVERHEAD: Final = 1024 * 1024
"""Of all chunks together. The API server sends none."""
BAD_REQUEST: Final = "400 Bad Request"


@dataclass(slots=True)
class Request:
    """One request. What is too large is handed on as soon as that is known, without the rest."""

    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    method: str = ""
    keep_alive: bool = False


class _Refused(Exception):
    """Ends parsing. The answer stands in ``RequestReader.refusal``."""


class RequestReader:
    """Takes bytes in pieces; whole requests are in ``requests`` in their order. After ``refusal`` nothing is read."""

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()
        self.refusal = ""
        """Status of the answer to what cannot be a request; empty where there is none."""
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._headed = False
        self.size = 0
        """Bytes of the request that is coming in, so far."""

    def feed(self, data: bytes) -> None:
        """Parse what came."""
        self.size += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.refusal = self.refusal or BAD_REQUEST
        if not self._headed and self.size > MAX_HEAD:
            self.refusal = "431 Request Header Fields Too Large"
        elif self.size > MAX_HEAD + MAX_BODY + CHUNK_OVERHEAD:
            self.refusal = BAD_REQUEST

    def on_message_begin(self) -> None:
        """Called by llhttp, as all that follow."""
        self._request, self.size = Request(), max(self.size, 1)

    def on_url(self, url: bytes) -> None:
        """Take a part of the request's target."""
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field; those after the last chunk mean nothing here."""
        if not self._headed:
            self._request.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Answer at once what must not be waited for."""
        self._headed, request = True, self._request
        request.method = self._parser.get_method().decode()
        request.keep_alive = self._parser.should_keep_alive()
        if self._parser.should_upgrade():
            self._refuse(BAD_REQUEST)  # llhttp would take the body for bytes of the other protocol
        for name, value in request.headers:
            lower = name.lower()
            if lower == b"expect":
                # Giving the go-ahead would mean to wait; clients repeat the request without it after a 417.
                self._refuse("417 Expectation Failed")
            if lower == b"content-length" and int(value) > MAX_BODY:
                self._cut()

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._request.body += data
        if len(self._request.body) > MAX_BODY:
            self._cut()

    def on_message_complete(self) -> None:
        """Hand the request on."""
        self.requests.append(self._request)
        self._headed, self.size = False, 0

    def _cut(self) -> None:
        self._request.keep_alive = False
        self.requests.append(self._request)
        raise _Refused

    def _refuse(self, status: str) -> None:
        self.refusal = status
        raise _Refused
