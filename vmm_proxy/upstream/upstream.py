"""The calls to one guest: its limits, its last answer, and what the outcomes of calls say of its reachability.

Identical reading calls share one call to the guest (single_flight), each caller with its own deadline; what only traces a call makes no
difference. What a call is made on, guest_channels knows. Closing it answers everybody who waits, because a handler whose call is merely
cancelled sends no status at all. A call that only reads is made a second time where the connection was lost under it, as it is
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
from vmm_proxy.directory.guest_tls import GuestTls
from vmm_proxy.errors import CallError, LostError, NotSentError
from vmm_proxy.upstream.call import ask
from vmm_proxy.upstream.channel import Channel
from vmm_proxy.upstream.guest_channels import GuestChannels
from vmm_proxy.upstream.http_channel import HttpChannel
from vmm_proxy.upstream.last_answer import LastAnswer
from vmm_proxy.upstream.limits import GUEST_CALLERS, GUEST_CALLS, ConcurrencyLimit, Limit
from vmm_proxy.upstream.passed_metadata import Metadata, deciding
from vmm_proxy.upstream.question import Question
from vmm_proxy.upstream.reachability import Reachability, ReachabilityState, answered
from vmm_proxy.upstream.shared_call import Answer, Outcome
from vmm_proxy.upstream.single_flight import SingleFlight, Wanted

log = logging.getLogger(__name__)

# A guest that takes every connection and drops it costs two for one call this often, and one for each call between.
SECOND_ASK_PAUSE_SECONDS = 1.0
# A caller who allows less says nothing about the guest when no answer comes: on a busy host a healthy one takes some 10 ms, and its first
# connection as long.
HASTY_SECONDS = 0.1


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
        self.channels = GuestChannels(guest_id, address, dstack=dstack, pin=pin, tls=tls, on_wrong_guest=on_wrong_guest)
        self.reachability = reachability
        self._wall_clock = wall_clock
        self._proxy_calls = proxy_calls
        self._calls = SingleFlight(guest_id)
        self.places = ConcurrencyLimit(GUEST_CALLS, f"guest {guest_id}")
        self._callers = ConcurrencyLimit(GUEST_CALLERS, f"guest {guest_id}")
        self._last = LastAnswer(wall_clock)
        self._asked_twice_at = float("-inf")

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
        return self._last.young_enough(metadata, self.channels.current)

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
        await self.channels.close()

    def _wanted(self, method: Method, metadata: Metadata, deadline: float, proxy_calls: Limit | None) -> Wanted:
        traits = deciding(metadata)
        # What the fleet asks like everybody else is one call per method at the most, and needs no place to be bounded: a scrape and a list,
        # which together ask four things, must not have a caller refused.
        bounded = proxy_calls or traits or not method.only_reads
        places = [place for place in (self.places if bounded else None, proxy_calls) if place]
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
            self.channels.unasked.answered(answer_bytes)
        self._note(outcome, allowed_seconds, answers_before)
        return outcome

    async def _ask(self, method: Method, metadata: Metadata, deadline: float) -> Answer:
        channel = await self.channels.open()
        try:
            return await self._answer(channel, method, metadata, deadline)
        except NotSentError:
            pass
        except LostError:
            if not self._may_ask_twice(method, deadline) and (channel.proven or not channel.spent):
                raise
            self.channels.replace(channel)
        except CallError:
            # Before it was proven nothing was sent but the question who it is.
            if channel.proven or not channel.spent:
                raise
        # A connection that ended meanwhile costs a new one, once.
        channel = await self.channels.open()
        return await self._answer(channel, method, metadata, deadline)

    async def _answer(self, channel: Channel | HttpChannel, method: Method, metadata: Metadata, deadline: float) -> Answer:
        async with self.channels.proven(channel, method, deadline) as connection:
            answer = await ask(connection, self.guest_id, method, metadata, deadline)
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

    def _note(self, outcome: Outcome, allowed_seconds: float, answers_before: int) -> None:
        missed = isinstance(outcome, CallError) and outcome.code is grpc.StatusCode.DEADLINE_EXCEEDED and not outcome.answered
        if missed and allowed_seconds < HASTY_SECONDS:
            return
        if answered(outcome):
            self.channels.answered()
        self.reachability.note(self.guest_id, outcome, self._wall_clock(), answers_before=answers_before)
        if self.reachability.state is ReachabilityState.UNREACHABLE:
            self._last.forget()
        if missed:
            self.channels.missed()
