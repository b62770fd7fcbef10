"""One HTTP client's bounds: how long it may take to send a request, sit idle, or not read its answer; and how many clients there may be.

uvicorn bounds only the pause between requests, so a client that sends half a header, or never reads, would stay for ever (slowloris).
Here such a client is dropped, and when there are too many, the one that has waited longest without a request goes first: half-open
connections can never keep a scraper out (field case C3).
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from dataclasses import dataclass, field

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

# struct linger: on, 0 seconds (socket(7)).
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def half_of_descriptors(most: int) -> int:
    """Half of RLIMIT_NOFILE, `most` at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, soft // 2)


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds of each client, and how many there may be."""

    # A header is one packet; 10 s is a bad mobile link's worth of resends.
    request_seconds: float = 10.0
    # Four scrapes at the usual 15 s, so that a scraper keeps its connection.
    idle_seconds: int = 60
    # A client that takes no byte for this long is gone, or holds the connection on purpose.
    stall_seconds: float = 20.0
    # Half of the descriptors that this process may have, 512 at most; gRPC and the collector need the rest.
    connections: int = field(default_factory=lambda: half_of_descriptors(512))


@dataclass(slots=True)
class ClientBook:
    """The connections of one listener."""

    limits: ClientLimits
    waiting: dict[BoundedConnection, None] = field(default_factory=dict)

    def admit(self, newcomer: BoundedConnection, open_connections: int) -> bool:
        """Whether `newcomer` may stay; makes room by dropping who has waited longest."""
        if open_connections <= self.limits.connections:
            return True
        oldest = next((client for client in self.waiting if client is not newcomer), None)
        if oldest is None:
            return False
        oldest.drop()
        return True


class BoundedConnection(H11Protocol):
    """uvicorn's connection with the bounds of ClientLimits."""

    def __init__(self, config: Config, state: ServerState, book: ClientBook, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(config=config, server_state=state, app_state={}, _loop=loop)
        self._book = book
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        # uvicorn declares the cycle as always there; before the first request it is None.
        return bool(self.cycle) and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn itself declares it
        """A client came."""
        super().connection_made(transport)
        self._wait_for_request()
        if not self._book.admit(self, len(self.connections)):
            self.drop()

    def data_received(self, data: bytes) -> None:
        """Bytes came; the timer goes on running until they make a whole header."""
        super().data_received(data)
        if not self.busy and self._request_timer is None and not self.transport.is_closing():
            self._request_timer = self.loop.call_later(self._book.limits.request_seconds, self.drop)
        elif self.busy:
            self._request_came()

    def on_response_complete(self) -> None:
        """An answer is written; uvicorn's own timer bounds the pause until the next request's first byte."""
        super().on_response_complete()
        if not self.busy:
            self._book.waiting[self] = None
        if self.transport.get_write_buffer_size():
            self._watch_writing()

    def pause_writing(self) -> None:
        """The client reads too slowly for its answer."""
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._writing_goes_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._request_came()
        self._writing_goes_on()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def drop(self) -> None:
        """End the connection without another word, nobody reads one. With a reset, or the kernel would keep what is unsent for minutes."""
        held = self.transport.get_extra_info("socket")
        if held is not None:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self.transport.abort()

    def _wait_for_request(self) -> None:
        self._book.waiting[self] = None
        self._request_timer = self.loop.call_later(self._book.limits.request_seconds, self.drop)

    def _request_came(self) -> None:
        self._book.waiting.pop(self, None)
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _writing_goes_on(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_writing(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._writing_goes_on()
        self._stall_timer = self.loop.call_later(self._book.limits.stall_seconds, self._check_writing, left)

    def _check_writing(self, left_before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left and left >= left_before:
            self.drop()
        elif left:
            self._watch_writing()
