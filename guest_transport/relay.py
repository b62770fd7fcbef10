"""Moves bytes between the connections that a listening socket accepts and the far side of each.

gRPC (as PyPI builds it) speaks neither vsock nor a VMM's hybrid vsock, so its bytes go through here: a host that dials and a guest that
listens use the same relay with the two ends swapped. It understands nothing of the bytes, keeps what TCP would keep (order, half-close,
back-pressure) and bounds what it holds: connections, buffers, and the time that opening the far side may take.

Rejected: asyncio streams (one more copy and two more task switches per chunk); a thread per direction (2000 threads at 1000 guests).
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

# Written but not yet taken by the other side, per direction. Above it the sender is not read; with the one chunk that is read at a time a
# connection holds 256 KiB in both directions, however slow an end is.
BUFFER_BYTES = 64 * 1024
# Read at a time. The 256 KiB of asyncio's own protocols are taken from the kernel anew for every read, which cost more than the reading.
CHUNK_BYTES = 64 * 1024
# An end that is gone leaves the other this long to take what is still buffered.
LINGER_SECONDS = 5.0
# Out of descriptors or memory: accepting again at once would only spin.
_EXHAUSTED_PAUSE_SECONDS = 0.1
# Connections accepted in one round of the loop, so that a crowd at the door does not stall what is connected.
_ACCEPTS_AT_ONCE = 16
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class RelayRefusedError(Exception):
    """The far side was not opened for this connection: the other refused, was too slow, or the peer may not; the message is one line."""


# Opens the far side for an accepted socket and its address, until the context ends; raises RelayRefusedError.
OpenFar = Callable[[socket.socket, object], AbstractAsyncContextManager[socket.socket]]


class Relay:
    """Accepts on `listener` (bound, listening, non-blocking; owned from here on) and joins each connection to its far side."""

    def __init__(self, listener: socket.socket, open_far: OpenFar, *, name: str, connections_limit: int) -> None:
        self._listener = listener
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

    async def close(self) -> None:
        """Accept no more and end every connection at once."""
        self.stop_accepting()
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
                await pump(near, far)
        except RelayRefusedError as refusal:
            self._refused(str(refusal))
        except Exception:
            log.exception("%s: the relay of a connection failed", self._name)

    def _refused(self, reason: str) -> None:
        log.warning("%s: %s", self._name, reason)
        self.last_refusal = reason


async def pump(one: socket.socket, other: socket.socket) -> None:
    """Move bytes both ways until both ends are closed; owns and closes both sockets. Cancelling cuts both off."""
    loop = asyncio.get_running_loop()
    here, there = _End(_OF_THREAD.chunk), _End(_OF_THREAD.chunk)
    here.other, there.other = there, here
    try:
        await loop.connect_accepted_socket(lambda: here, one)
        await loop.connect_accepted_socket(lambda: there, other)
        here.flow()
        there.flow()
        # Only now, because the end of both is the end of the connection.
        for end in (here, there):
            if end.read_all:
                end.eof_received()
        await asyncio.wait([here.gone, there.gone])
    finally:
        for end in (here, there):
            end.cut()
        # The transports close their sockets in the loop's next round.
        await asyncio.sleep(0)


class _OfThread(threading.local):
    """The chunk of each thread: its loop passes one on before it reads the next, so a thousand connections need no more."""

    def __init__(self) -> None:
        self.chunk = memoryview(bytearray(CHUNK_BYTES))


_OF_THREAD = _OfThread()


class _End(asyncio.BufferedProtocol):
    """One end of a connection: what it reads into `chunk` is written to the other."""

    other: _End

    def __init__(self, chunk: memoryview) -> None:
        self._chunk = chunk
        self.transport: asyncio.Transport | None = None
        self.read_all = False
        # What came before the other end was there: None once it is. (Pausing in connection_made would do, were it not without effect
        # in Python 3.11.2.)
        self._early: list[bytes] | None = []
        self._linger: asyncio.TimerHandle | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def flow(self) -> None:
        """Begin to pass on what is read; the other end is there."""
        early, self._early = self._early or [], None
        if self.transport is not None:
            self.transport.resume_reading()
        for data in early:
            self._pass_on(data)

    def cut(self) -> None:
        """Close at once, whatever is still buffered."""
        if self._linger is not None:
            self._linger.cancel()
        if self.transport is not None and not self.gone.done():
            self.transport.abort()

    def finish(self) -> None:
        """Close when what is buffered is taken, at the latest after LINGER_SECONDS."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.cut)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # for mypy: a stream socket's transport is one
        self.transport = transport
        transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the chunk has the size that it has
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        # A copy, because a transport may keep what it cannot write at once.
        self._pass_on(bytes(self._chunk[:nbytes]))

    def _pass_on(self, data: bytes) -> None:
        if self._early is not None:
            self._early.append(data)
            if self.transport is not None:
                self.transport.pause_reading()
        elif self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        self.read_all = True
        if self._early is not None:
            pass
        elif self.other.read_all:
            self.finish()
            self.other.finish()
        elif self.other.transport is not None:
            with contextlib.suppress(OSError):
                self.other.transport.write_eof()
        # Stay open: the other may still have much to say.
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # both ways of ending are an end
        if self._linger is not None:
            self._linger.cancel()
        if not self.gone.done():
            self.gone.set_result(None)
        self.other.finish()

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None and not self.other.read_all:
            self.other.transport.resume_reading()
