"""One HTTP client's bounds: how long it may take to send a request, sit idle, or read its answer; and how many clients there may be.

uvicorn bounds only the pause between requests, so a client that sends half a header, or never reads, would stay for ever (slowloris).
Here such a client is dropped, and when there are too many, the one that has waited longest without a request goes first: half-open
connections can never keep a scraper out. An answer must be read at a least rate; a peer beyond this machine has half of the connections
at most. On loopback and Unix sockets all users look alike, and share them all.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import socket
import struct
from collections import Counter
from dataclasses import dataclass, field

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from guest_transport.peers import Peer, TcpPeer, tcp_peer, told_apart
from guest_transport.process.repeated_lines import about

log = logging.getLogger(__name__)

# The key of a request's connection in its scope's state.
CONNECTION = "connection"
# struct linger: on, 0 seconds (socket(7)).
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def peer_of(client: tuple[str, int] | None) -> str | None:
    """Whose address `client` is; None for what every user of this machine may be, on loopback or a Unix socket."""
    if client is None:
        return None
    try:
        peer = tcp_peer(client)
    except ValueError:
        return client[0]
    return None if peer.loopback else peer.network


def half_of_descriptors(most: int) -> int:
    """Half of RLIMIT_NOFILE, `most` at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, soft // 2)


@dataclass(frozen=True, slots=True)
class Sender:
    """Who is at the other end of a connection that another part accepted; `name` is what gRPC would call it (peers.Peers)."""

    peer: Peer
    name: str

    @property
    def client(self) -> tuple[str, int] | None:
        """As uvicorn has it of a connection of its own."""
        if isinstance(self.peer, TcpPeer):
            return self.peer.host, self.peer.port
        who = told_apart(self.peer)
        return None if who is None else (who, 0)


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds of each client, and how many there may be."""

    # A header is one packet; 10 s is a bad mobile link's worth of resends.
    request_seconds: float = 10.0
    # Four scrapes at the usual 15 s, so that a scraper keeps its connection.
    idle_seconds: int = 60
    # How long an answer that waits for its reader is left alone: a bad link's longest silence.
    stall_seconds: float = 20.0
    # In each such time what is left must be read, or this much a second: 40 times slower than a mobile link. A fleet's page of 2.6 MB takes
    # 160 s then; at 6 KB/s it took seven minutes, for as many readers as there are answers at once.
    least_bytes_per_second: int = 16 * 1024
    # An answer that has waited this long for its reader may be cut for a newcomer: whoever reads 256 KiB a second never waits so long.
    paused_seconds: float = 1.0
    # Half of the descriptors that this process may have, 512 at most; gRPC and the collector need the rest.
    connections: int = field(default_factory=lambda: half_of_descriptors(512))


@dataclass(slots=True)
class ClientBook:
    """The connections of one listener."""

    limits: ClientLimits
    waiting: dict[BoundedConnection, None] = field(default_factory=dict)
    of_peer: Counter[str | None] = field(default_factory=Counter)

    def admit(self, newcomer: BoundedConnection, open_connections: int) -> bool:
        """Whether `newcomer` may stay; makes room by dropping who has waited longest, of its peer where that has too many."""
        too_many = newcomer.peer is not None and self.of_peer[newcomer.peer] > self.limits.connections // 2
        if not too_many and open_connections <= self.limits.connections:
            return True
        others = (client for client in self.waiting if client is not newcomer)
        oldest = next((client for client in others if not too_many or client.peer == newcomer.peer), None)
        if oldest is None:
            return False
        oldest.drop()
        return True


class BoundedConnection(H11Protocol):
    """uvicorn's connection with the bounds of ClientLimits."""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        book: ClientBook,
        loop: asyncio.AbstractEventLoop,
        sender: Sender | None = None,
    ) -> None:
        # Each request's scope["state"] leads back here.
        super().__init__(config=config, server_state=state, app_state={CONNECTION: self}, _loop=loop)
        self._book = book
        # None: this server accepted it, and the transport knows.
        self.sender = sender
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self.peer: str | None = None
        # Since when the answer waits for its reader, by the loop's clock; None while it does not.
        self.paused_at: float | None = None

    @property
    def busy(self) -> bool:
        """Whether a request is being answered."""
        # uvicorn declares the cycle as always there; before the first request it is None.
        return bool(self.cycle) and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn itself declares it
        """A client came."""
        super().connection_made(transport)
        if self.sender is not None:
            self.client = self.sender.client
        self.peer = peer_of(self.client)
        self._book.of_peer[self.peer] += 1
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
        self.paused_at = self.loop.time()
        self._watch_writing()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self.paused_at = None
        self._writing_goes_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._request_came()
        self._writing_goes_on()
        self._unset_keepalive_if_required()
        self.paused_at = None
        self._book.of_peer[self.peer] -= 1
        if not self._book.of_peer[self.peer]:
            del self._book.of_peer[self.peer]
        super().connection_lost(exc)

    @property
    def may_be_cut_in_seconds(self) -> float:
        """When the answer will have waited for its reader so long that a newcomer may have its place: 0 or less is now."""
        return math.inf if self.paused_at is None else self.paused_at + self._book.limits.paused_seconds - self.loop.time()

    def cut(self, why: str) -> None:
        """End an answer that is read too slowly."""
        client = self.client[0] if self.client else "a Unix socket's client"
        log.warning("%s reads its answer too slowly and is cut: %s", client, why, extra=about(client))
        self.drop()

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
        self._stall_timer = self.loop.call_later(self._book.limits.stall_seconds, self.judge_writing, left)

    def judge_writing(self, left_before: int) -> None:
        """Cut an answer of which too little was read since `left_before` bytes of it were left: a stall's time ago."""
        left = self.transport.get_write_buffer_size()
        limits = self._book.limits
        if left and left_before - left < limits.least_bytes_per_second * limits.stall_seconds:
            self.cut(f"less than {limits.least_bytes_per_second} bytes a second in {limits.stall_seconds} s")
        elif left:
            self._watch_writing()
