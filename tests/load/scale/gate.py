"""A proxy on loopback between a webhook replica and the API server, through which nothing passes while it is shut.

Shut it is a network that drops packets: nobody is told, connections stay open and new ones are taken. Opened again,
connections either go on where they were, or, lost, never carry another byte, as after a firewall forgot them.
"""

import asyncio
import threading
from contextlib import closing, suppress
from typing import Final, Self

from tests.testbed.cluster.ports import free_ports

READ: Final = 65536
START_SECONDS: Final = 10.0


class Gate:
    """Listens on ``port`` of loopback, and forwards to ``target`` there. Safe to use from any thread."""

    def __init__(self, target: int) -> None:
        self.port: Final = free_ports(1)[0]
        self._target, self._loop = target, asyncio.new_event_loop()
        self._open: asyncio.Event = asyncio.Event()
        self._forgotten: list[asyncio.Event] = []
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._open.set()
        self._thread.start()
        assert self._listens.wait(START_SECONDS), "the gate does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def shut(self) -> None:
        """Let nothing pass from now on."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def open(self, *, lost: bool) -> None:
        """Let everything pass; with ``lost`` only on connections that are made from now on."""
        self._loop.call_soon_threadsafe(self._reopen, lost)

    def _reopen(self, lost: bool) -> None:  # noqa: FBT001 - the loop passes it by position
        if lost:
            self._forgotten.append(self._open)  # who waits for it waits for ever, as long as somebody knows it
            self._open = asyncio.Event()
        self._open.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", self.port))
        self._listens.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._end(server))
        self._loop.close()

    async def _end(self, server: asyncio.Server) -> None:
        server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # a closed connection is let go of in the loop's next turn

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = self._open
        with closing(writer), suppress(OSError, asyncio.CancelledError):
            await mine.wait()
            there = await asyncio.open_connection("127.0.0.1", self._target)
            with closing(there[1]):
                await asyncio.gather(self._pump(reader, there[1], mine), self._pump(there[0], writer, mine))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mine: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(READ):
                await mine.wait()
                writer.write(data)
                await writer.drain()
        await mine.wait()
        with suppress(OSError):
            writer.close()
