"""Connected Unix sockets for the relay's tests, and how they are read to their end."""

from __future__ import annotations

import asyncio
import socket

PATIENCE_SECONDS = 20


def pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    return one, other


async def read_all(connection: socket.socket) -> bytes:
    data = bytearray()
    while piece := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(connection, 65536), PATIENCE_SECONDS):
        data += piece
    return bytes(data)
