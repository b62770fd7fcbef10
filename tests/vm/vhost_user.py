"""The part of the vhost-user protocol that a virtio-vsock device needs, seen from outside QEMU: memory, rings, messages.

QEMU gives its guest's memory and eventfds to whoever listens at a Unix socket, so a vsock works without /dev/vhost-vsock and without
privilege. For tests only: it trusts the guest's rings. Sources: QEMU's docs/interop/vhost-user.rst; virtio 1.1, sections 2.6 (split
virtqueues) and 5.10 (socket device).
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum


class Request(IntEnum):
    """What QEMU says (docs/interop/vhost-user.rst, "Front-end message types")."""

    GET_FEATURES = 1
    SET_MEM_TABLE = 5
    SET_VRING_NUM = 8
    SET_VRING_ADDR = 9
    SET_VRING_BASE = 10
    GET_VRING_BASE = 11
    SET_VRING_KICK = 12
    SET_VRING_CALL = 13
    SET_VRING_ERR = 14
    GET_PROTOCOL_FEATURES = 15
    SET_VRING_ENABLE = 18
    GET_CONFIG = 24


FEATURES = 1 << 32 | 1 << 30  # VIRTIO_F_VERSION_1, VHOST_USER_F_PROTOCOL_FEATURES
PROTOCOL_FEATURES = 1 << 9  # CONFIG: the CID is in the device's configuration
NO_DESCRIPTOR = 0x100
VERSION_AND_REPLY = 0x5
_MESSAGE = struct.Struct("<III")
_DESCRIPTOR = struct.Struct("<QIHH")
_HAS_NEXT = 0x1
# Of the guest: what it receives, what it sends. QEMU keeps the third, for events, to itself.
RECEIVE, SEND = 0, 1

# A place in the guest's memory, as a mapping of ours and an offset in it.
Place = tuple[mmap.mmap, int]


@dataclass(slots=True)
class _Region:
    guest_address: int
    size: int
    qemu_address: int
    mapping: mmap.mmap
    offset: int


class GuestMemory:
    """The guest's memory, shared with QEMU."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def replace(self, table: bytes, descriptors: list[int]) -> None:
        """Map the regions of a SET_MEM_TABLE message."""
        (count,) = struct.unpack_from("<I", table)
        self._regions = []
        for number in range(count):
            guest, size, qemu, offset = struct.unpack_from("<QQQQ", table, 8 + 32 * number)
            descriptor = descriptors.pop(0)
            self._regions.append(_Region(guest, size, qemu, mmap.mmap(descriptor, size + offset), offset))
            os.close(descriptor)

    def at_guest_address(self, address: int) -> Place:
        for region in self._regions:
            if region.guest_address <= address < region.guest_address + region.size:
                return region.mapping, address - region.guest_address + region.offset
        raise ValueError(f"the guest has no memory at {address:#x}")

    def at_qemu_address(self, address: int) -> Place:
        for region in self._regions:
            if region.qemu_address <= address < region.qemu_address + region.size:
                return region.mapping, address - region.qemu_address + region.offset
        raise ValueError(f"QEMU has shared no memory at {address:#x}")


@dataclass(slots=True)
class Ring:
    """One split virtqueue; `next` counts what was taken from it."""

    size: int = 0
    next: int = 0
    descriptors: Place | None = None
    available: Place | None = None
    used: Place | None = None
    kick: int = -1
    call: int = -1
    enabled: bool = False

    def take(self, memory: GuestMemory) -> tuple[int, list[tuple[Place, int]]] | None:
        """The next chain that the guest made available: its head, and its buffers with their lengths."""
        if not (self.enabled and self.available and self.descriptors):
            return None
        mapping, start = self.available
        if struct.unpack_from("<H", mapping, start + 2)[0] == self.next:
            return None
        (head,) = struct.unpack_from("<H", mapping, start + 4 + 2 * (self.next % self.size))
        self.next = (self.next + 1) & 0xFFFF
        buffers, index, more = [], head, True
        while more:
            table, first = self.descriptors
            address, length, flags, following = _DESCRIPTOR.unpack_from(table, first + _DESCRIPTOR.size * index)
            buffers.append((memory.at_guest_address(address), length))
            index, more = following, bool(flags & _HAS_NEXT)
        return head, buffers

    def give_back(self, head: int, written: int) -> None:
        """The chain is done; `written` bytes were put into it."""
        assert self.used
        mapping, start = self.used
        (index,) = struct.unpack_from("<H", mapping, start + 2)
        struct.pack_into("<II", mapping, start + 4 + 8 * (index % self.size), head, written)
        struct.pack_into("<H", mapping, start + 2, (index + 1) & 0xFFFF)

    def interrupt(self) -> None:
        if self.call >= 0:
            os.eventfd_write(self.call, 1)


@dataclass(slots=True)
class _Unread:
    """What came from QEMU and is not taken yet."""

    data: bytes = b""
    descriptors: list[int] = field(default_factory=list)


class VsockDevice:
    """The device of one guest: packets out of it go to `on_packet`, send() puts packets into it."""

    def __init__(self, qemu: socket.socket, cid: int, on_packet: Callable[[bytes], None]) -> None:
        self._qemu = qemu
        self._cid = cid
        self._on_packet = on_packet
        self._memory = GuestMemory()
        self._rings = (Ring(), Ring())
        self._unread = _Unread()
        self._waiting: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        qemu.setblocking(False)
        self._loop.add_reader(qemu, self._on_readable)

    def close(self) -> None:
        """Let go of QEMU and of its guest's memory."""
        self._loop.remove_reader(self._qemu)
        self._qemu.close()
        for ring in self._rings:
            self._set_kick(ring, -1)
            if ring.call >= 0:
                os.close(ring.call)
                ring.call = -1
        self._memory = GuestMemory()

    def send(self, header: bytes, data: bytes = b"") -> None:
        """Put a packet into the guest's receiving ring, as soon as there is room."""
        self._waiting.append(header + data)
        self._fill()

    def room(self) -> int:
        """How much data a packet may have: Linux's receive buffers are one page."""
        return 4096

    def _fill(self) -> None:
        ring, filled = self._rings[RECEIVE], False
        while self._waiting and (chain := ring.take(self._memory)):
            head, buffers = chain
            packet, done = self._waiting.popleft(), 0
            for (mapping, offset), length in buffers:
                part = packet[done : done + length]
                mapping[offset : offset + len(part)] = part
                done += len(part)
            assert done == len(packet), "a packet is longer than the guest's buffer"
            ring.give_back(head, done)
            filled = True
        if filled:
            ring.interrupt()

    def _drain(self) -> None:
        ring, drained = self._rings[SEND], False
        while chain := ring.take(self._memory):
            head, buffers = chain
            packet = b"".join(mapping[offset : offset + length] for (mapping, offset), length in buffers)
            ring.give_back(head, 0)
            drained = True
            self._on_packet(packet)
        if drained:
            ring.interrupt()

    def _on_kick(self, index: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._rings[index].kick)
        self._serve(index)

    def _serve(self, index: int) -> None:
        if index == SEND:
            self._drain()
        else:
            self._fill()

    def _on_readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._qemu, 64 * 1024, 16)
        except (BlockingIOError, ConnectionResetError):
            return
        if not data:
            self._loop.remove_reader(self._qemu)
            return
        self._unread.data += data
        self._unread.descriptors += descriptors
        while len(self._unread.data) >= _MESSAGE.size:
            request, _, size = _MESSAGE.unpack_from(self._unread.data)
            end = _MESSAGE.size + size
            if len(self._unread.data) < end:
                return
            body, self._unread.data = self._unread.data[_MESSAGE.size : end], self._unread.data[end:]
            self._take(request, body)

    def _take(self, request: int, body: bytes) -> None:
        match request:
            case Request.GET_FEATURES:
                self._reply(request, struct.pack("<Q", FEATURES))
            case Request.GET_PROTOCOL_FEATURES:
                self._reply(request, struct.pack("<Q", PROTOCOL_FEATURES))
            case Request.GET_CONFIG:
                offset, size, _ = struct.unpack_from("<III", body)
                self._reply(request, body[:12] + struct.pack("<Q", self._cid)[offset : offset + size].ljust(size, b"\0"))
            case Request.SET_MEM_TABLE:
                self._memory.replace(body, self._unread.descriptors)
            case Request.SET_VRING_KICK | Request.SET_VRING_CALL | Request.SET_VRING_ERR:
                self._take_eventfd(request, struct.unpack_from("<Q", body)[0])
            case (
                Request.SET_VRING_NUM
                | Request.SET_VRING_ADDR
                | Request.SET_VRING_BASE
                | Request.GET_VRING_BASE
                | Request.SET_VRING_ENABLE
            ):
                self._take_ring(request, body)

    def _take_ring(self, request: int, body: bytes) -> None:
        index, number = struct.unpack_from("<II", body)
        if index >= len(self._rings):
            return
        ring = self._rings[index]
        match request:
            case Request.SET_VRING_NUM:
                ring.size = number
            case Request.SET_VRING_BASE:
                ring.next = number
            case Request.SET_VRING_ADDR:
                _, _, descriptors, used, available, _ = struct.unpack_from("<IIQQQQ", body)
                ring.descriptors, ring.used, ring.available = map(self._memory.at_qemu_address, (descriptors, used, available))
            case Request.SET_VRING_ENABLE:
                ring.enabled = bool(number)
                self._serve(index)
            case _:
                ring.enabled = False
                self._set_kick(ring, -1)
                self._reply(request, struct.pack("<II", index, ring.next))

    def _take_eventfd(self, request: int, word: int) -> None:
        index = word & 0xFF
        descriptor = -1 if word & NO_DESCRIPTOR else self._unread.descriptors.pop(0)
        if index >= len(self._rings) or request == Request.SET_VRING_ERR:
            if descriptor >= 0:
                os.close(descriptor)
        elif request == Request.SET_VRING_CALL:
            if self._rings[index].call >= 0:
                os.close(self._rings[index].call)
            self._rings[index].call = descriptor
        else:
            self._set_kick(self._rings[index], descriptor)
            if descriptor >= 0:
                os.set_blocking(descriptor, False)
                self._loop.add_reader(descriptor, self._on_kick, index)

    def _set_kick(self, ring: Ring, descriptor: int) -> None:
        if ring.kick >= 0:
            self._loop.remove_reader(ring.kick)
            os.close(ring.kick)
        ring.kick = descriptor

    def _reply(self, request: int, body: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._qemu.sendall(_MESSAGE.pack(request, VERSION_AND_REPLY, len(body)) + body)
