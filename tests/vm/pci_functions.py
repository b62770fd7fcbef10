"""PCI functions with a config space that the test makes up, on a virtual machine's real bus: what sysfs shows of them is the kernel's own.

QEMU's x-pci-proxy-dev forwards each access to the config space over a socket; the other end is here. They have no memory regions and do
nothing. For tests only. Source: QEMU's include/hw/remote/mpqemu-link.h and docs/devel/multi-process.rst.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

_HEADER = struct.Struct("<iIQ")  # what, padding, size of what follows
_ACCESS = struct.Struct("<IIi")  # register, value, length
_ANSWER = struct.Struct("<Q")
_CONFIG_BYTES = 256
_VENDOR, _REVISION, _CLASS, _SUBSYSTEM = 0x00, 0x08, 0x09, 0x2C
# What a driver, or the kernel, may write: command and status, and the interrupt line.
_WRITABLE = (0x04, 0x3C)


class _Command(IntEnum):
    """Of MPQemuCmd, what this end sees."""

    RET = 1
    CONFIG_WRITE = 2
    CONFIG_READ = 3
    BAR_WRITE = 4
    BAR_READ = 5
    DEVICE_RESET = 7


@dataclass(frozen=True, slots=True)
class PciFunction:
    """What is on the bus, and in which slot of bus 0."""

    slot: int
    vendor: int
    device: int
    class_code: int

    @property
    def address(self) -> str:
        return f"0000:00:{self.slot:02x}.0"

    def config_space(self) -> bytearray:
        space = bytearray(_CONFIG_BYTES)
        struct.pack_into("<HH", space, _VENDOR, self.vendor, self.device)
        space[_REVISION] = 0xA1
        space[_CLASS : _CLASS + 3] = self.class_code.to_bytes(3, "little")
        struct.pack_into("<HH", space, _SUBSYSTEM, self.vendor, self.device)
        return space


NVIDIA_CARDS = (PciFunction(0x10, 0x10DE, 0x2330, 0x030200), PciFunction(0x11, 0x10DE, 0x2330, 0x030200))
NVSWITCH = PciFunction(0x12, 0x10DE, 0x22A3, 0x068000)


@dataclass(frozen=True, slots=True)
class Plugged:
    """What QEMU is given: arguments, and the descriptors that they name."""

    devices: list[str]
    descriptors: list[int]


@contextlib.contextmanager
def plugged(functions: Sequence[PciFunction]) -> Iterator[Plugged]:
    """Serve the config spaces of `functions` until the end."""
    with contextlib.ExitStack() as ending:
        devices: list[str] = []
        descriptors: list[int] = []
        for function in functions:
            qemu, ours = socket.socketpair()
            ending.enter_context(qemu)
            ending.enter_context(ours)
            thread = threading.Thread(target=_serve, args=(ours, function.config_space()))
            thread.start()
            ending.callback(thread.join)
            ending.callback(_hang_up, ours)
            descriptors.append(qemu.fileno())
            devices += ["-device", f"x-pci-proxy-dev,fd={qemu.fileno()},addr={function.slot:#x}"]
        yield Plugged(devices, descriptors)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _serve(connection: socket.socket, space: bytearray) -> None:
    """Answer QEMU until it or the test hangs up."""
    with contextlib.suppress(ConnectionError, EOFError):
        while True:
            command, _, size = _HEADER.unpack(_read(connection, _HEADER.size))
            data = _read(connection, size)
            if command in {_Command.CONFIG_WRITE, _Command.CONFIG_READ}:
                answer = _access(space, *_ACCESS.unpack_from(data), write=command == _Command.CONFIG_WRITE)
            elif command in {_Command.BAR_WRITE, _Command.BAR_READ, _Command.DEVICE_RESET}:
                answer = 0
            else:
                continue
            connection.sendall(_HEADER.pack(_Command.RET, 0, _ANSWER.size) + _ANSWER.pack(answer))


def _access(space: bytearray, register: int, value: int, length: int, *, write: bool) -> int:
    if not write:
        return int.from_bytes(space[register : register + length], "little")
    if register in _WRITABLE:
        space[register : register + length] = value.to_bytes(4, "little")[:length]
    return 0


def _read(connection: socket.socket, size: int) -> bytes:
    """`size` bytes; descriptors that come along (of the guest's memory) are of no use here."""
    data = b""
    while len(data) < size:
        part, descriptors, _, _ = socket.recv_fds(connection, size - len(data), 8)
        for descriptor in descriptors:
            os.close(descriptor)
        if not part:
            raise EOFError
        data += part
    return data
