"""Counted places for calls towards guests: one count for the whole proxy and one per guest.

A call takes a place in both or is refused at once; it never queues, because a queue would turn one guest's hang into
everybody's. Rejected: semaphores (they wait), and grpc's own limit of concurrent calls alone (it cannot tell one guest's
callers from another's).
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import grpc

from vmm_proxy.errors import CallError

# Calls in progress towards all guests together. A proxied call takes some 2 ms of the loop, so more would only wait there.
PROXY_CALLS = 256
# Of those, what one caller may hold: all four methods of sixteen guests that hang. Administrators may hold more, but not all.
PROXY_CALLS_OF_ONE = 64
# Of those, what only administrators may take: enough to look at a fleet that callers hold, and to end what hangs.
PROXY_CALLS_KEPT = 32
# Calls and streams of all services in progress, past the interceptor; what one caller may hold of them (as many as wait for two hanging
# guests); what only administrators may take.
CALLS = 1024
CALLS_OF_ONE = 256
CALLS_KEPT = 64
# Of calls that come by HTTP, where pages answer 64 requests at once in all; what one caller may hold of them; what only administrators may
# take.
HTTP_CALLS = 32
HTTP_CALLS_OF_ONE = 16
HTTP_CALLS_KEPT = 4
# Bodies of their requests under way, before it is known who sends them. One that came with its head takes a place for an instant.
HTTP_BODIES = 16
# Calls in progress towards one guest for its callers. Identical calls share one, so more than four are rarely anything but a caller that
# varies its metadata; what the proxy asks for its own pages and lists is not counted here.
GUEST_CALLS = 4
# Callers that wait for one guest, calls that share one included. One caller's 256 calls fill two hanging guests, and nothing else.
GUEST_CALLERS = 128
# Streams of the fleet service: each may ask every guest, and there are few honest readers (a dashboard, a terminal, a collector).
FLEET_STREAMS = 32
# Of those, what one caller may hold: a dashboard, a few terminals and a collector of one user, and three more callers find room.
FLEET_STREAMS_OF_ONE = 8
# When a refused caller is told to come back: a call to a healthy guest is over by then.
RETRY_AFTER_SECONDS = 1.0


class Limit(Protocol):
    """What a call takes a place of."""

    def take(self) -> None:
        """Take a place; raises CallError RESOURCE_EXHAUSTED when there is none."""

    def give_back(self) -> None:
        """Give a taken place back."""


class ConcurrencyLimit:
    """At most `limit` places; `whose` names them in the refusal."""

    def __init__(self, limit: int, whose: str) -> None:
        self._limit = limit
        self._whose = whose
        self.taken = 0

    def take(self) -> None:
        """Take a place; raises CallError RESOURCE_EXHAUSTED when there is none."""
        if self.taken >= self._limit:
            raise _exhausted(f"{self._whose}: {self._limit} calls are in progress already, try again later")
        self.taken += 1

    def give_back(self) -> None:
        """Give a taken place back."""
        self.taken -= 1


class SharedConcurrencyLimit:
    """At most `limit` places, of which one caller holds at most `of_one`: whoever takes all it can get leaves room for the others.

    `kept` of them are for administrators, to whom `of_one` does not apply. `what` says in a refusal what takes a place.
    """

    def __init__(self, limit: int, of_one: int, whose: str, *, kept: int = 0, what: str = "streams open") -> None:
        self._all = ConcurrencyLimit(limit, whose)
        self._common = limit - kept
        self._whose = whose
        self._of_one = of_one
        self._what = what
        self._held: Counter[str] = Counter()

    def take(self, caller: str | None, *, admin: bool = False) -> None:
        """Take a place for `caller`, None for one who cannot be told from others; raises CallError RESOURCE_EXHAUSTED."""
        if not admin:
            if caller is not None and self._held[caller] >= self._of_one:
                raise _exhausted(
                    f"{caller} has {self._of_one} {self._what} already, which is the most for one caller; end one first"
                )
            if self._all.taken >= self._common:
                raise _exhausted(f"{self._whose}: {self._common} calls are in progress already, try again later")
        self._all.take()
        if caller is not None:
            self._held[caller] += 1

    def give_back(self, caller: str | None) -> None:
        """Give a place of `caller` back."""
        self._all.give_back()
        if caller is not None:
            self._held[caller] -= 1
            if not self._held[caller]:
                del self._held[caller]

    def share_of(self, caller: str | None, *, admin: bool = False) -> Share:
        """The places as `caller` has them."""
        return Share(self, caller, admin=admin)


class Share:
    """Limit of which one caller takes some."""

    def __init__(self, places: SharedConcurrencyLimit, caller: str | None, *, admin: bool) -> None:
        self._places = places
        self._caller = caller
        self._admin = admin

    def take(self) -> None:
        """Take a place; raises CallError RESOURCE_EXHAUSTED when the caller may have no further one."""
        self._places.take(self._caller, admin=self._admin)

    def give_back(self) -> None:
        """Give a taken place back."""
        self._places.give_back(self._caller)


def _exhausted(text: str) -> CallError:
    return CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, text, retry_after_seconds=RETRY_AFTER_SECONDS)
