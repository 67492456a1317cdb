"""The road to the API server, against a scripted server on loopback that answers as the real one does."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpushare import kube_client as road
from gpushare.errors import ClusterError
from gpushare.informer import Informer
from gpushare.kube_client import CORE_V1, KubeClient, path
from gpushare.reasons import Reason
from tests.support.patience import patient

BROKEN = "the connection ends in the middle"


class Script(BaseHTTPRequestHandler):
    """Answers each GET from ``server.answers``: a list of (status, lines) taken in order, the last one for ever."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Keep the test output quiet."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.seen.append((self.path, dict(self.headers)))
        status, lines = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            if line is BROKEN:
                self.close_connection = True
                return
            if isinstance(line, threading.Event):  # not a word more
                self.close_connection = line.wait(30)
                return
            data = line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")


@pytest.fixture(name="server")
def _server() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Script)
    server.daemon_threads = True
    server.answers, server.seen = [], []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(name="cluster")
def _cluster(server: Any, tmp_path: Path) -> KubeClient:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "x", "user": {"token": "secret"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    return KubeClient.connect(str(file))


def _page(items: list[int], version: str = "7", more: str = "") -> tuple[int, list[Any]]:
    objects = [{"metadata": {"name": f"p{i}", "resourceVersion": str(i)}} for i in items]
    return 200, [{"items": objects, "metadata": {"resourceVersion": version, "continue": more}}]


def _stream(items: list[int], version: str = "7") -> tuple[int, list[Any]]:
    """A list as a watch that begins with all there is."""
    end = {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}}
    bookmarks = [{"type": "BOOKMARK", "object": {"metadata": each}} for each in ({"resourceVersion": "1"}, end)]
    return 200, [*(_event("ADDED", each) for each in items), *bookmarks]


NO_STREAM = (422, [{"kind": "Status", "message": "sendInitialEvents is forbidden for watch"}])


def _event(kind: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": f"p{version}", "resourceVersion": str(version)}}}


def test_paths_quote_what_people_name() -> None:
    assert path(CORE_V1, "pods", "b", "a") == "/api/v1/namespaces/a/pods/b"
    assert path(CORE_V1, "namespaces", "a/../b") == "/api/v1/namespaces/a%2F..%2Fb"


def test_the_kubeconfig_token_is_sent_and_as_whom_one_asks(cluster: KubeClient, server: Any) -> None:
    server.answers = [(200, [{"kind": "Pod"}])] * 2
    assert cluster.get("/x") == cluster.acting_as("jo").get("/x") == {"kind": "Pod"}
    assert {each[1]["Authorization"] for each in server.seen} == {"Bearer secret"}
    assert [each[1].get("Impersonate-User") for each in server.seen] == [None, "jo"]


def test_an_error_carries_the_server_s_sentence_and_status(cluster: KubeClient, server: Any) -> None:
    server.answers = [(404, [{"kind": "Status", "message": 'pods "a" not found'}])]
    with pytest.raises(ClusterError, match='GET /x: pods "a" not found') as caught:
        cluster.get("/x")
    assert (caught.value.status, caught.value.reason) == (404, Reason.API_UNREACHABLE)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1,2]"], ids=["empty", "html", "no-object"])
def test_an_error_without_a_status_object_is_still_an_error(cluster: KubeClient, server: Any, body: bytes) -> None:
    server.answers = [(500, [body] if body else [])]
    with pytest.raises(ClusterError, match="HTTP 500"):
        cluster.get("/x")


def test_an_unreadable_answer_is_an_error(cluster: KubeClient, server: Any) -> None:
    server.answers = [(200, [b"not json"])]
    with pytest.raises(ClusterError, match="cannot be read"):
        cluster.get("/x")


def test_nobody_listening_is_an_error_without_a_status(tmp_path: Path, cluster: KubeClient, server: Any) -> None:
    server.server_close()
    server.shutdown()
    with pytest.raises(ClusterError, match="does not answer") as caught:
        cluster.get("/x", timeout=0.5)
    assert caught.value.status == 0


def test_a_missing_kubeconfig_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"kubeconfig in .*/absent: the file does not exist; give --kubeconfig"):
        KubeClient.connect(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    "content", [b"a: [", b"just words", b"clusters: 3", b"\xff\xfe", b"[]", b"contexts: {a: 1}", b"5"]
)
def test_a_file_that_is_no_kubeconfig_is_a_sentence_with_its_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config"
    file.write_bytes(content)
    with pytest.raises(ClusterError, match=r"kubeconfig in .*/config: .*; give --kubeconfig") as error:
        KubeClient.connect(str(file))
    assert "\n" not in error.value.message
    assert "'int' object" not in error.value.message


def test_lists_are_streamed_object_by_object(cluster: KubeClient, server: Any) -> None:
    status, (*first, end) = _stream([1, 2, 3], version="9")
    server.answers = [(status, [*first, _event("DELETED", 1), end])]
    listing = cluster.listing("/pods", labelSelector="a=b")
    assert server.seen == []
    assert [item["metadata"]["name"] for item in listing] == ["p1", "p2", "p3"]
    assert (listing.version, listing.outdated) == ("9", True)
    (query,) = [parse_qs(urlsplit(where).query) for where, _ in server.seen]
    assert (query["labelSelector"], query["sendInitialEvents"], query["watch"]) == (["a=b"], ["true"], ["true"])


@pytest.mark.parametrize("status", [400, 403, 405, 422])
def test_where_lists_are_not_streamed_they_are_read_in_small_pages(
    cluster: KubeClient, server: Any, status: int
) -> None:
    server.answers = [(status, [{"message": "no"}]), _page([1, 2], more="next"), _page([], more="on"), _page([3])]
    listing = cluster.listing("/pods", labelSelector="a=b")
    assert [item["metadata"]["name"] for item in listing] == ["p1", "p2", "p3"]
    assert listing.version == "7"
    queries = [parse_qs(urlsplit(where).query) for where, _ in server.seen[1:]]
    assert [each["limit"] for each in queries] == [[str(road.PAGE)]] * 3
    assert [each.get("continue") for each in queries] == [None, ["next"], ["on"]]


@pytest.mark.parametrize("status", [401, 404, 429, 500])
def test_what_another_error_says_is_reported(cluster: KubeClient, server: Any, status: int) -> None:
    server.answers = [(status, [{"message": "no"}])]
    with pytest.raises(ClusterError, match="no") as error:
        list(cluster.listing("/pods"))
    assert error.value.status == status
    assert len(server.seen) == 1


def test_a_list_that_fits_into_memory_is_of_one_moment(cluster: KubeClient, server: Any) -> None:
    """A stream of a list goes on with what changes meanwhile: it may show an object twice, or one that is deleted."""
    server.answers = [_page([1, 2], more="next"), _page([3])]
    items, version = cluster.list("/pods")
    assert ([item["metadata"]["name"] for item in items], version) == (["p1", "p2", "p3"], "7")
    queries = [parse_qs(urlsplit(where).query) for where, _ in server.seen]
    assert [(each.get("continue"), each.get("watch")) for each in queries] == [(None, None), (["next"], None)]


@pytest.mark.parametrize("ends", [[], [BROKEN]])
def test_a_stream_that_ends_before_all_was_seen_is_no_list(cluster: KubeClient, server: Any, ends: list[Any]) -> None:
    server.answers = [(200, [_event("ADDED", 1), *ends])]
    with pytest.raises(ClusterError):
        list(cluster.listing("/pods"))


@pytest.mark.parametrize("version", ["", "7"])
def test_an_empty_list_ends(cluster: KubeClient, server: Any, version: str) -> None:
    server.answers = [_stream([], version=version)]
    listing = cluster.listing("/pods")
    assert ([*listing], listing.version) == ([], version)


def test_a_large_event_in_many_pieces_is_put_together_once(cluster: KubeClient, server: Any) -> None:
    event = _event("ADDED", 8)
    event["object"]["spec"] = "x" * 500_000
    text = json.dumps(event).encode() + b"\n"
    pieces = [text[at : at + 100] for at in range(0, len(text), 100)]
    server.answers = [(200, pieces)]
    assert next(cluster.watch("/pods", "7")) == ("ADDED", event["object"])


def test_a_follower_watches_from_the_end_of_a_list_that_nobody_read(cluster: KubeClient, server: Any) -> None:
    server.answers = [_stream([1, 2], version="9"), (200, [_event("ADDED", 10)])]
    events: list[str] = []
    follower = Informer(cluster, "/pods", lambda _: None, lambda kind, _: events.append(kind), lambda _: None)
    follower.run(stopped=lambda: bool(events))

    assert parse_qs(urlsplit(server.seen[1][0]).query)["resourceVersion"] == ["9"]


def test_a_watch_yields_events_however_the_bytes_are_cut(cluster: KubeClient, server: Any) -> None:
    text = json.dumps(_event("ADDED", 8)).encode() + b"\n" + json.dumps(_event("DELETED", 9)).encode() + b"\n"
    server.answers = [(200, [text[:5], text[5:90], text[90:]])]
    assert [kind for kind, _ in cluster.watch("/pods", "7")] == ["ADDED", "DELETED"]


@pytest.mark.parametrize("line", [b"garbage\n", b'{"a": 1}\n', b"[]\n"])
def test_a_garbled_watch_is_an_error_and_not_a_crash(cluster: KubeClient, server: Any, line: bytes) -> None:
    server.answers = [(200, [line])]
    with pytest.raises(ClusterError):
        list(cluster.watch("/pods", "7"))


def test_a_watch_that_falls_silent_is_given_up(
    cluster: KubeClient, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(road, "WATCH_SILENCE", patient(2.0))
    forgotten = threading.Event()
    server.answers = [(200, [_event("ADDED", 8), forgotten])]
    watch = cluster.watch("/pods", "7")
    try:
        assert next(watch)[1]["metadata"]["name"] == "p8"
        with pytest.raises(ClusterError, match=r"connection broke|connection ended"):
            next(watch)
    finally:
        forgotten.set()


def test_the_end_of_a_log_is_read_within_a_bound(cluster: KubeClient, server: Any) -> None:
    server.answers = [(200, [b"one\ntw", b"o\nthree\n"]), (200, [b"one\n"]), (200, [b"one\n", BROKEN])]
    assert cluster.log("p", "n", "c", lines=20, limit=8) == b"one\ntwo\n"
    asked = urlsplit(server.seen[0][0])
    assert asked.path == "/api/v1/namespaces/n/pods/p/log"
    assert parse_qs(asked.query) == {"container": ["c"], "tailLines": ["20"], "limitBytes": ["8"]}
    assert cluster.log("p", "n", "c", lines=20, limit=8, previous=True) == b"one\n"
    assert parse_qs(urlsplit(server.seen[1][0]).query)["previous"] == ["true"]
    with pytest.raises(ClusterError, match="/log broke off"):
        cluster.log("p", "n", "c", lines=20, limit=8)


def test_a_follower_lists_again_when_its_version_is_too_old(cluster: KubeClient, server: Any) -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
    server.answers = [
        _stream([1]),
        (200, [_event("ADDED", 8), gone]),
        _stream([1, 8, 9], version="9"),
        (200, [_event("MODIFIED", 10)]),
    ]
    lists: list[int] = []
    events: list[str] = []
    errors: list[ClusterError] = []
    follower = Informer(
        cluster,
        "/pods",
        lambda items: lists.append(len(list(items))),
        lambda kind, item: events.append(kind + item["metadata"]["resourceVersion"]),
        errors.append,
    )
    follower.run(stopped=lambda: "MODIFIED10" in events)
    assert lists == [1, 3]
    assert events == ["ADDED8", "MODIFIED10"]
    assert [error.status for error in errors] == [410]


@pytest.mark.parametrize(
    "answer",
    [
        (200, [[]]), (200, [{}]), (200, [None]), (200, [b"<html>"]), (200, [{"items": [], "metadata": {}}]),
        (200, [{"metadata": {"resourceVersion": "1"}}]), (200, [b"[" * 100_000]), (200, [b"\xff"]), (429, [[]]),
        (200, [{"items": [5], "metadata": {"resourceVersion": "1"}}]),
    ],
    ids=["array", "empty", "null", "html", "no version", "no items", "deep", "no text", "too many", "item"],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_a_failure_and_not_the_end(
    cluster: KubeClient, server: Any, answer: tuple[int, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Informer, "MIN_DELAY", 0.01)
    server.answers = [answer, _stream([1]), (200, [{"type": "ADDED"}]), _stream([1]), (200, [_event("ADDED", 2)])]
    events: list[str] = []
    errors: list[ClusterError] = []

    def on_list(items: Iterator[dict[str, Any]]) -> None:
        events.extend(item["metadata"]["name"] for item in items)

    follower = Informer(cluster, "/pods", on_list, lambda kind, _: events.append(kind), errors.append)
    follower.run(stopped=lambda: "ADDED" in events)
    assert events == ["p1", "p1", "ADDED"]
    assert len(errors) == 2


def test_an_answer_that_comes_in_drops_is_not_waited_for_for_ever(
    cluster: KubeClient, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(road, "BODY_SECONDS", 0.0)
    server.answers = [(200, [b" " * 1000, {"items": []}])]
    with pytest.raises(ClusterError, match="did not end within"):
        cluster.get("/pods")


def test_an_event_without_an_end_is_not_kept(cluster: KubeClient, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(road, "MAX_LINE", 1000)
    server.answers = [(200, [b"x" * 1001, b"\n"])]
    with pytest.raises(ClusterError, match="more than 1000 bytes"):
        list(cluster.watch("/pods", "1"))


def test_bookmarks_move_the_version_and_nothing_else(cluster: KubeClient, server: Any) -> None:
    server.answers = [_stream([1]), (200, [_event("BOOKMARK", 50)]), (200, [_event("ADDED", 51)])]
    events: list[str] = []
    follower = Informer(cluster, "/pods", lambda _: None, lambda kind, _: events.append(kind), lambda _: None)
    follower.run(stopped=lambda: bool(events))
    assert events == ["ADDED"]
    assert parse_qs(urlsplit(server.seen[2][0]).query)["resourceVersion"] == ["50"]


def test_a_list_is_read_again_where_something_was_deleted_meanwhile(
    cluster: KubeClient, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Informer, "MIN_DELAY", 0.01)
    status, (*first, end) = _stream([1, 2])
    server.answers = [(status, [*first, _event("DELETED", 1), end]), _stream([2]), (200, [_event("MODIFIED", 8)])]
    lists: list[int] = []
    events: list[str] = []
    count, note = lambda items: lists.append(len(list(items))), lambda kind, _: events.append(kind)
    Informer(cluster, "/pods", count, note, lambda _: None).run(stopped=lambda: bool(events))
    assert lists == [1]


class Resuming(Informer):
    RESUMES = True
    MIN_DELAY = 0.01


def _broken(server: Any, kind: type[Informer], cluster: KubeClient, *first: Any) -> tuple[list[str], list[str]]:
    """A watch breaks off after what came first; returns what was asked for up to the next event, and what was seen."""
    server.answers = [
        _stream([1]),
        (200, [*first, BROKEN]),
        _stream([1], version="30"),
        (200, [_event("MODIFIED", 31)]),
    ]
    if kind.RESUMES and first:
        del server.answers[2]
    seen: list[str] = []
    follower = kind(cluster, "/pods", lambda _: None, lambda change, _: seen.append(change), lambda _: None)
    follower.run(stopped=lambda: "MODIFIED" in seen)
    asked = [parse_qs(urlsplit(where).query) for where, _ in server.seen]
    return [query.get("resourceVersion", ["list"])[0] for query in asked], seen


def test_a_watch_that_broke_off_is_taken_up_where_it_was(cluster: KubeClient, server: Any) -> None:
    assert _broken(server, Resuming, cluster, _event("ADDED", 8)) == (["list", "7", "8"], ["ADDED", "MODIFIED"])


def test_a_bookmark_is_somewhere_too(cluster: KubeClient, server: Any) -> None:
    assert _broken(server, Resuming, cluster, _event("BOOKMARK", 9)) == (["list", "7", "9"], ["MODIFIED"])


def test_one_that_got_nowhere_begins_with_a_list(cluster: KubeClient, server: Any) -> None:
    assert _broken(server, Resuming, cluster) == (["list", "7", "list", "30"], ["MODIFIED"])


def test_where_lists_are_short_each_begins_with_one(
    cluster: KubeClient, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Informer, "MIN_DELAY", 0.01)
    asked, seen = _broken(server, Informer, cluster, _event("ADDED", 8))

    assert (asked, seen) == (["list", "7", "list", "30"], ["ADDED", "MODIFIED"])
