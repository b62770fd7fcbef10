"""The channel to a guest that runs dstack's own agent: as many HTTP/1.1 connections as calls are in progress, each lent to one call.

It stands where the gRPC channel does (channel.py), so that limits, shared calls, pins, deadlines and reachability are the same for both.
HTTP/1.1 answers one request after the other, so a call that hangs would hold up all others on one connection: each call has its own, and
a few that are done wait for the next ones. A call that changes something gets a new connection: a kept one may just be ending, and nobody
could tell whether the guest saw the call. With a pin each connection is proven by itself. Rejected: a gRPC server of our own in between
(each call goes through two servers, and its status is guessed twice), and pipelining (few servers take it).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc

from guest_contract.methods import Method
from guest_transport.addresses import Address
from guest_transport.relay.dial import HANDSHAKE_SECONDS, connect
from vmm_proxy.errors import CallError, NotSentError, plain
from vmm_proxy.upstream.grpc_errors import unreachable
from vmm_proxy.upstream.http_connection import HttpConnection
from vmm_proxy.upstream.unasked_bytes import UnaskedBytes

# Connections that wait for the next call. A scrape and a list ask four things at once, and one caller shares their calls; a thousand guests
# keep two thousand sockets.
IDLE_LIMIT = 2


class HttpChannel:
    """Connections to `address`, made when a call needs one."""

    # A channel of gRPC may end for good; this one dials as long as it is used.
    spent = False
    # Each connection is proven by itself.
    proven = True

    def __init__(self, guest_id: str, address: Address, unasked: UnaskedBytes, pin: bytes = b"") -> None:
        self._guest_id = guest_id
        self._address = address
        self._unasked = unasked
        self._pin = pin
        self._idle: list[HttpConnection] = []
        self._lent: set[HttpConnection] = set()
        self._one_back = asyncio.Event()
        self._closed = False
        # How often the guest was dialled: what was learned over one connection may not hold for the next.
        self.dials = 0

    @property
    def connected(self) -> bool:
        """Whether a connection stands right now; does not dial."""
        return bool(self._idle or self._lent)

    @contextlib.asynccontextmanager
    async def lent(self, method: Method, deadline: float) -> AsyncIterator[HttpConnection]:
        """A connection for one call of `method`; raises CallError, also NotSentError where this channel is closed."""
        connection = await self._take(method, deadline)
        self._lent.add(connection)
        try:
            yield connection
        except CallError as error:
            if isinstance(error, NotSentError) or error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                # What became of this one while it waited may have become of the others: the VM was replaced, or restored.
                self._drop_idle()
            raise
        finally:
            self._lent.discard(connection)
            self._one_back.set()
            if self._closed or not connection.reusable or not connection.proven or len(self._idle) >= IDLE_LIMIT:
                connection.close()
            else:
                self._idle.append(connection)
                connection.watch(lambda: self._drop(connection))

    async def close(self, grace_seconds: float | None = None) -> None:
        """Lend no connection any more, and end all; calls on them get `grace_seconds` to finish, or none."""
        self._closed = True
        self._drop_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds or 0.0):
                while self._lent:
                    self._one_back.clear()
                    await self._one_back.wait()
        for connection in self._lent:
            connection.cut()

    async def _take(self, method: Method, deadline: float) -> HttpConnection:
        if self._closed:
            raise NotSentError(grpc.StatusCode.UNAVAILABLE, f"guest {self._guest_id}: unreachable: the connection has ended")
        if self._idle and method.only_reads:
            connection = self._idle.pop()
            connection.unwatch()
            return connection
        self.dials += 1
        loop = asyncio.get_running_loop()
        latest = loop.time() + HANDSHAKE_SECONDS
        try:
            async with asyncio.timeout_at(min(deadline, latest)):
                self._unasked.require_dialable()
                return HttpConnection(await connect(self._address), self._unasked.received, self._pin)
        except TimeoutError as error:
            if deadline < latest:
                # A hasty caller says nothing of the guest.
                text = f"guest {self._guest_id}: no connection within the caller's deadline"
                raise CallError(grpc.StatusCode.DEADLINE_EXCEEDED, text) from error
            raise unreachable(self._guest_id, "timed out") from error
        except OSError as error:
            raise unreachable(self._guest_id, plain(error.strerror or str(error), 200)) from error

    def _drop_idle(self) -> None:
        for connection in self._idle[:]:
            self._drop(connection)

    def _drop(self, connection: HttpConnection) -> None:
        self._idle.remove(connection)
        connection.close()


def refuse_tls(guest_id: str) -> CallError:
    """Why a guest that would have to be reached with TLS is not reached: in the clear its answers would be anybody's."""
    text = f"guest {guest_id}: not asked: [guest_tls] is for its address, and dstack's agent speaks no TLS"
    return CallError(grpc.StatusCode.UNAVAILABLE, text)
