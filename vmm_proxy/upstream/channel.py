"""The channel to one guest: made at the first call, thrown away as a whole, never repaired.

Each channel owns its connection (no two guests share one), dials lazily, and is replaced by a new one when the guest stops answering on it.
Every guest's bytes go through the relay, where they are counted (unasked_bytes.py). Rejected: one channel per address kept in a pool,
where a reused address would inherit another guest's connection; and letting gRPC dial Unix sockets and TCP itself (it spares 0.1 ms a
call, and nothing tells how much such a guest sends: docs/decisions/guest-floods.md).
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

import grpc

from guest_transport.addresses import Address, UnixAddress
from guest_transport.errors import ListenError
from guest_transport.options import channel_options
from guest_transport.relay.dial import connect, relayed_target
from guest_transport.relay.single_connection import OneConnection
from vmm_proxy.directory.guest_tls import Secured
from vmm_proxy.errors import CallError, plain
from vmm_proxy.upstream.passed_metadata import Metadata
from vmm_proxy.upstream.unasked_bytes import UnaskedBytes

# Bytes in and out: gRPC gives None for a reply that it could not decode, and a missing reply must be told from an empty one.
UnaryCall = grpc.aio.UnaryUnaryCall[bytes, bytes | None]
# The same request, whose reply is read up to the guest's status.
ReadToEndCall = grpc.aio.UnaryStreamCall[bytes, bytes]


@dataclass(slots=True)
class _Dialled:
    times: int = 0


class Channel:
    """An open channel to `address`; raises CallError where the host has no place for its relay.

    With a `pin` it is one connection and no more: `proven` says that the guest at its other end showed the pin, and `spent` that the
    connection has ended and a new channel is needed. With `secured` it speaks TLS.
    """

    def __init__(
        self, guest_id: str, address: Address, unasked: UnaskedBytes, pin: bytes = b"", secured: Secured | None = None
    ) -> None:
        # `dial` counts here and not in this channel: a channel that the function held would stay until the garbage is collected.
        self._dialled = dialled = _Dialled()

        async def dial() -> socket.socket:
            dialled.times += 1
            unasked.require_dialable()
            return await connect(address)

        try:
            self._once = OneConnection(address, dial, may_receive=unasked.received) if pin else None
            self._target = self._once.target if self._once else relayed_target(address, dial, may_receive=unasked.received)
        except ListenError as error:
            text = f"guest {guest_id}: the proxy has no place for a relay to it; its log says more"
            raise CallError(grpc.StatusCode.INTERNAL, text) from error
        self.pin = pin
        self.proven = not pin
        self.proving = asyncio.Lock()
        # What gRPC itself dials is the relay's socket, whatever the guest's address.
        options = channel_options(UnixAddress("/relay"))
        if secured:
            options.append(("grpc.ssl_target_name_override", secured.name))
            self._channel = grpc.aio.secure_channel(self._target.grpc_target, secured.credentials, options=options)
        else:
            self._channel = grpc.aio.insecure_channel(self._target.grpc_target, options=options)
        self._unary: dict[str, grpc.aio.UnaryUnaryMultiCallable[bytes, bytes | None]] = {}
        self._read_to_end: dict[str, grpc.aio.UnaryStreamMultiCallable[bytes, bytes]] = {}
        # Paths whose last call got no end in time, perhaps because there is a second message in front of it.
        self._doubted: set[str] = set()

    @property
    def dials(self) -> int:
        """How often the guest was dialled: what was learned over one connection may not hold for the next."""
        return self._dialled.times

    @property
    def spent(self) -> bool:
        """Whether nothing can be called on it any more."""
        return self._once is not None and self._once.spent

    def call(
        self, path: str, *, timeout: float, metadata: Metadata, wait_for_ready: bool | None = None
    ) -> UnaryCall | ReadToEndCall:
        """Begin a call of `path`: a unary one, or one that is read to its end where the last one there got none.

        On a unary call gRPC reads one message and waits for the status, which it holds back behind a second one: the call hangs.
        A call that is read to its end shows the second message; why not all of them: docs/decisions/guest-floods.md.
        """
        if path in self._doubted:
            to_end = self._read_to_end.get(path)
            if to_end is None:
                to_end = self._read_to_end[path] = self._channel.unary_stream(path)
            return to_end(b"", timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready)
        unary = self._unary.get(path)
        if unary is None:
            unary = self._unary[path] = self._channel.unary_unary(path)
        return unary(b"", timeout=timeout, metadata=metadata, wait_for_ready=wait_for_ready)

    def doubt(self, path: str) -> None:
        """A call of `path` got no end in time: read the next ones to their end."""
        self._doubted.add(path)

    def trust(self, path: str) -> None:
        """A call of `path` ended with one message and a status."""
        self._doubted.discard(path)

    @property
    def connected(self) -> bool:
        """Whether a connection stands right now; does not dial."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    @property
    def refusal(self) -> str:
        """Why the guest was last not reached, where this process dialled it itself; empty where gRPC did, or it was reached."""
        return plain(self._target.last_refusal or "", 200)

    async def close(self, grace_seconds: float | None = None) -> None:
        """End the connection; calls on it get `grace_seconds` to finish, or none."""
        try:
            await self._channel.close(grace_seconds)
        finally:
            await self._target.close()
