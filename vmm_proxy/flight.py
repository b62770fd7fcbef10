"""One call on its way to a guest, and everybody who waits for its outcome.

The call runs in a task of its own: a caller who leaves does not take the answer from the others, and when the last one has left
the call is cancelled, so that the guest stops working for nobody. Rejected: asyncio.shield (a future and a callback more for
each caller, and nobody counts who is left).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from google.protobuf.message import Message

from vmm_proxy.statuses import CallError, Trailers


@dataclass(frozen=True, slots=True)
class Answer:
    """A guest's reply, decoded and encoded again, and what of its trailers travels."""

    message: Message
    wire: bytes
    trailers: Trailers


# A failure is kept as a value and not raised here: many callers share it.
Outcome = Answer | CallError


class Flight:
    """A call in the air until land(); `deadline` is in the loop's time."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.task: asyncio.Task[None] | None = None
        # Its last caller left and it is being cancelled: nobody may join it any more.
        self.dropped = False
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[Outcome | None]] = set()
        self._outcome: Outcome | None = None
        self._landed = False

    def land(self, outcome: Outcome) -> None:
        """Give every caller the outcome; the first one counts."""
        if self._landed:
            return
        self._landed = True
        self._outcome = outcome
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(outcome)

    def abandon(self, outcome: Outcome) -> None:
        """Give every caller `outcome` now and cancel the call."""
        self.land(outcome)
        if self.task:
            self.task.cancel()

    async def outcome(self, deadline: float) -> Outcome | None:
        """The outcome, or None when it did not come by `deadline`. The last caller to leave without it cancels the call."""
        if self._outcome is not None:
            return self._outcome
        waiter: asyncio.Future[Outcome | None] = self._loop.create_future()
        self._waiting.add(waiter)
        # The flight ends by its own deadline; only a caller with a nearer one needs a clock.
        clock = self._loop.call_at(deadline, _stop_waiting, waiter) if deadline < self.deadline else None
        try:
            return await waiter
        finally:
            if clock:
                clock.cancel()
            self._waiting.discard(waiter)
            if not self._waiting and not self._landed and self.task:
                self.dropped = True
                self.task.cancel()


def _stop_waiting(waiter: asyncio.Future[Outcome | None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
