"""Decide which requests the local server answers: those of the page that was opened here, and no others. Pure.

The server has the reader's rights in the cluster, and each web page that the reader opens may send requests to it.
"""

from collections.abc import Mapping
from hmac import compare_digest
from http import HTTPStatus
from typing import Final

READING: Final = frozenset({"GET", "HEAD"})
OWN_SITE: Final = frozenset({"same-origin", "none"})
"""What a browser says of a request that no other site caused."""
OPENED: Final = ("navigate", "document")
"""Mode and destination of a page that is opened by itself, as by the file that leads to the address."""
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer. Without a referrer the token in the address goes nowhere."""


def refusal(method: str, path: str, headers: Mapping[str, str], port: int, token: str) -> HTTPStatus | None:
    """Return the status of a refusal; ``None`` for a request that is answered.

    Args:
        method: of the request.
        path: its path, which begins with the token.
        headers: its headers. The browser writes ``Host``, ``Origin`` and ``Sec-Fetch-Site``, no page does.
        port: of this server. A name that was made to point at this machine (DNS rebinding) is no host of it.
        token: of this server.
    """
    hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
    if headers.get("Host", "") not in hosts:
        return HTTPStatus.MISDIRECTED_REQUEST
    origin = headers.get("Origin")
    if origin is not None and origin not in {f"http://{host}" for host in hosts}:
        return HTTPStatus.FORBIDDEN
    opened = (headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")) == OPENED and path == f"/{token}/"
    if headers.get("Sec-Fetch-Site", "none") not in OWN_SITE and not opened:
        return HTTPStatus.FORBIDDEN
    if method not in READING:
        return HTTPStatus.METHOD_NOT_ALLOWED
    given = path.removeprefix("/").partition("/")[0]
    return None if compare_digest(given.encode(), token.encode()) else HTTPStatus.FORBIDDEN
