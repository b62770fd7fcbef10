"""Turns an address into something that gRPC can connect to, for both kinds of client.

It parses before gRPC sees anything, and says plainly what cannot be dialled. vsock and hybrid vsock need a relay, which lives in an
event loop: the caller's own for an asynchronous client, one in a thread of its own for a blocking one. Rejected: that thread for every
blocking client (a Unix socket and TCP need none), and handing gRPC the text (a missing port would mean 443, an unknown scheme DNS).
"""

from __future__ import annotations

import asyncio
import threading

from guest_client.errors import InvalidAddressError
from guest_transport.addresses import Address, AddressError, TcpAddress, UnixAddress, parse_address, require_dialable
from guest_transport.errors import ListenError
from guest_transport.relay.dial import DialTarget, dial_target

# Ending the relay's thread: it closes sockets and nothing else.
_STOP_SECONDS = 5.0


def dialled(address: str | Address) -> Address:
    """The address of a server; raises InvalidAddressError when `address` is none, or only makes sense for listening."""
    try:
        return require_dialable(parse_address(address) if isinstance(address, str) else address)
    except AddressError as error:
        raise InvalidAddressError(str(error)) from error


def dial(address: Address) -> DialTarget:
    """What gRPC dials to reach `address`, in a running event loop; raises InvalidAddressError when it cannot be dialled from here."""
    try:
        return dial_target(address)
    except (AddressError, ListenError) as error:
        raise InvalidAddressError(f"{address} cannot be dialled: {error}") from error


class BlockingDialTarget:
    """A DialTarget for who has no event loop."""

    def __init__(self, address: Address) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        if isinstance(address, UnixAddress | TcpAddress):
            self._target = dial(address)
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"relay to {address}", daemon=True)
        self._thread.start()
        try:
            self._target = asyncio.run_coroutine_threadsafe(self._dial(address), self._loop).result(_STOP_SECONDS)
        except BaseException:
            self._end_thread()
            raise

    @staticmethod
    async def _dial(address: Address) -> DialTarget:
        return dial(address)

    @property
    def grpc_target(self) -> str:
        """What gRPC dials."""
        return self._target.grpc_target

    @property
    def last_refusal(self) -> str | None:
        """Why the guest was last not reached, where the relay knows more than gRPC."""
        return self._target.last_refusal

    def close(self) -> None:
        """End its connections, its socket and its thread."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._target.close(), self._loop).result(_STOP_SECONDS)
            self._end_thread()

    def _end_thread(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOP_SECONDS)
            self._loop.close()
