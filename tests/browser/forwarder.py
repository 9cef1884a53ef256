"""What may stand between a browser and the server: a network that is cut, a proxy with a prefix."""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from app_server import HERE


class Forwarder:
    """Forwards connections to the server; with a prefix only requests below it, and without it.

    Attributes
    ----------
    port : where it listens, at every address of this machine
    """

    def __init__(self, to_port: int, prefix: str = "") -> None:
        self.port, self._to, self._cut = 0, to_port, False
        self._prefix = prefix.encode()
        self._cuts_next = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        listening = asyncio.start_server(self._forward, "0.0.0.0")
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break all connections, and take no new one until it is joined."""
        self._cut = True
        self._loop.call_soon_threadsafe(self._abort)

    def cut_next_answer(self) -> None:
        """Cut as soon as the server says something, which is lost."""
        self._cuts_next = True

    def join(self) -> None:
        self._cut = False

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._server.close)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _forward(self, near: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        far, other = await asyncio.open_connection(HERE, self._to)
        both = {writer, other}
        self._writers |= both
        await asyncio.gather(self._ask(near, other, writer), self._pipe(far, writer))
        self._writers -= both

    async def _ask(
        self, source: asyncio.StreamReader, to: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await source.read(2**16):
                if asked := re.match(rb"[A-Z]+ (\S+) HTTP/", data):
                    if not asked[1].startswith(self._prefix + b"/"):
                        back.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                        continue
                    data = data.replace(self._prefix, b"", 1)
                to.write(data)
                await to.drain()
        to.close()

    async def _pipe(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(2**16):
                if self._cuts_next:
                    self._cuts_next = False
                    self.cut()
                    return
                to.write(data)
                await to.drain()
        to.close()


@contextmanager
def forwarding(to_port: int, prefix: str = "") -> Iterator[Forwarder]:
    forwarder = Forwarder(to_port, prefix)
    try:
        yield forwarder
    finally:
        forwarder.close()
