"""A VMM's hybrid vsock socket that behaves, well or badly, as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from guest_transport.relay.relay import pump
from tests.eventually import eventually

# What a VMM does with a connection whose CONNECT line it has read.
Behaviour = Callable[[socket.socket, bytes], Awaitable[None]]


class Vmm:
    """Listens at `path`; keeps what the host sent first on each connection, up to the end of the line or of the connection."""

    def __init__(self, path: Path, behaviour: Behaviour, backlog: int = 16) -> None:
        self.path = path
        self.lines: list[bytes] = []
        self._behaviour = behaviour
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._listener.bind(str(path))
        self._listener.listen(backlog)

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    async def close(self) -> None:
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def seen(self, count: int) -> None:
        """Returns when `count` connections have said their line or ended."""
        await eventually(lambda: len(self.lines) >= count)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            task = asyncio.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(lambda _: connection.close())

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        loop, line = asyncio.get_running_loop(), b""
        while not line.endswith(b"\n") and (byte := await loop.sock_recv(connection, 1)):
            line += byte
        self.lines.append(line)
        with contextlib.suppress(ConnectionError):
            await self._behaviour(connection, line)


@contextlib.asynccontextmanager
async def vmm(path: Path, behaviour: Behaviour) -> AsyncIterator[Vmm]:
    """A VMM that has accepted from the first moment."""
    running = Vmm(path, behaviour)
    running.start()
    try:
        yield running
    finally:
        await running.close()


def says(*pieces: bytes, then_close: bool = False) -> Behaviour:
    """Answers with each of `pieces` in a write of its own, each taken before the next is sent; then stays or closes."""

    async def behave(connection: socket.socket, _line: bytes) -> None:
        for piece in pieces:
            await asyncio.get_running_loop().sock_sendall(connection, piece)
            # So that the reader gets this piece alone: nothing tells a sender that it was read.
            await asyncio.sleep(0.002)
        if not then_close:
            await asyncio.Event().wait()

    return behave


async def trickles(connection: socket.socket, _line: bytes) -> None:
    """Sends digits without an end, one at a time."""
    while True:
        await asyncio.get_running_loop().sock_sendall(connection, b"7")
        # A peer that is slow in real time is what this is.
        await asyncio.sleep(0.005)


def guest_at(path: Path) -> Behaviour:
    """Says OK and joins the connection to the Unix socket at `path`, as the VMM joins it to the guest's port."""

    async def behave(connection: socket.socket, _line: bytes) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as guest:
            await loop.sock_connect(guest, str(path))
            await loop.sock_sendall(connection, b"OK 1024\n")
            await pump(connection, guest)

    return behave


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """The first connection gets the first behaviour, and so on; the last one stays."""
    left = list(behaviours)

    async def behave(connection: socket.socket, line: bytes) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(connection, line)

    return behave
