"""Reading requests from bytes that arrive in pieces."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.serving.http_request import CHUNK_OVERHEAD, MAX_BODY, MAX_HEAD, RequestReader

HEAD = b"POST /mutate HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def with_length(body: bytes) -> tuple[bytes, bytes]:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, body


def chunked(pieces: list[bytes], trailer: bytes = b"") -> tuple[bytes, bytes]:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
    return CHUNKED + body + b"0\r\n" + trailer + b"\r\n", b"".join(pieces)


REQUESTS = st.one_of(
    st.binary(max_size=60).map(with_length),
    st.tuples(st.lists(st.binary(max_size=20), max_size=4), st.sampled_from([b"", b"Expect: x\r\n"])).map(
        lambda each: chunked(*each)
    ),
)


def read(data: bytes, cuts: list[int]) -> RequestReader:
    reader = RequestReader()
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        reader.feed(data[start:stop])
    return reader


@given(st.lists(REQUESTS, min_size=1, max_size=3), st.data())
def test_requests_are_the_same_in_whatever_pieces_they_come(requests: list[tuple[bytes, bytes]], data: Any) -> None:
    sent = b"".join(raw for raw, _ in requests)
    cuts = sorted(data.draw(st.lists(st.integers(1, len(sent) - 1), max_size=6)))

    reader = read(sent, cuts)

    assert [bytes(each.body) for each in reader.requests] == [body for _, body in requests]
    assert all(each.keep_alive and len(each.headers) == 2 for each in reader.requests)
    assert (reader.refusal, reader.size) == ("", 0)


@given(REQUESTS, st.integers(1, 10_000))
def test_nothing_is_handed_on_before_its_end(request: tuple[bytes, bytes], cut: int) -> None:
    raw = request[0]
    reader = read(raw[: 1 + cut % (len(raw) - 1)], [])

    assert not reader.requests
    assert reader.size > 0


@given(st.binary(max_size=300), st.sampled_from([b"", HEAD, CHUNKED]))
def test_any_bytes_are_read_or_refused(data: bytes, start: bytes) -> None:
    reader = read(start + data, [])

    assert reader.refusal[:3] in {"", "400", "417"}


@pytest.mark.parametrize(
    "begin",
    [
        HEAD + b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1),
        CHUNKED + b"%x\r\n" % (MAX_BODY + 9) + b"x" * (MAX_BODY + 1),
    ],
    ids=["length", "chunk"],
)
def test_what_is_too_large_is_answered_as_it_stands(begin: bytes) -> None:
    reader = read(begin, [])
    [request] = reader.requests

    assert not request.keep_alive
    assert reader.size > 0, "what still comes is thrown away"


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (CHUNKED + b"2\r\n{}X0\r\n\r\n", "400"),
        (CHUNKED + (b"1;" + b"x" * 4000 + b"\r\nx\r\n") * (CHUNK_OVERHEAD // 400), "400"),
        (HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", "400"),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "400"),
        (HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n", "400"),
        (HEAD.replace(b"\r", b"") + b"\n", "400"),
        (HEAD + b" folded: x\r\n\r\n", "400"),
        (HEAD + b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 5\r\n\r\n", "400"),
        (HEAD + b"X: " + b"x" * MAX_HEAD, "431"),
        (HEAD + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", "417"),
    ],
    ids=range(10),
)
def test_what_cannot_be_followed_is_refused(begin: bytes, status: str) -> None:
    reader = read(begin, [])

    assert not reader.requests
    assert reader.refusal.startswith(status)
