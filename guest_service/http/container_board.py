"""The container list as pages see it: at most 15 s old, and never waited for by a scrape.

A page takes the list that is kept. While pages ask, a background task reads the list again and again, so that a scrape every 30 s finds
a list of the last 10 s, not one of its last visit. The task ends when no page has asked for a while. Rejected: reading at each scrape
(a Docker that hangs would then hang the page), and refreshing after a scrape (the next one would find a list as old as the interval).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from guest_api.guest_api_pb2 import Container, ListContainersResponse
from guest_transport.http.shared_look import SharedLook

# A list older than this is not shown: what it says may be over. (The promise of the metrics page.)
KEEP_SECONDS = 15.0
# Between two reads; leaves a read 5 s before the list before it is too old. Listing 100 containers takes an engine some 10 ms.
REFRESH_SECONDS = 10.0
# How long reads go on after the last page: five minutes is the longest scrape interval that Prometheus itself can use without gaps.
FOLLOW_SECONDS = 300.0
# The engine's own bound is 10 s.
READ_SECONDS = 12.0


@dataclass(frozen=True, slots=True)
class Listing:
    """Three answers: containers (maybe none), or None and whether the engine failed (else: not read yet)."""

    containers: tuple[Container, ...] | None
    failed: bool = False


class ContainerBoard:
    """Keeps the list; `clock` and `pause` are the time."""

    def __init__(
        self,
        look: SharedLook[ListContainersResponse],
        *,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.look = look
        self._clock = clock
        self._pause = pause
        self._listing = Listing(None)
        self._read_at = 0.0
        self._asked_at = 0.0
        self._follower: asyncio.Task[None] | None = None
        self._written = asyncio.Event()

    def last(self) -> Listing:
        """The list that is kept now; starts the background reads."""
        self._asked_at = self._clock()
        if self._follower is None or self._follower.done():
            self._written.clear()
            self._follower = asyncio.get_running_loop().create_task(self._follow(), name="container list")
        if self._listing.containers is not None and self._asked_at - self._read_at > KEEP_SECONDS:
            return Listing(None)
        return self._listing

    async def soon(self, seconds: float) -> Listing:
        """Like last(), but a first list is waited for, `seconds` at most: for a person who looks once."""
        listing = self.last()
        if listing.containers is None and not self._written.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._written.wait()
            listing = self.last()
        return listing

    async def close(self) -> None:
        """End the reads."""
        if self._follower is not None:
            self._follower.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._follower
        await self.look.close()

    async def _follow(self) -> None:
        while self._clock() - self._asked_at <= FOLLOW_SECONDS:
            started = self._clock()
            reply = await self.look.within(READ_SECONDS)
            self._listing = Listing(None, failed=True) if reply is None else Listing(tuple(reply.containers))
            self._read_at = started
            self._written.set()
            await self._pause(REFRESH_SECONDS)
