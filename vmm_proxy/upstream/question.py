"""One caller's question to a guest: from its place to its outcome, over as many shared calls as that takes.

A shared call may end by the deadline of a hastier caller; whoever has time left is asked for anew. Nothing here waits: who asks is
told, so that a fleet stream can have a thousand questions open without a thousand tasks.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc

from vmm_proxy.errors import CallError
from vmm_proxy.upstream.single_flight import Answer, Flight, Outcome, Seat

# A caller whose shared call ended earlier than its own deadline asks anew, if this much is left.
WORTH_ASKING_SECONDS = 0.02


class Question:
    """Open until `told` was called with its outcome, or until it is left; `over` is called once in either case."""

    __slots__ = ("_deadline", "_flight", "_guest_id", "_join", "_over", "_seat", "_told")

    def __init__(
        self,
        guest_id: str,
        deadline: float,
        *,
        join: Callable[[], Flight],
        told: Callable[[Outcome], None],
        over: Callable[[], None],
    ) -> None:
        self._guest_id = guest_id
        self._deadline = deadline
        self._join = join
        self._told = told
        self._over = over
        self._seat: Seat | None
        self._board()

    def leave(self) -> None:
        """Stop waiting; nothing is told any more."""
        seat, self._seat = self._seat, None
        if seat:
            seat.leave()
            self._over()

    def _board(self) -> None:
        self._flight = self._join()
        self._seat = self._flight.board(self._landed, self._deadline)

    def _landed(self, outcome: Outcome | None) -> None:
        if self._seat is None:
            # Left while the flight was telling the others.
            return
        if outcome is None:
            text = f"guest {self._guest_id}: no answer within the caller's deadline"
            outcome = CallError(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        elif self._ended_early(outcome):
            try:
                self._board()
            except CallError as error:
                outcome = error.as_value()
            else:
                return
        self._seat = None
        self._over()
        self._told(outcome)

    def _ended_early(self, outcome: Outcome) -> bool:
        """Whether the guest still has time by this caller's deadline, and had none left by that of the shared call."""
        if isinstance(outcome, Answer) or outcome.answered or outcome.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            return False
        return self._deadline - self._flight.deadline >= WORTH_ASKING_SECONDS
