"""Where one HTTP/1.1 request ends in the bytes that have come so far; gunicorn parses the content. Pure."""

from typing import Final

from gpushare.patterns import Pattern, Search

MAX_BODY: Final = 7 * 1024 * 1024
"""An UPDATE carries two objects of at most 3 MB (etcd's limit is 1.5 MiB, a request's 3) and less than 1 MB around."""
MAX_HEAD: Final = 64 * 1024
CHUNK_OVERHEAD: Final = 1024 * 1024
MAX_CHUNKS: Final = 20_000
"""The API server sends no chunks at all; what sends them a few bytes each means no good."""
MAX_SIZE_LINE: Final = 1024

_LENGTH: Final = Search(rb"(?i)\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*\r\n", MAX_HEAD)
_CHUNKED: Final = Search(rb"(?i)\r\ntransfer-encoding:[^\r\n]*chunked", MAX_HEAD)
_EXPECT: Final = Search(rb"(?i)\r\nexpect:", MAX_HEAD)
_SIZE: Final = Pattern(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\r\n", MAX_SIZE_LINE)
_BLANK: Final = b"\r\n\r\n"


class RequestFramer:
    """Finds the end of one request in a buffer that only grows. A new request needs a new frame."""

    __slots__ = ("_at", "_body", "_chunks", "_end", "_from", "complete", "expects")

    def __init__(self) -> None:
        self._from = 0
        self._body = -1
        self._end: int | None = None
        self._at = -1
        self._chunks = 0
        self.complete = True
        """Whether the end that was found is the request's own, so that another may follow it."""
        self.expects = False
        """Whether the client waits for ``100 Continue`` before it sends the body."""

    @property
    def headless(self) -> bool:
        """Whether not even the head has ended."""
        return self._body < 0

    def end(self, buffer: bytearray) -> int | None:
        """The offset just past the request; ``None`` until all of it is there.

        What is too long or cannot be followed ends with the bytes that are there, and is not ``complete``: it is
        answered with an error as it stands, before more of it is read.
        """
        if self.headless and not self._head(buffer):
            return self._cut(buffer) if len(buffer) > MAX_HEAD else None
        if self._at >= 0:
            return self._chunk(buffer)
        end = self._end or 0
        if end - self._body > MAX_BODY:
            return self._cut(buffer)
        return end if len(buffer) >= end else None

    def _head(self, buffer: bytearray) -> bool:
        found = buffer.find(_BLANK, self._from, MAX_HEAD)
        if found < 0:
            self._from = max(0, len(buffer) - len(_BLANK) + 1)
            return False
        self._body = found + len(_BLANK)
        head = bytes(buffer[: self._body])
        self.expects = _EXPECT.search(head) is not None
        if _CHUNKED.search(head):
            self._at = self._body
        length = _LENGTH.search(head)
        self._end = self._body + (int(length[1]) if length else 0)
        return True

    def _chunk(self, buffer: bytearray) -> int | None:
        """Walk from chunk to chunk as far as they have come."""
        while self._at < len(buffer):
            line = _SIZE.match(bytes(buffer[self._at : self._at + MAX_SIZE_LINE]))
            if line is None:
                wrong = buffer.find(b"\r\n", self._at) >= 0 or len(buffer) - self._at > MAX_SIZE_LINE
                return self._cut(buffer) if wrong else None
            size = int(line[1], 16)
            if size == 0:
                return self._trailer(buffer, self._at + line.end())
            self._at += line.end() + size + 2
            self._chunks += 1
            if self._at - self._body > MAX_BODY + CHUNK_OVERHEAD or self._chunks > MAX_CHUNKS:
                return self._cut(buffer)
        return None

    def _trailer(self, buffer: bytearray, line_end: int) -> int | None:
        found = buffer.find(_BLANK, line_end - 2)
        if found >= 0:
            return found + len(_BLANK)
        return self._cut(buffer) if len(buffer) - line_end > MAX_HEAD else None

    def _cut(self, buffer: bytearray) -> int:
        self.complete = False
        return len(buffer)
