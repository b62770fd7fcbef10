"""How a thousand guests are asked, and their answers put on a page, without holding the event loop for long.

What is ready in one turn of the loop runs in one go: a thousand answers that come at once are half a second in which nobody else is
served. So only so many guests that may answer at any moment are being asked; one that stays silent gives its place to the next after a
moment, because a bound on calls in progress would make everybody wait for those that are dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

# Two calls each, and some 0.2 ms of the loop to take an answer: what is ready at once stays below 10 ms (8.7 at most, measured).
YOUNG_AT_ONCE = 8
# For collections, one call each. With 16 a collection took 1.4 times as long, because each wake of the loop found few answers; without a
# bound the loop was held 40 ms by a thousand guests, with 64 some 20 ms (two busy cores; benchmarks.growth).
YOUNG_CALLS_AT_ONCE = 64
# A healthy guest on the same host answers in a few milliseconds.
YOUNG_SECONDS = 0.05
# Work done in one go between two chances for others; with the step that goes over it, well below the 10 ms that the loop may be held.
TURN_SECONDS = 0.001


class LoopTurns:
    """Yields to the loop whenever TURN_SECONDS are used up."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._since = self._now()

    async def yield_if_due(self) -> None:
        """Call between two steps."""
        if self._now() - self._since >= TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = self._now()


class Pace:
    """Places for work that may end at any moment."""

    def __init__(self, at_once: int = YOUNG_AT_ONCE) -> None:
        self._places = asyncio.Semaphore(at_once)

    # A task's result does not matter here.
    async def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start `work` as soon as there is a place; it holds it until it ends, YOUNG_SECONDS at most."""
        try:
            free = await self.place()
        except asyncio.CancelledError:
            work.close()
            raise
        task = asyncio.create_task(work)
        task.add_done_callback(free)
        return task

    async def place(self) -> Callable[..., None]:
        """A place as soon as there is one, and what gives it back: by itself after YOUNG_SECONDS."""
        await self._places.acquire()
        place = _Place(self._places)
        place.clock = asyncio.get_running_loop().call_later(YOUNG_SECONDS, place.free)
        return place.free


class _Place:
    """Given back once, by whatever comes first."""

    __slots__ = ("_taken_from", "clock")

    def __init__(self, taken_from: asyncio.Semaphore) -> None:
        self._taken_from: asyncio.Semaphore | None = taken_from
        self.clock: asyncio.TimerHandle | None = None

    def free(self, _task: object = None) -> None:
        if self._taken_from is not None:
            self._taken_from.release()
            self._taken_from = None
        if self.clock is not None:
            self.clock.cancel()
