"""Moves bytes between the connections that a listening socket accepts and the far side of each.

gRPC (as PyPI builds it) speaks neither vsock nor a VMM's hybrid vsock, so its bytes go through here: a host that dials and a guest that
listens use the same relay with the two ends swapped. It understands nothing of the bytes, keeps what TCP would keep (order, half-close,
back-pressure) and bounds what it holds: connections, buffers, and the time that opening the far side may take.

Rejected: asyncio streams (one more copy and two more task switches per chunk), asyncio's transports (see _Joined), and a thread per
direction (2000 threads at 1000 guests).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

log = logging.getLogger(__name__)

# Read at a time. Once this much waits for the other side no more is read: a connection holds 256 KiB at most, however slow its ends are.
# The 256 KiB of asyncio's own protocols are taken from the kernel anew for every read, which cost more than the reading.
CHUNK_BYTES = 64 * 1024
# An end that is gone leaves the other this long to take what is still buffered.
LINGER_SECONDS = 5.0
# Out of descriptors or memory: accepting again at once would only spin.
_EXHAUSTED_PAUSE_SECONDS = 0.1
# Connections accepted in one round of the loop, so that many new connections do not stall the existing ones.
_ACCEPTS_AT_ONCE = 16
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class RelayRefusedError(Exception):
    """The far side was not opened for this connection: the other refused, was too slow, or the peer may not; the message is one line."""


# Opens the far side for an accepted socket and its address, until the context ends; raises RelayRefusedError.
OpenFar = Callable[[socket.socket, object], AbstractAsyncContextManager[socket.socket]]
# Told how many bytes more came from the far side; False cuts the connection off.
MayReceive = Callable[[int], bool]


class Relay:
    """Accepts on `listener` (bound, listening, non-blocking; owned from here on) and joins each connection to its far side."""

    def __init__(
        self,
        listener: socket.socket,
        open_far: OpenFar,
        *,
        name: str,
        connections_limit: int,
        may_receive: MayReceive | None = None,
    ) -> None:
        self._listener = listener
        self._may_receive = may_receive
        self._open_far = open_far
        self._name = name
        self._connections_limit = connections_limit
        self._connections: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self.last_refusal: str | None = None

    def start(self) -> None:
        """Begin to accept."""
        self._pause = None
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    @property
    def connections(self) -> int:
        """Connections that are open or being opened."""
        return len(self._connections)

    def stop_accepting(self) -> None:
        """Accept no more; what is connected stays."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listener.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()

    async def close(self, flush_seconds: float = 0.0) -> None:
        """Accept no more and end every connection: at once, or after `flush_seconds` for what is still to be passed on."""
        self.stop_accepting()
        if flush_seconds and self._connections:
            await asyncio.wait(self._connections, timeout=flush_seconds)
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        if connections:
            await asyncio.wait(connections)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                near, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    # A connection that ended before it was accepted.
                    continue
                log.warning("%s: cannot accept: %s", self._name, error.strerror)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener.fileno())
                self._pause = loop.call_later(_EXHAUSTED_PAUSE_SECONDS, self.start)
                return
            self._admit(near, address)

    def _admit(self, near: socket.socket, address: object) -> None:
        near.setblocking(False)
        if len(self._connections) >= self._connections_limit:
            near.close()
            self._refused(f"refused a connection: there are {self._connections_limit} already")
            return
        task = asyncio.create_task(self._join(near, address))
        self._connections.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._connections.discard(task)
            near.close()

        task.add_done_callback(ended)

    async def _join(self, near: socket.socket, address: object) -> None:
        try:
            async with self._open_far(near, address) as far:
                self.last_refusal = None
                await pump(near, far, self._may_receive)
        except RelayRefusedError as refusal:
            self._refused(str(refusal))
        except Exception:
            log.exception("%s: the relay of a connection failed", self._name)

    def _refused(self, reason: str) -> None:
        log.warning("%s: %s", self._name, reason)
        self.last_refusal = reason


async def pump(one: socket.socket, other: socket.socket, may_receive: MayReceive | None = None) -> None:
    """Move bytes both ways until both ends are closed; owns and closes both sockets. Cancelling cuts both off.

    `may_receive` judges what comes from `other`.
    """
    joined = _Joined(one, other, may_receive)
    try:
        await joined.ended
    finally:
        joined.close()


class _OfThread(threading.local):
    """The chunk of each thread: its loop passes one on before it reads the next, so a thousand connections need no more."""

    def __init__(self) -> None:
        self.chunk = memoryview(bytearray(CHUNK_BYTES))


_OF_THREAD = _OfThread()


class _Joined:
    """Two connections as one. It works on the sockets themselves: each of asyncio's transports is garbage that only a full collection
    finds (it keeps its own bound method), and copies what it passes on."""

    def __init__(self, one: socket.socket, other: socket.socket, may_receive: MayReceive | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._linger: asyncio.TimerHandle | None = None
        self._ways = (_Way(one, other, self._changed, None), _Way(other, one, self._changed, may_receive))
        for way in self._ways:
            way.resume()

    def close(self) -> None:
        """Close both sockets at once, whatever was not taken yet."""
        if self._linger is not None:
            self._linger.cancel()
        # Both before the first socket is closed: a closed one has no number any more to be watched no longer by, and the loop would take
        # the next socket with that number for it.
        for way in self._ways:
            way.stop()
        for way in self._ways:
            way.close()

    def _changed(self) -> None:
        there, back = self._ways
        # An end that is lost takes nothing more.
        for way, reverse in ((there, back), (back, there)):
            if way.source_lost:
                reverse.give_up()
        if there.over and back.over:
            if not self.ended.done():
                self.ended.set_result(None)
        elif there.read_all and back.read_all and self._linger is None:
            self._linger = self._loop.call_later(LINGER_SECONDS, self._give_up)

    def _give_up(self) -> None:
        for way in self._ways:
            way.give_up()
        self._changed()


class _Way:
    """One direction: what `source` says goes to `target`; while the target does not take it, the source is not read."""

    __slots__ = ("_changed", "_loop", "_may_receive", "_rest", "_source", "_target", "over", "read_all", "source_lost")

    def __init__(
        self, source: socket.socket, target: socket.socket, changed: Callable[[], None], may_receive: MayReceive | None
    ) -> None:
        self._source = source
        self._may_receive = may_receive
        self._target = target
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        # What the target did not take yet. From one chunk on the source is not read, so that it is two at most.
        self._rest = bytearray()
        # Nothing more comes from the source: its end, or its loss.
        self.read_all = False
        self.source_lost = False
        # Nothing more will go this way.
        self.over = False

    def resume(self) -> None:
        """Read the source when it has something."""
        self._loop.add_reader(self._source.fileno(), self._readable)

    def give_up(self) -> None:
        """Pass on nothing more."""
        if not self.over:
            self.stop()
            self._rest.clear()
            self.read_all = self.over = True

    def close(self) -> None:
        """Close the source, which is the other way's target."""
        self._source.close()

    def stop(self) -> None:
        """Watch neither end any more."""
        if self._source.fileno() >= 0:
            self._loop.remove_reader(self._source.fileno())
        if self._target.fileno() >= 0:
            self._loop.remove_writer(self._target.fileno())

    def _readable(self) -> None:
        chunk = _OF_THREAD.chunk
        try:
            count = self._source.recv_into(chunk)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.source_lost = True
            self._end_of_source()
            return
        if not count:
            self._end_of_source()
            return
        if self._may_receive is not None and not self._may_receive(count):
            self.give_up()
            self.source_lost = True
            self._changed()
            return
        sent = 0 if self._rest else self._send(chunk[:count])
        if sent < count and not self.over:
            if not self._rest:
                self._loop.add_writer(self._target.fileno(), self._writable)
            self._rest += chunk[sent:count]
            if len(self._rest) >= CHUNK_BYTES:
                self._loop.remove_reader(self._source.fileno())

    def _writable(self) -> None:
        waited = len(self._rest) >= CHUNK_BYTES
        del self._rest[: self._send(self._rest)]
        if self.over:
            return
        if waited and len(self._rest) < CHUNK_BYTES and not self.read_all:
            self.resume()
        if not self._rest:
            self._loop.remove_writer(self._target.fileno())
            if self.read_all:
                self._finish()

    def _send(self, data: bytearray | memoryview) -> int:
        try:
            return self._target.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            # The target takes nothing more; what it still says comes the other way.
            self.give_up()
            self._changed()
            return 0

    def _end_of_source(self) -> None:
        self.read_all = True
        self._loop.remove_reader(self._source.fileno())
        if self._rest:
            self._changed()
        else:
            self._finish()

    def _finish(self) -> None:
        self.over = True
        with contextlib.suppress(OSError):
            self._target.shutdown(socket.SHUT_WR)
        self._changed()
