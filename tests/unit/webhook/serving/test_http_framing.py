"""Finding the end of a request in bytes that arrive in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.serving.http_framing import MAX_BODY, MAX_HEAD, RequestFramer

HEAD = b"POST /mutate HTTP/1.1\r\nHost: a\r\n"


def with_length(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(pieces: list[bytes], trailer: bytes = b"") -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces if piece)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"0\r\n" + trailer + b"\r\n"


def ends(data: bytes, cuts: list[int]) -> list[int | None]:
    """What a frame says after each piece."""
    frame, buffer, said = RequestFramer(), bytearray(), []
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        buffer += data[start:stop]
        said.append(frame.end(buffer))
        assert frame.complete
    return said


REQUESTS = st.one_of(
    st.binary(max_size=60).map(with_length),
    st.tuples(st.lists(st.binary(max_size=20), max_size=4), st.sampled_from([b"", b"A: b\r\n"])).map(
        lambda t: chunked(*t)
    ),
)


@given(REQUESTS, st.data())
def test_ends_exactly_when_all_is_there(request: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(1, len(request) - 1), max_size=6)))

    *early, last = ends(request, cuts)

    assert last == len(request)
    assert set(early) <= {None}


@given(REQUESTS, st.binary(min_size=1, max_size=30))
def test_leaves_what_follows(request: bytes, following: bytes) -> None:
    assert RequestFramer().end(bytearray(request + following)) == len(request)


def test_a_request_without_a_body_ends_with_its_head() -> None:
    assert RequestFramer().end(bytearray(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")) == 27


def test_a_body_of_the_limit_is_waited_for() -> None:
    frame = RequestFramer()
    assert frame.end(bytearray(HEAD + b"Content-Length: %d\r\n\r\n" % MAX_BODY)) is None


@pytest.mark.parametrize(
    "begin",
    [
        HEAD + b"Content-Length: %d\r\n\r\n" % (MAX_BODY + 1),
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}X0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFF\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"x" * 2000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_001,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"x" * (MAX_HEAD + 1),
        HEAD + b"X: " + b"x" * MAX_HEAD,
    ],
)
def test_what_is_too_long_is_answered_as_it_stands(begin: bytes) -> None:
    frame = RequestFramer()

    assert frame.end(bytearray(begin)) == len(begin)
    assert not frame.complete


def test_says_that_the_client_waits_for_a_go_ahead() -> None:
    frame = RequestFramer()
    frame.end(bytearray(HEAD + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n"))

    assert frame.expects
