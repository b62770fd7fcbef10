"""The calls to one guest: its limits, its shared calls, its channel, and what their outcomes say of its reachability.

Identical reading calls share one call to the guest, each caller with its own deadline; what only traces a call makes no difference. A
channel on which the guest misses three deadlines in a row is replaced. Closing it answers everybody who waits, because a handler whose call
is merely cancelled sends no status at all. A call that only reads is made a second time where the connection was lost under it, as it is
when a VM is restored. Rejected: retries of anything else (only the caller knows what a second call means).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import grpc

from guest_contract.methods import Method
from guest_transport.addresses import Address
from vmm_proxy.directory.guest_tls import GuestTls, secure
from vmm_proxy.errors import CallError, LostError, NotSentError
from vmm_proxy.upstream.call import ask
from vmm_proxy.upstream.channel import Channel
from vmm_proxy.upstream.deadlines import LONGEST_SECONDS
from vmm_proxy.upstream.http_channel import HttpChannel, refuse_tls
from vmm_proxy.upstream.http_connection import HttpConnection
from vmm_proxy.upstream.identity_pin import WrongGuestError, prove
from vmm_proxy.upstream.last_answer import LastAnswer
from vmm_proxy.upstream.limits import GUEST_CALLERS, GUEST_CALLS, ConcurrencyLimit, Limit
from vmm_proxy.upstream.passed_metadata import Metadata, deciding
from vmm_proxy.upstream.question import Question
from vmm_proxy.upstream.reachability import Reachability, ReachabilityState, answered
from vmm_proxy.upstream.shared_call import Answer, Outcome
from vmm_proxy.upstream.single_flight import SingleFlight, Wanted
from vmm_proxy.upstream.unasked_bytes import UnaskedBytes

log = logging.getLogger(__name__)

# One missed deadline is a slow guest, three in a row a channel that leads nowhere (a VM that was replaced behind the same address).
MISSES_BEFORE_REDIAL = 3
# Calls with tiny deadlines could make every third call a redial; a guest that is up needs far less than this to answer on a new
# channel.
REDIAL_PAUSE_SECONDS = 1.0
# A guest that takes every connection and drops it costs two for one call this often, and one for each call between.
SECOND_ASK_PAUSE_SECONDS = 1.0
# A caller who allows less says nothing about the guest when no answer comes: on a busy host a healthy one takes some 10 ms, and its first
# connection as long.
HASTY_SECONDS = 0.1
# Calls still on a replaced channel end with their own deadlines, of which this is the longest.
OLD_CHANNEL_GRACE_SECONDS = LONGEST_SECONDS


class Upstream:
    """The calls to one guest at one address."""

    def __init__(
        self,
        guest_id: str,
        address: Address,
        *,
        dstack: bool = False,
        generation: int = 0,
        pin: bytes = b"",
        reachability: Reachability,
        proxy_calls: Limit,
        wall_clock: Callable[[], float],
        tls: GuestTls | None = None,
        on_wrong_guest: Callable[[bytes], None] | None = None,
    ) -> None:
        self.guest_id = guest_id
        # Of the entry that it was made for: whose answers these are.
        self.generation = generation
        self._pin = pin
        self._tls = tls
        self._on_wrong_guest = on_wrong_guest
        # How often another VM answered at the guest's address.
        self.wrong_guests = 0
        self.reachability = reachability
        self.redials = 0
        self._address = address
        self._dstack = dstack
        self._wall_clock = wall_clock
        self._proxy_calls = proxy_calls
        self._calls = SingleFlight(guest_id)
        self._places = ConcurrencyLimit(GUEST_CALLS, f"guest {guest_id}")
        self._callers = ConcurrencyLimit(GUEST_CALLERS, f"guest {guest_id}")
        self._channel: Channel | HttpChannel | None = None
        self._last = LastAnswer(wall_clock)
        self._unasked = UnaskedBytes(guest_id, asyncio.get_running_loop().time)
        self._misses = 0
        self._redialled_at = float("-inf")
        self._asked_twice_at = float("-inf")
        self._retiring: set[asyncio.Task[None]] = set()

    async def call(
        self, method: Method, metadata: Metadata, deadline: float, *, for_fleet: bool = False, share: Limit | None = None
    ) -> Answer:
        """The guest's answer by `deadline` (loop time); raises CallError. `share`: the places of the proxy as the caller has them.

        A fleet's call takes no place in the proxy's count: a thousand guests are asked at once. One that bounds no sample's age takes
        none of the guest's either.
        """
        self._callers.take()
        try:
            outcome = await self._calls.run(
                self._wanted(method, metadata, deadline, None if for_fleet else share or self._proxy_calls)
            )
        finally:
            self._callers.give_back()
        if isinstance(outcome, CallError):
            raise outcome.again()
        return outcome

    def kept(self, method: Method, metadata: Metadata) -> Answer | None:
        """The guest's last answer, where the caller's cache-control takes one of its age, and the guest need not be asked."""
        if method.name != self._last.METHOD or not metadata:
            return None
        return self._last.young_enough(metadata, self._channel)

    def ask(
        self,
        method: Method,
        metadata: Metadata,
        deadline: float,
        told: Callable[[Outcome], None],
        *,
        for_fleet: bool = False,
        share: Limit | None = None,
    ) -> Question:
        """As call(), but `told` gets the outcome, which others share: not to be raised. Raises CallError where there is no place."""
        self._callers.take()
        try:
            wanted = self._wanted(method, metadata, deadline, None if for_fleet else share or self._proxy_calls)
            return self._calls.ask(wanted, told, self._callers.give_back)
        except CallError:
            self._callers.give_back()
            raise

    @property
    def callers(self) -> int:
        """How many wait for the guest right now."""
        return self._callers.taken

    async def close(self, reason: str) -> None:
        """End every call with UNAVAILABLE and `reason`, and the channel with them; further calls fail alike."""
        await self._calls.close(CallError(grpc.StatusCode.UNAVAILABLE, f"guest {self.guest_id}: {reason}"))
        # They end now that every call has. They may not be cancelled: a channel whose close() was cancelled counts as closed, and keeps its
        # connection for good (grpcio 1.85).
        await asyncio.gather(*self._retiring, return_exceptions=True)
        if self._channel:
            await self._channel.close()

    def renew_certificates(self) -> None:
        """Dial anew where TLS is spoken, so that renewed files are used; calls in progress finish."""
        if self._tls and self._channel:
            self._replace(self._channel)

    def _wanted(self, method: Method, metadata: Metadata, deadline: float, proxy_calls: Limit | None) -> Wanted:
        traits = deciding(metadata)
        # What the fleet asks like everybody else is one call per method at the most, and needs no place to be bounded: a scrape and a list,
        # which together ask four things, must not have a caller refused.
        bounded = proxy_calls or traits or not method.only_reads
        places = [place for place in (self._places if bounded else None, proxy_calls) if place]
        key = (method.name, traits) if method.only_reads else None
        return Wanted(key, deadline, partial(self._make, method, metadata), places)

    async def _make(self, method: Method, metadata: Metadata, deadline: float) -> Outcome:
        """Make the call, and note what its outcome says of the guest."""
        outcome: Outcome
        allowed_seconds = deadline - asyncio.get_running_loop().time()
        answers_before = self.reachability.answers
        answer_bytes = 0
        try:
            outcome = await self._ask(method, metadata, deadline)
            answer_bytes = outcome.wire_bytes
        except CallError as error:
            outcome = error.as_value()
            answer_bytes = error.wire_bytes
        except asyncio.CancelledError:
            if asyncio.get_running_loop().time() >= deadline:
                # The last caller's own clock was faster than gRPC's here; the guest missed the deadline all the same.
                missed = CallError(grpc.StatusCode.DEADLINE_EXCEEDED, f"guest {self.guest_id}: no answer in time")
                self._note(missed, allowed_seconds, answers_before)
            raise
        except Exception:
            log.exception("a call to guest %s failed in the proxy itself", self.guest_id)
            outcome = CallError(grpc.StatusCode.INTERNAL, f"guest {self.guest_id}: a fault of the proxy; its log says more")
        finally:
            self._unasked.answered(answer_bytes)
        self._note(outcome, allowed_seconds, answers_before)
        return outcome

    async def _ask(self, method: Method, metadata: Metadata, deadline: float) -> Answer:
        channel = await self._open_channel()
        try:
            return await self._answer(channel, method, metadata, deadline)
        except NotSentError:
            pass
        except LostError:
            if not self._may_ask_twice(method, deadline) and (channel.proven or not channel.spent):
                raise
            self._replace(channel)
        except CallError:
            # Before it was proven nothing was sent but the question who it is.
            if channel.proven or not channel.spent:
                raise
        # A connection that ended meanwhile costs a new one, once.
        channel = await self._open_channel()
        return await self._answer(channel, method, metadata, deadline)

    async def _answer(self, channel: Channel | HttpChannel, method: Method, metadata: Metadata, deadline: float) -> Answer:
        if isinstance(channel, HttpChannel):
            async with channel.lent(method, deadline) as connection:
                await self._prove(channel, connection, deadline)
                answer = await ask(connection, self.guest_id, method, metadata, deadline)
        else:
            await self._prove(channel, channel, deadline)
            answer = await ask(channel, self.guest_id, method, metadata, deadline)
        if method.name == self._last.METHOD:
            self._last.keep(answer, channel)
        return answer

    def _may_ask_twice(self, method: Method, deadline: float) -> bool:
        """Whether a call whose connection was lost is made once more; if so, it counts as made."""
        now = asyncio.get_running_loop().time()
        if not method.only_reads or now >= deadline or now - self._asked_twice_at < SECOND_ASK_PAUSE_SECONDS:
            return False
        self._asked_twice_at = now
        return True

    async def _prove(self, channel: Channel | HttpChannel, connection: Channel | HttpConnection, deadline: float) -> None:
        try:
            await prove(connection, self.guest_id, deadline)
        except WrongGuestError as error:
            self.wrong_guests += 1
            self._replace(channel)
            if self._on_wrong_guest:
                self._on_wrong_guest(error.shown)
            raise

    async def _open_channel(self) -> Channel | HttpChannel:
        channel = self._channel
        if channel and not channel.spent:
            return channel
        if channel:
            self._replace(channel)
        if self._dstack:
            if self._tls:
                raise refuse_tls(self.guest_id)
            self._channel = HttpChannel(self.guest_id, self._address, self._unasked, self._pin)
            return self._channel
        secured = await secure(self.guest_id, self._address, self._tls) if self._tls else None
        # Another call may have been faster while the files were read.
        if self._channel is None:
            self._channel = Channel(self.guest_id, self._address, self._unasked, self._pin, secured)
        return self._channel

    def _replace(self, channel: Channel | HttpChannel) -> None:
        """Use `channel` no more; a new one is made at the next call."""
        if self._channel is channel:
            self._channel = None
            self._retire(channel)

    def _note(self, outcome: Outcome, allowed_seconds: float, answers_before: int) -> None:
        missed = isinstance(outcome, CallError) and outcome.code is grpc.StatusCode.DEADLINE_EXCEEDED and not outcome.answered
        if missed and allowed_seconds < HASTY_SECONDS:
            return
        if answered(outcome):
            self._misses = 0
        self.reachability.note(self.guest_id, outcome, self._wall_clock(), answers_before=answers_before)
        if self.reachability.state is ReachabilityState.UNREACHABLE:
            self._last.forget()
        if missed:
            self._missed()

    def _missed(self) -> None:
        self._misses += 1
        now = asyncio.get_running_loop().time()
        if self._misses < MISSES_BEFORE_REDIAL or now - self._redialled_at < REDIAL_PAUSE_SECONDS or self._channel is None:
            return
        log.warning("guest %s: %d deadlines missed in a row, dialling anew", self.guest_id, self._misses)
        self.redials += 1
        self._misses = 0
        self._redialled_at = now
        self._replace(self._channel)

    def _retire(self, channel: Channel | HttpChannel) -> None:
        task = asyncio.create_task(channel.close(OLD_CHANNEL_GRACE_SECONDS))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
