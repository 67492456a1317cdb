"""The one road to the API server: plain dicts in and out, no typed models.

Typed models drop fields newer than themselves, so this module builds none. ``service_account`` reads a pod's service
account, ``plain_kubeconfig`` the user's kubeconfig, and ``kubeconfig`` one that a command or a service logs in for.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import urllib3

from gpushare.errors import ClusterError, WatchBroken
from gpushare.service_account import Access, ServiceAccount

Object = dict[str, Any]
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"
DEFAULT_TIMEOUT: Final = 10.0
PAGE: Final = 1
"""Objects at once where the API server does not stream lists. An object of 1.3 MB can read back as 7.8 MB, and takes
several times that when it is parsed: two at once leave the enforcer too little of its memory limit."""
LARGE_PAGE: Final = 500
"""Objects at once of a list that fits into memory, as kubectl reads it."""
WATCH_SECONDS: Final = 300
WATCH_SILENCE: Final = 90.0
"""Seconds without a word after which a watch is given up: the API server sends a bookmark each minute, and a connection
that was lost on its way says nothing at all."""
SILENCE: Final = 30.0
"""Seconds without a word after which a command in a pod is given up."""
MESSAGE_LIMIT: Final = 500
BODY_SECONDS: Final = 60.0
"""For one answer that comes in drops; each drop may take no longer than the call's own timeout."""
MAX_LINE: Final = 16 * 1024 * 1024
"""Bytes of one event of a watch: several times the largest object there can be."""
CHUNK: Final = 64 * 1024
GARBAGE: Final = (KeyError, TypeError, AttributeError, ValueError, RecursionError)
"""What comes of an answer that is none of an API server's."""

STREAMED: Final = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
"""Make a watch begin with all objects there are, one event each."""
ALL_SEEN: Final = "k8s.io/initial-events-end"
"""Annotation of the bookmark that comes after them."""
NOT_STREAMED: Final = frozenset({400, 403, 405, 422})
"""What an API server says that does not stream lists, or whose client may list and not watch."""

RESOURCE_V1: Final = "/apis/resource.k8s.io/v1"
EVENTS_V1: Final = "/apis/events.k8s.io/v1"
ADMISSION_V1: Final = "/apis/admissionregistration.k8s.io/v1"
APPS_V1: Final = "/apis/apps/v1"
CORE_V1: Final = "/api/v1"
COORDINATION_V1: Final = "/apis/coordination.k8s.io/v1"
BATCH_V1: Final = "/apis/batch/v1"


def path(base: str, kind: str, name: str = "", namespace: str = "") -> str:
    """Build an API path, such as ``/api/v1/namespaces/a/pods/b`` for ``path(CORE_V1, "pods", "b", "a")``."""
    parts = [base]
    parts += ["namespaces", quote(namespace, safe="")] if namespace else []
    parts += [kind] + ([quote(name, safe="")] if name else [])
    return "/".join(parts)


class KubeClient:
    """A connection to one API server. Safe to use from several threads."""

    def __init__(self, access: Access, user: str = "") -> None:
        self._access = access
        self._user = {"Impersonate-User": user} if user else {}

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Use the given kubeconfig, else the pod's service account, else the user's own kubeconfig.

        Raises:
            ClusterError: there is no usable configuration.
        """
        named = kubeconfig is not None or context is not None
        account = None if named else ServiceAccount.found()
        if account is not None:
            return cls(account)
        from gpushare.plain_kubeconfig import PlainKubeconfig  # noqa: PLC0415 - no pod needs it

        if (found := PlainKubeconfig.read(kubeconfig, context)) is not None:
            return cls(found)
        from gpushare import kubeconfig as official  # noqa: PLC0415 - it takes much memory and time

        return cls(official.Kubeconfig.load(kubeconfig, context))

    def acting_as(self, user: str) -> Self:
        """Return a client of the same connections that asks as another user, for which one needs a right.

        Raises:
            ClusterError: this is a pod, whose account has no such right; asking would alarm who reads audit logs.
        """
        if isinstance(self._access, ServiceAccount):
            raise ClusterError(f"the account of a pod cannot impersonate {user}")
        return type(self)(self._access, user)

    def get(self, where: str, *, timeout: float = DEFAULT_TIMEOUT, **query: str) -> Object:
        """Read one object, or one page of a list."""
        return self._call("GET", where, query=query, timeout=timeout)

    def clock(self) -> datetime:
        """Return the time of the API server, in seconds; that of this machine where an answer has no valid date."""
        response = self._send("GET", "/version", None, {}, urllib3.Timeout(total=DEFAULT_TIMEOUT))
        response.drain_conn()
        try:
            return parsedate_to_datetime(response.headers.get("Date", ""))
        except ValueError:
            return datetime.now(UTC)

    def create(self, where: str, body: Object, **query: str) -> Object:
        """Create an object; an existing one is a ``ClusterError`` with status 409."""
        return self._call("POST", where, body, query=query)

    def replace(self, where: str, body: Object) -> Object:
        """Write an object whole; a newer one in the way is a ``ClusterError`` with status 409."""
        return self._call("PUT", where, body)

    def patch(self, where: str, body: object, content_type: str = MERGE_PATCH, **query: str) -> Object:
        """Change an object by merge patch (default), JSON patch, or server-side apply."""
        return self._call("PATCH", where, body, query=query, content_type=content_type)

    def delete(self, where: str, body: Object | None = None, **query: str) -> Object:
        """Delete an object; one that is gone is a ``ClusterError`` with status 404."""
        return self._call("DELETE", where, body, query=query)

    def list(self, where: str, **query: str) -> tuple[list[Object], str]:
        """Read a whole list as it was at one moment. Returns its items and the resource version to watch from."""
        listing = Listing(None, self._pages(where, query), where)
        return list(listing), listing.version

    def listing(self, where: str, **query: str) -> "Listing":
        """Read a list that may not fit into memory: return an iterator that reads object after object."""
        return Listing(lambda: self.watch(where, "", **query, **STREAMED), self._pages(where, query), where)

    def _pages(self, where: str, query: Mapping[str, str]) -> Callable[[dict[str, str]], Object]:
        return lambda page: self._call("GET", where, query={**query, **page})

    def watch(self, where: str, version: str, **query: str) -> Iterator[tuple[str, Object]]:
        """Yield (type, object) from one watch until the server ends it.

        Raises:
            WatchBroken: the connection failed or fell silent.
            ClusterError: the API server refused, or the version is too old (status 410): list again.
        """
        query |= {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        query |= {"allowWatchBookmarks": "true"}
        response = self._send("GET", where, None, query, urllib3.Timeout(connect=DEFAULT_TIMEOUT, read=WATCH_SILENCE))
        try:
            yield from map(_event, _lines(response))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise WatchBroken(f"WATCH {where}: the connection broke: {error}") from error
        except GARBAGE as error:
            raise ClusterError(f"WATCH {where}: the watch event cannot be parsed: {error}") from error
        finally:
            with suppress(OSError):
                response.close()

    def log(self, pod: str, namespace: str, container: str, *, lines: int, limit: int, previous: bool = False) -> bytes:
        """Return the last lines of a container's log, at most ``limit`` bytes; ``previous``: before its last restart.

        Raises:
            ClusterError: the API server refused, or the connection failed.
        """
        where = f"{path(CORE_V1, 'pods', pod, namespace)}/log"
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(limit)}
        query |= {"previous": "true"} if previous else {}
        response = self._send("GET", where, None, query, urllib3.Timeout(total=DEFAULT_TIMEOUT))
        try:
            return _body(response)[:limit]
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(f"{where} broke off: {error}") from error
        finally:
            with suppress(OSError):
                response.close()

    def run(
        self, pod: str, namespace: str, container: str, command: Sequence[str], *, silence: float = SILENCE
    ) -> Iterator[bytes]:
        """Run a command in a container and yield what it writes to its standard output, in pieces.

        Raises:
            ClusterError: it cannot be run, says nothing for ``silence`` seconds, or ends with an exit code that is
                not 0; then its standard error is part of the message.
        """
        where = f"{path(CORE_V1, 'pods', pod, namespace)}/exec"
        query = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        from gpushare import kubeconfig as official  # noqa: PLC0415 - it takes much memory, and few run commands

        return official.exec_in_pod(self._access, f"{where}?{urlencode(query)}", self._authorization(), silence)

    def _call(
        self,
        method: str,
        where: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> Object:
        """Make one call; return the answer."""
        response = self._send(method, where, body, query or {}, urllib3.Timeout(total=timeout), content_type)
        try:
            answer: Object = json.loads(_body(response))
        except (ValueError, RecursionError, OSError, urllib3.exceptions.HTTPError) as error:
            message = f"{method} {where}: the API server's answer cannot be read: {error}"
            raise ClusterError(message, response.status) from error
        return answer

    def _send(
        self,
        method: str,
        where: str,
        body: object,
        query: Mapping[str, str],
        timeout: urllib3.Timeout,
        content_type: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        url = f"{self._access.host}{where}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": "gpu-share", **self._user, **self._authorization()}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = content_type
        try:
            response = self._access.pool.request(
                method, url, body=data, headers=headers, timeout=timeout, preload_content=False, retries=False
            )
        except urllib3.exceptions.SSLError as error:
            message = "the TLS connection to the API server failed; check its CA and your certificate"
            raise ClusterError(f"{method} {where}: {message}: {error}") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterError(f"{method} {where}: the API server does not answer: {error}") from error
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise ClusterError(f"{method} {where}: {_message(response)}", response.status)
        return response

    def _authorization(self) -> dict[str, str]:
        return self._access.authorization()


class Listing(Iterator[Object]):
    """A list, object by object: streamed, or in small pages where the API server refuses that.

    Attributes:
        version: the resource version to watch from, once all has been read.
        outdated: whether one of these objects was deleted while the list was read. A stream may also yield one twice,
            the newer later.

    Args:
        stream: opens a watch that begins with all there is; ``None`` for a list in large pages.
        page: reads a page, by the query's ``limit`` and ``continue``.
        where: the list's path, for messages.
    """

    def __init__(
        self,
        stream: Callable[[], Iterator[tuple[str, Object]]] | None,
        page: Callable[[dict[str, str]], Object],
        where: str,
    ) -> None:
        self._page, self._where = page, where
        self._items = self._paged(LARGE_PAGE) if stream is None else self._read(stream)
        self.version, self.outdated = "", False

    def __next__(self) -> Object:
        """Raises ClusterError where the list cannot be read further."""
        return next(self._items)

    def _read(self, stream: Callable[[], Iterator[tuple[str, Object]]]) -> Iterator[Object]:
        try:
            yield from self._streamed(stream())
        except ClusterError as error:
            if error.status not in NOT_STREAMED:
                raise
            yield from self._paged(PAGE)

    def _streamed(self, events: Iterator[tuple[str, Object]]) -> Iterator[Object]:
        """Yield what a watch begins with.

        Raises:
            WatchBroken: it ended before that was all.
        """
        for kind, item in events:
            if kind == "BOOKMARK":
                if (item["metadata"].get("annotations") or {}).get(ALL_SEEN) == "true":
                    self.version = item["metadata"]["resourceVersion"]
                    return
            elif kind == "DELETED":
                self.outdated = True
            else:
                yield item
            del item  # free it before the next one is parsed
        raise WatchBroken(f"GET {self._where}: the connection ended before the list was complete")

    def _paged(self, limit: int) -> Iterator[Object]:
        more: str | None = ""
        while more is not None:
            answer = self._page({"limit": str(limit)} | ({"continue": more} if more else {}))
            try:
                found = answer["items"] or []
                _ = [item["metadata"]["name"] for item in found]  # what has none is not an object
                more, self.version = answer["metadata"].get("continue") or None, answer["metadata"]["resourceVersion"]
            except GARBAGE as error:
                message = f"GET {self._where}: the answer is not a list of objects: {answer!r:.100}"
                raise ClusterError(message) from error
            found.reverse()
            while found:
                yield found.pop()


def find(cluster: KubeClient, where: str) -> Object | None:
    """Read one object; ``None`` where there is none. Raises ``ClusterError``."""
    try:
        return cluster.get(where)
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise


def namespace_of(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return the namespace that a context of the user's kubeconfig names; ``default`` where it names none."""
    from gpushare import plain_kubeconfig  # noqa: PLC0415 - as above

    if (found := plain_kubeconfig.namespace_of(kubeconfig, context)) is not None:
        return found
    from gpushare import kubeconfig as official  # noqa: PLC0415 - as above

    return official.namespace_of(kubeconfig, context)


def _event(line: bytes) -> tuple[str, Object]:
    event = json.loads(line)
    if event["type"] == "ERROR":
        status = event["object"]
        raise ClusterError(str(status.get("message", status)), int(status.get("code", 0)))
    return event["type"], event["object"]


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield whole lines; of one that comes in many pieces the pieces are put together once."""
    pieces: list[bytes] = []
    size = 0
    for chunk in response.stream(amt=None, decode_content=True):
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            line, pieces, size = b"".join((*pieces, part)), [], 0
            if line:
                yield line
        pieces.append(rest)
        size += len(rest)
        if size > MAX_LINE:
            raise ValueError(f"a line has more than {MAX_LINE} bytes")


def _body(response: urllib3.BaseHTTPResponse) -> bytes:
    """Read an answer, but not for ever.

    Raises:
        TimeoutError: it does not come to its end.
    """
    deadline, found = time.monotonic() + BODY_SECONDS, []
    while chunk := response.read1(CHUNK):
        found.append(chunk)
        if time.monotonic() > deadline:
            raise TimeoutError(f"the answer did not end within {BODY_SECONDS:.0f} s")
    return b"".join(found)


def _message(response: urllib3.BaseHTTPResponse) -> str:
    """The sentence of a Status answer, or what there is instead of one."""
    with suppress(ValueError, KeyError, TypeError, urllib3.exceptions.HTTPError):
        return str(json.loads(response.data)["message"])[:MESSAGE_LIMIT]
    return f"HTTP {response.status}"
