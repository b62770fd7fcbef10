"""Turns any address into something that gRPC can dial.

`unix:` and TCP pass as they are. `vsock:` and `hvsock:` get a private Unix socket whose connections are relayed: gRPC dials that, and each
of its connections opens the guest anew; so does every kind whose bytes are judged. Nothing is opened before gRPC connects, so no guest is
ever probed by open-and-close. Rejected: one private socket for all guests (gRPC would have to say which guest it means, in bytes that the
relay does not understand).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Self

from guest_transport.addresses import Address, HvsockAddress, TcpAddress, UnixAddress, VsockAddress, require_dialable
from guest_transport.relay.relay import MayReceive, Relay, RelayRefusedError
from guest_transport.sockets import hvsock, tcp, unix, vsock
from guest_transport.sockets.private_folder import PrivateFolder

# From connecting to the VMM's OK. A guest that took a connection and ignores it is given up after this, and dialled anew by gRPC; shorter
# than options.CONNECT_SECONDS, so that the relay knows the reason before gRPC gives up.
HANDSHAKE_SECONDS = 2.0
# What gRPC says as it closes (that calls have ended) still reaches a guest; one that then keeps its end open is cut off.
FLUSH_SECONDS = 0.25
# gRPC keeps one connection per channel, and for a moment a second one while it redials.
_CONNECTIONS_LIMIT = 4

# Opens the guest's side; raises OSError.
Connect = Callable[[], Awaitable[socket.socket]]


class DialTarget:
    """What to give gRPC for an address, and why it last failed; closed by whoever closes the channel, after the channel."""

    def __init__(self, address: Address, grpc_target: str, relay: Relay | None, folder: PrivateFolder | None) -> None:
        self.address = address
        self.grpc_target = grpc_target
        self._relay = relay
        self._folder = folder

    @property
    def last_refusal(self) -> str | None:
        """Why the guest was last not reached, in one line, where this process knows more than gRPC; None after a success."""
        return self._relay.last_refusal if self._relay is not None else None

    @property
    def connections(self) -> int:
        """Connections that are relayed or being opened; 0 where gRPC dials by itself."""
        return self._relay.connections if self._relay is not None else 0

    async def close(self) -> None:
        """End its connections and remove its socket."""
        if self._relay is not None:
            await self._relay.close(FLUSH_SECONDS)
        if self._folder is not None:
            await asyncio.to_thread(self._folder.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


async def connect(address: Address) -> socket.socket:
    """A non-blocking socket connected to `address`; raises OSError. The caller bounds the wait."""
    match address:
        case UnixAddress():
            return await unix.connect(address.path)
        case TcpAddress():
            return await tcp.connect(address)
        case VsockAddress():
            return await vsock.connect(address)
        case HvsockAddress():
            return await hvsock.connect(address)


def dial_target(address: Address, *, handshake_seconds: float = HANDSHAKE_SECONDS) -> DialTarget:
    """What gRPC dials to reach `address`; raises AddressError for one that cannot be dialled, ListenError without a place for a socket.

    Opens nothing towards the guest. Needs a running event loop for vsock and hvsock.
    """
    match require_dialable(address):
        case UnixAddress() | TcpAddress() as direct:
            return DialTarget(address, direct.grpc_target, None, None)
        case relayed:
            return relayed_target(relayed, partial(connect, relayed), handshake_seconds=handshake_seconds)


def relayed_target(
    address: Address, connect: Connect, *, handshake_seconds: float = HANDSHAKE_SECONDS, may_receive: MayReceive | None = None
) -> DialTarget:
    """A private Unix socket each of whose connections is joined to what `connect` opens; `address` is for messages.

    `may_receive` judges every byte that comes from there.
    """

    @contextlib.asynccontextmanager
    async def open_far(_near: socket.socket, _address: object) -> AsyncIterator[socket.socket]:
        try:
            async with asyncio.timeout(handshake_seconds):
                far = await connect()
        except TimeoutError as error:
            raise RelayRefusedError(f"no answer within {handshake_seconds} s") from error
        except OSError as error:
            raise RelayRefusedError(error.strerror or str(error)) from error
        with far:
            yield far

    folder = PrivateFolder()
    try:
        path = folder.file("s")
        relay = Relay(
            unix.listen(path), open_far, name=str(address), connections_limit=_CONNECTIONS_LIMIT, may_receive=may_receive
        )
        relay.start()
    except BaseException:
        folder.close()
        raise
    return DialTarget(address, UnixAddress(path).grpc_target, relay, folder)
