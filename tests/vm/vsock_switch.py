"""Connects virtual machines by vsock: each with the host, by a Unix socket that speaks CONNECT as Firecracker's does, and with each other.

A guest that dials another known CID is switched to it packet by packet, credit included; what a guest dials on the host (CID 2) is refused.
Source: virtio 1.1, section 5.10 (socket device); Firecracker's docs/vsock.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from tests.vm.vhost_user import VsockDevice

HOST_CID = 2
# From, to, their ports, length, type, operation, flags, credit: buffer size and what was taken of it.
_HEADER = struct.Struct("<QQIIIHHIII")
_STREAM = 1
_RECEIVES_NO_MORE, _SENDS_NO_MORE = 1, 2
# What a guest may have sent that its peer here has not taken yet.
CREDIT_BYTES = 256 * 1024
ANSWER_LIMIT_SECONDS = 10.0


class Operation(IntEnum):
    """What a packet says."""

    REQUEST = 1
    RESPONSE = 2
    RESET = 3
    SHUTDOWN = 4
    DATA = 5
    CREDIT_UPDATE = 6
    CREDIT_REQUEST = 7


@dataclass(frozen=True, slots=True)
class Packet:
    """A vsock packet of stream type."""

    source: int
    destination: int
    source_port: int
    destination_port: int
    operation: int
    flags: int = 0
    credit: int = CREDIT_BYTES
    taken: int = 0
    data: bytes = b""

    @classmethod
    def read(cls, packet: bytes) -> Packet:
        source, destination, source_port, destination_port, length, _, operation, flags, credit, taken = _HEADER.unpack_from(
            packet
        )
        data = packet[_HEADER.size : _HEADER.size + length]
        return cls(source, destination, source_port, destination_port, operation, flags, credit, taken, data)

    def header(self, length: int) -> bytes:
        ports = self.source_port, self.destination_port
        rest = length, _STREAM, self.operation, self.flags, self.credit, self.taken & 0xFFFFFFFF
        return _HEADER.pack(self.source, self.destination, *ports, *rest)

    def refusal(self) -> Packet:
        return Packet(self.destination, self.source, self.destination_port, self.source_port, Operation.RESET, credit=0)


@dataclass(slots=True)
class _Connection:
    """One that a program of the host opened."""

    host_port: int
    guest_port: int
    answered: asyncio.Future[bool]
    arrived: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    more_credit: asyncio.Event = field(default_factory=asyncio.Event)
    credit: int = 0
    taken_there: int = 0
    sent: int = 0
    taken_here: int = 0
    over: bool = False

    @property
    def may_send(self) -> int:
        return self.credit - ((self.sent - self.taken_there) & 0xFFFFFFFF)

    def end(self) -> None:
        self.over = True
        self.more_credit.set()
        self.arrived.put_nowait(b"")
        if not self.answered.done():
            self.answered.set_result(False)


class _Guest:
    """One machine's vsock, seen from the host."""

    def __init__(self, switch: VsockSwitch, cid: int) -> None:
        self._switch = switch
        self.cid = cid
        self.device: VsockDevice | None = None
        self._connections: dict[tuple[int, int], _Connection] = {}
        self._ports = itertools.count(1 << 30)

    async def wait_for_qemu(self, listener: socket.socket) -> None:
        """Take QEMU's connection, and let go of it when this is cancelled."""
        qemu, _ = await asyncio.get_running_loop().sock_accept(listener)
        self.device = VsockDevice(qemu, self.cid, self.on_packet)
        try:
            await asyncio.Event().wait()
        finally:
            self.device.close()
            self.device = None

    def deliver(self, packet: Packet) -> None:
        """Put `packet` into the guest, in parts that its buffers can take."""
        if self.device is None:
            return
        size = self.device.room()
        for start in range(0, max(len(packet.data), 1), size):
            part = packet.data[start : start + size]
            self.device.send(packet.header(len(part)), part)

    def on_packet(self, data: bytes) -> None:
        """A packet came from the guest."""
        packet = Packet.read(data)
        if packet.source != self.cid:
            return
        if packet.destination != HOST_CID:
            self._switch.forward(packet, self)
            return
        connection = self._connections.get((packet.destination_port, packet.source_port))
        if connection is None:
            if packet.operation != Operation.RESET:
                self.deliver(packet.refusal())
            return
        connection.credit, connection.taken_there = packet.credit, packet.taken
        connection.more_credit.set()
        self._act(connection, packet)

    def _act(self, connection: _Connection, packet: Packet) -> None:
        match packet.operation:
            case Operation.RESPONSE if not connection.answered.done():
                connection.answered.set_result(True)
            case Operation.DATA:
                connection.arrived.put_nowait(packet.data)
            case Operation.CREDIT_REQUEST:
                self._send(connection, Operation.CREDIT_UPDATE)
            case Operation.SHUTDOWN if packet.flags & _RECEIVES_NO_MORE and packet.flags & _SENDS_NO_MORE:
                self._forget(connection)
                self._send(connection, Operation.RESET)
            case Operation.SHUTDOWN if packet.flags & _SENDS_NO_MORE:
                connection.arrived.put_nowait(b"")
            case Operation.RESET:
                self._forget(connection)

    async def serve_host(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A program of the host that speaks CONNECT."""
        connection = None
        try:
            words = (await asyncio.wait_for(reader.readline(), ANSWER_LIMIT_SECONDS)).split()
            if len(words) == 2 and words[0] == b"CONNECT":
                connection = _Connection(next(self._ports), int(words[1]), asyncio.get_running_loop().create_future())
                self._connections[connection.host_port, connection.guest_port] = connection
                self._send(connection, Operation.REQUEST)
                if await asyncio.wait_for(connection.answered, ANSWER_LIMIT_SECONDS):
                    writer.write(b"OK %d\n" % connection.host_port)
                    await self._pass_on(connection, reader, writer)
        except (OSError, ValueError, asyncio.CancelledError):
            # Whichever side left, or the test is over: on Python 3.11 a cancelled callback of a server would print.
            pass
        finally:
            if connection and not connection.over:
                self._forget(connection)
                self._send(connection, Operation.RESET)
            writer.close()

    async def _pass_on(self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = asyncio.gather(self._to_guest(connection, reader), self._to_host(connection, writer))
        try:
            await both
        finally:
            both.cancel()
            await asyncio.gather(both, return_exceptions=True)

    async def _to_guest(self, connection: _Connection, reader: asyncio.StreamReader) -> None:
        while not connection.over and (data := await reader.read(16 * 1024)):
            while data and not connection.over:
                part = data[: max(connection.may_send, 0)]
                if not part:
                    connection.more_credit.clear()
                    await connection.more_credit.wait()
                    continue
                connection.sent += len(part)
                self._send(connection, Operation.DATA, data=part)
                data = data[len(part) :]
        if not connection.over:
            self._send(connection, Operation.SHUTDOWN, flags=_SENDS_NO_MORE)

    async def _to_host(self, connection: _Connection, writer: asyncio.StreamWriter) -> None:
        while data := await connection.arrived.get():
            writer.write(data)
            await writer.drain()
            connection.taken_here += len(data)
            if not connection.over:
                self._send(connection, Operation.CREDIT_UPDATE)
        with contextlib.suppress(OSError):
            writer.write_eof()

    def _send(self, connection: _Connection, operation: int, *, flags: int = 0, data: bytes = b"") -> None:
        ports = connection.host_port, connection.guest_port
        self.deliver(Packet(HOST_CID, self.cid, *ports, operation, flags, taken=connection.taken_here, data=data))

    def _forget(self, connection: _Connection) -> None:
        self._connections.pop((connection.host_port, connection.guest_port), None)
        connection.end()


class VsockSwitch:
    """The vsocks of machines with the CIDs `cids`, in a folder with a short path."""

    def __init__(self, folder: Path, cids: Sequence[int]) -> None:
        self._folder = folder
        self._guests = {cid: _Guest(self, cid) for cid in cids}

    def socket_of(self, cid: int) -> Path:
        """Where the host connects and says CONNECT."""
        return self._folder / f"{cid}.sock"

    def devices(self, cid: int) -> list[str]:
        """QEMU's arguments for the machine with `cid`; its memory must be shared."""
        return [
            *("-chardev", f"socket,id=vsock,path={self._folder / f'{cid}.vhost'}"),
            *("-device", "vhost-user-vsock-pci,chardev=vsock"),
        ]

    def forward(self, packet: Packet, sender: _Guest) -> None:
        """Take a packet to another guest, or refuse it."""
        receiver = self._guests.get(packet.destination)
        if receiver:
            receiver.deliver(packet)
        elif packet.operation != Operation.RESET:
            sender.deliver(packet.refusal())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[VsockSwitch]:
        """Wait for QEMUs and for programs of the host."""
        async with contextlib.AsyncExitStack() as ending:
            for guest in self._guests.values():
                await self._listen(guest, ending)
            yield self

    async def _listen(self, guest: _Guest, ending: contextlib.AsyncExitStack) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        ending.enter_context(listener)
        listener.bind(str(self._folder / f"{guest.cid}.vhost"))
        listener.listen(1)
        waiting = asyncio.create_task(guest.wait_for_qemu(listener))
        ending.push_async_callback(_ended, waiting)
        server = await asyncio.start_unix_server(guest.serve_host, self.socket_of(guest.cid))
        ending.callback(server.close)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
