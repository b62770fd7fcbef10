"""The channel to one guest: made at the first call, thrown away as a whole, never repaired.

Each line owns its connection (no two guests share one), dials directly and lazily, and is replaced by a new one when the guest
stops answering on it. Rejected: one channel per address kept in a pool, where a reused address would inherit another guest's
connection.
"""

from __future__ import annotations

import grpc

from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.options import channel_options
from vmm_proxy.statuses import CallError

# Bytes in and out: gRPC gives None for a reply that it could not decode, and a missing reply must be told from an empty one.
Rpc = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes | None]


class Line:
    """An open channel to `address`; raises CallError UNAVAILABLE where such an address cannot be dialled."""

    def __init__(self, guest_id: str, address: Address) -> None:
        if not isinstance(address, UnixAddress | TcpAddress):
            raise CallError(grpc.StatusCode.UNAVAILABLE, f"guest {guest_id}: this proxy cannot dial its kind of address yet")
        self._channel = grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))
        self._rpcs: dict[str, Rpc] = {}

    def rpc(self, path: str) -> Rpc:
        """The rpc at `path`, bytes in and bytes out."""
        rpc = self._rpcs.get(path)
        if rpc is None:
            rpc = self._rpcs[path] = self._channel.unary_unary(path)
        return rpc

    @property
    def connected(self) -> bool:
        """Whether a connection stands right now; does not dial."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def close(self, grace_seconds: float | None = None) -> None:
        """End the connection; calls on it get `grace_seconds` to finish, or none."""
        await self._channel.close(grace_seconds)
