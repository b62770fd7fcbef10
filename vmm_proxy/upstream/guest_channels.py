"""The channels to one guest, one after the other: made when a call needs one, handed out connected and proven, thrown away as a whole.

A channel on which the guest misses three deadlines in a row is replaced, and so is one at whose other end another VM was; calls that are
still on it end with their own deadlines. Which protocol the guest speaks is known here and in the channels alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from guest_contract.methods import Method
from guest_transport.addresses import Address
from vmm_proxy.directory.guest_tls import GuestTls, secure
from vmm_proxy.upstream.channel import Channel
from vmm_proxy.upstream.deadlines import LONGEST_SECONDS
from vmm_proxy.upstream.http_channel import HttpChannel, refuse_tls
from vmm_proxy.upstream.http_connection import HttpConnection
from vmm_proxy.upstream.identity_pin import WrongGuestError, prove
from vmm_proxy.upstream.unasked_bytes import UnaskedBytes

log = logging.getLogger(__name__)

# One missed deadline is a slow guest, three in a row a channel that leads nowhere (a VM that was replaced behind the same address).
MISSES_BEFORE_REDIAL = 3
# Calls with tiny deadlines could make every third call a redial; a guest that is up needs far less than this to answer on a new
# channel.
REDIAL_PAUSE_SECONDS = 1.0
# Calls still on a replaced channel end with their own deadlines, of which this is the longest.
OLD_CHANNEL_GRACE_SECONDS = LONGEST_SECONDS


class GuestChannels:
    """The channels to the guest `guest_id` at `address`; `on_wrong_guest` hears what another VM showed in place of the `pin`."""

    def __init__(
        self,
        guest_id: str,
        address: Address,
        *,
        dstack: bool = False,
        pin: bytes = b"",
        tls: GuestTls | None = None,
        on_wrong_guest: Callable[[bytes], None] | None = None,
    ) -> None:
        self._guest_id = guest_id
        self._address = address
        self._dstack = dstack
        self._pin = pin
        self._tls = tls
        self._on_wrong_guest = on_wrong_guest
        # What the guest sends, on whichever of them.
        self.unasked = UnaskedBytes(guest_id, asyncio.get_running_loop().time)
        # The one in use; None until a call needs one.
        self.current: Channel | HttpChannel | None = None
        # How often another VM answered at the guest's address, and how often a channel was replaced because nobody did.
        self.wrong_guests = self.redials = 0
        self._misses = 0
        self._redialled_at = float("-inf")
        self._retiring: set[asyncio.Task[None]] = set()

    async def open(self) -> Channel | HttpChannel:
        """The channel in use, made anew where that is spent; raises CallError."""
        channel = self.current
        if channel and not channel.spent:
            return channel
        if channel:
            self.replace(channel)
        if self._dstack:
            if self._tls:
                raise refuse_tls(self._guest_id)
            self.current = HttpChannel(self._guest_id, self._address, self.unasked, self._pin)
            return self.current
        secured = await secure(self._guest_id, self._address, self._tls) if self._tls else None
        # Another call may have been faster while the files were read.
        if self.current is None:
            self.current = Channel(self._guest_id, self._address, self.unasked, self._pin, secured)
        return self.current

    @contextlib.asynccontextmanager
    async def proven(
        self, channel: Channel | HttpChannel, method: Method, deadline: float
    ) -> AsyncIterator[Channel | HttpConnection]:
        """What one call of `method` is made on, at whose other end the guest has shown its pin; raises CallError, also WrongGuestError."""
        if isinstance(channel, HttpChannel):
            async with channel.lent(method, deadline) as connection:
                await self._prove(channel, connection, deadline)
                yield connection
        else:
            await self._prove(channel, channel, deadline)
            yield channel

    def replace(self, channel: Channel | HttpChannel) -> None:
        """Use `channel` no more; a new one is made at the next call."""
        if self.current is channel:
            self.current = None
            task = asyncio.create_task(channel.close(OLD_CHANNEL_GRACE_SECONDS))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)

    def renew_certificates(self) -> None:
        """Dial anew where TLS is spoken, so that renewed files are used; calls in progress finish."""
        if self._tls and self.current:
            self.replace(self.current)

    def answered(self) -> None:
        """The guest did."""
        self._misses = 0

    def missed(self) -> None:
        """The guest missed a deadline that it could have met."""
        self._misses += 1
        now = asyncio.get_running_loop().time()
        if self._misses < MISSES_BEFORE_REDIAL or now - self._redialled_at < REDIAL_PAUSE_SECONDS or self.current is None:
            return
        log.warning("guest %s: %d deadlines missed in a row, dialling anew", self._guest_id, self._misses)
        self.redials += 1
        self._misses = 0
        self._redialled_at = now
        self.replace(self.current)

    async def close(self) -> None:
        """End all of them; no call may be on one any more."""
        # They may not be cancelled: a channel whose close() was cancelled counts as closed, and keeps its connection for good (grpcio
        # 1.85).
        await asyncio.gather(*self._retiring, return_exceptions=True)
        if self.current:
            await self.current.close()

    async def _prove(self, channel: Channel | HttpChannel, connection: Channel | HttpConnection, deadline: float) -> None:
        try:
            await prove(connection, self._guest_id, deadline)
        except WrongGuestError as error:
            self.wrong_guests += 1
            self.replace(channel)
            if self._on_wrong_guest:
                self._on_wrong_guest(error.shown)
            raise
