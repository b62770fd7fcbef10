"""Reports that the PCI bus has changed, so that a card that comes or goes is seen, and a bus without a change is never read again.

The kernel multicasts each change of a device on a netlink socket; any user may listen. While nothing is plugged in or out it costs nothing.
It refuses what did not come from the kernel, and believes no word of an event but its subsystem: the bus itself is looked at again.
Rejected: a look every minute (hundreds of system calls on every guest without a card), udev's own group (not every guest runs udev).

Source: netlink(7), NETLINK_KOBJECT_UEVENT; the kernel's lib/kobject_uevent.c. A container in its own user namespace gets no event.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

# linux/netlink.h; Python's socket module has no name for it. The kernel's own events are group 1.
NETLINK_KOBJECT_UEVENT = 15
KERNEL_EVENTS = 1
# UEVENT_BUFFER_SIZE of the kernel is 2 KiB, and a header.
EVENT_LIMIT_BYTES = 8192
# Taken at one wake-up, so that a flood of events cannot hold the loop.
EVENTS_AT_ONCE = 64
# From the first event to the look: cards that are plugged in together come within milliseconds, and a flood must not become one of looks.
SETTLE_SECONDS = 0.5


class BusEvents:
    """Calls `changed` SETTLE_SECONDS after the first event of the PCI bus, and again for those that come later."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._socket: socket.socket | None = None
        self._settling: asyncio.TimerHandle | None = None

    def start(self) -> bool:
        """Begin; whether the kernel sends events here (a sandbox may forbid the socket)."""
        try:
            listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT)
        except OSError as error:
            log.debug("no events of the PCI bus: %s", error)
            return False
        try:
            listener.bind((0, KERNEL_EVENTS))
        except OSError as error:
            listener.close()
            log.debug("no events of the PCI bus: %s", error)
            return False
        self._socket = listener
        asyncio.get_running_loop().add_reader(listener, self._read, listener)
        return True

    def close(self) -> None:
        """Tell no more."""
        if self._settling is not None:
            self._settling.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _read(self, listener: socket.socket) -> None:
        for _ in range(EVENTS_AT_ONCE):
            try:
                event, (sender, _groups) = listener.recvfrom(EVENT_LIMIT_BYTES)
            except BlockingIOError:
                return
            except OSError:
                # ENOBUFS: more came than the socket holds, and what is lost may have been of the bus.
                self._tell_soon()
                return
            if sender == 0 and b"\0SUBSYSTEM=pci\0" in event:
                self._tell_soon()

    def _tell_soon(self) -> None:
        if self._settling is None:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._tell)

    def _tell(self) -> None:
        self._settling = None
        self._changed()
