"""The gate: nothing passes while it is shut; afterwards connections go on, or are lost without a word."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.load.scale.gate import Gate


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that says what it hears."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(100):
                    connection.sendall(data)

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def connect(gate: Gate) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gate.port), timeout=10)


def passes(connection: socket.socket, seconds: float = 10) -> bool:
    connection.settimeout(seconds)
    try:
        connection.sendall(b"?")
        return connection.recv(1) == b"?"
    except TimeoutError:
        return False


def test_what_is_open_passes_and_what_is_shut_does_not(echo: int) -> None:
    with Gate(echo) as gate, closing(connect(gate)) as old:
        assert passes(old)
        gate.shut()
        with closing(connect(gate)) as fresh:
            assert not passes(old, 0.3)
            assert not passes(fresh, 0.3)
            gate.open(lost=False)
            old.settimeout(10)
            assert (old.recv(1), fresh.recv(1)) == (b"?", b"?"), "what was sent meanwhile arrives"
            assert passes(old)


def test_lost_connections_stay_silent_and_new_ones_pass(echo: int) -> None:
    with Gate(echo) as gate, closing(connect(gate)) as old:
        assert passes(old)
        gate.shut()
        gate.open(lost=True)
        with closing(connect(gate)) as fresh:
            assert passes(fresh)
        old.settimeout(0.3)
        old.sendall(b"?")
        with pytest.raises(TimeoutError):  # not even its end
            old.recv(1)


def test_a_server_that_is_away_ends_the_connection(echo: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Gate(port) as gate, closing(connect(gate)) as connection:
        assert connection.recv(1) == b""
