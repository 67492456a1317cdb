"""Stands for the Service in front of the webhook's replicas: one address, connections handed out in turn.

An API server without a network to pods needs a URL, and a webhook configuration has one. A replica that refuses the
connection is passed over, as a Service does with an endpoint that is not ready; when all refuse, the connection ends.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress


class Balancer:
    """Forwards bytes between a listening port and one of several backends (loopback ports)."""

    def __init__(self, backends: Sequence[int]) -> None:
        self._backends = list(backends)
        self._next = 0

    async def serve(self, port: int) -> None:
        """Listen until cancelled."""
        server = await asyncio.start_server(self._handle, "127.0.0.1", port)
        async with server:
            await server.serve_forever()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        backend = await self._connect()
        if backend is None:
            writer.close()
            return
        await asyncio.gather(_pump(reader, backend[1]), _pump(backend[0], writer))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in self._backends:
            port = self._backends[self._next % len(self._backends)]
            self._next += 1
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


def main(argv: Sequence[str]) -> int:
    """Run until ended: ``balancer PORT BACKEND...``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("backends", type=int, nargs="+")
    asked = parser.parse_args(argv)
    asyncio.run(Balancer(asked.backends).serve(asked.port))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
