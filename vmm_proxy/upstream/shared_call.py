"""One call on its way to a guest, and everybody who waits for its outcome.

A shared call that a fleet stream asked for runs in a task of its own: a caller who leaves does not take the answer from the others, and
when the last one has left the call is cancelled, so that the guest stops working for nobody. One that a single call began is carried by
that call's own task, its leader: usually nobody else waits, and two turns of the loop are saved. When a leader leaves, the others ask anew.
Callers are told by a callback: a fleet stream waits for a thousand shared calls without a task for each. Rejected: asyncio.shield (a future
and a callback more for each caller, and nobody counts who is left).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from vmm_proxy.errors import CallError, Trailers


class Answer:
    """A guest's reply, decoded and checked, and what of its trailers travels; `wire_bytes` is its size as the guest sent it.

    `received_at` (epoch seconds) is set where it was kept, and came before it was asked for.
    """

    __slots__ = ("_wire", "message", "received_at", "trailers", "wire_bytes")

    def __init__(self, message: Message, trailers: Trailers, wire_bytes: int, received_at: float | None = None) -> None:
        self.message = message
        self.trailers = trailers
        self.wire_bytes = wire_bytes
        self.received_at = received_at
        self._wire: bytes | None = None

    @property
    def wire(self) -> bytes:
        """The reply encoded anew, once for all who share it; a fleet stream does without.

        Deterministic, because a re-encoded reply is only then the same bytes each time (grpcio and protobuf promise it no other way).
        """
        if self._wire is None:
            self._wire = self.message.SerializeToString(deterministic=True)
        return self._wire


# A failure is kept as a value and not raised here: many callers share it.
Outcome = Answer | CallError


# Called once: with the outcome, or with None when it did not come by the caller's deadline.
Told = Callable[[Outcome | None], None]


class Waiter:
    """One caller's wait for a shared call: `told` is called, unless the caller leaves before."""

    __slots__ = ("_clock", "_shared_call", "_told")

    def __init__(self, shared: SharedCall, told: Told, deadline: float | None) -> None:
        self._shared_call = shared
        self._told = told
        self._clock = asyncio.get_running_loop().call_at(deadline, self._too_late) if deadline is not None else None

    def leave(self) -> None:
        """Wait no more; the last caller to leave before the outcome cancels the call."""
        if self._clock:
            self._clock.cancel()
        self._shared_call.left_by(self)

    def tell(self, outcome: Outcome) -> None:
        """The shared call has its outcome."""
        if self._clock:
            self._clock.cancel()
        self._told(outcome)

    def _too_late(self) -> None:
        # A timer that has run keeps this method, and with it the waiter.
        self._clock = None
        self._shared_call.left_by(self)
        self._told(None)


class SharedCall:
    """A call in progress until finish(); `deadline` is in the loop's time."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        # Its return value is unused.
        self.task: asyncio.Task[Any] | None = None
        # Its last caller left and it is being cancelled: nobody may join it any more.
        self.dropped = False
        # What everybody was told when it was abandoned; its leader's task, cancelled for that, has to tell it too.
        self.abandoned: Outcome | None = None
        # Whether its task is a caller's.
        self.has_leader = False
        self._waiters: set[Waiter] = set()
        self._finished = False

    def finish(self, outcome: Outcome) -> None:
        """Tell every caller the outcome; the first one counts."""
        self._finished = True
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            waiter.tell(outcome)

    def abandon(self, outcome: Outcome) -> None:
        """Tell every caller `outcome` now and cancel the call; the first time counts, because a leader takes one cancellation back."""
        if self.abandoned is not None:
            return
        self.abandoned = outcome
        self.finish(outcome)
        if self.task:
            self.task.cancel()

    def take_leader(self) -> None:
        """Be carried by the current task: it waits for the outcome itself, and has no waiter."""
        self.task = asyncio.current_task()
        self.has_leader = True

    def lose_leader(self) -> None:
        """The caller who carried it has left: for the others it ended early, by a deadline that was not theirs."""
        self.deadline = min(self.deadline, asyncio.get_running_loop().time())
        self.finish(CallError(grpc.StatusCode.DEADLINE_EXCEEDED, "the call that was shared was given up"))

    def join(self, told: Told, deadline: float) -> Waiter:
        """Wait for the outcome until `deadline` (loop time); only before it is known."""
        # The shared call ends by its own deadline; only a caller with a nearer one needs a clock.
        waiter = Waiter(self, told, deadline if deadline < self.deadline else None)
        self._waiters.add(waiter)
        return waiter

    def left_by(self, waiter: Waiter) -> None:
        """One caller less."""
        self._waiters.discard(waiter)
        if not self._waiters and not self._finished and self.task and not self.has_leader:
            self.dropped = True
            self.task.cancel()
