"""Hears what one service tells its service manager: that it is ready, and, by its watchdog, that its event loop turns.

The product's own words (sd_notify(3)) are what is measured here, so nothing of it is changed for a measurement. Times are the kernel's, of
when the word was sent: how long this process takes to read it says nothing of the service. Rejected: asking the health service again and
again (it sees a stalled loop only when it asks in that moment), and log lines (for people).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from pathlib import Path

# socket(7): each datagram comes with the time at which it was sent, a timeval. Python (3.11) has no name for it; asm-generic/socket.h.
SO_TIMESTAMP = 29
TIMEVAL = struct.Struct("@ll")
# sd_notify messages are some lines.
DATAGRAM_BYTES = 4096
# Told to the services as WATCHDOG_USEC: they tell twice as often. Far more often than in the units, so that short stalls are seen.
WATCHDOG_SECONDS = 1.0
TELLS_EVERY_SECONDS = WATCHDOG_SECONDS / 2


class Ear:
    """One service's NOTIFY_SOCKET at `path`; needs a running loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
        self._socket.bind(str(path))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._hear)
        self._ready: asyncio.Future[float] = self._loop.create_future()
        self._told_at: float | None = None
        self._stalls: list[float] = []

    def expect(self) -> None:
        """The service is started now: forget its predecessor."""
        self._hear()
        self._ready = self._loop.create_future()
        self._told_at = None

    async def ready(self, timeout_seconds: float) -> float:
        """When it said READY (epoch seconds); raises TimeoutError."""
        return await asyncio.wait_for(asyncio.shield(self._ready), timeout_seconds)

    def excuse(self) -> None:
        """The service was stopped by us: its silence until now is no stall."""
        self._hear()
        self._told_at = None

    def take_stalls(self) -> list[float]:
        """By how much each tell of the watchdog came late since the last take, seconds; a silence that still lasts included."""
        self._hear()
        stalls, self._stalls = self._stalls, []
        if self._told_at is not None:
            stalls.append(max(0.0, time.time() - self._told_at - TELLS_EVERY_SECONDS))
        return stalls

    def close(self) -> None:
        """Hear no more."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._ready.cancel()
        self.path.unlink(missing_ok=True)

    def _hear(self) -> None:
        while True:
            with contextlib.suppress(BlockingIOError):
                text, ancillary, _, _ = self._socket.recvmsg(DATAGRAM_BYTES, socket.CMSG_SPACE(TIMEVAL.size))
                self._note(text.split(b"\n"), _sent_at(ancillary))
                continue
            return

    def _note(self, words: list[bytes], sent_at: float) -> None:
        if b"READY=1" in words and not self._ready.done():
            self._ready.set_result(sent_at)
        if b"WATCHDOG=1" in words:
            if self._told_at is not None:
                self._stalls.append(max(0.0, sent_at - self._told_at - TELLS_EVERY_SECONDS))
            self._told_at = sent_at


def _sent_at(ancillary: list[tuple[int, int, bytes]]) -> float:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMP):
            seconds, microseconds = map(float, TIMEVAL.unpack(data))
            return seconds + microseconds / 1e6
    return time.time()
