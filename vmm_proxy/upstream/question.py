"""One caller's question to a guest: from its place to its outcome, over as many shared calls as that takes.

A shared call may end by the deadline of a hastier caller; whoever has time left is asked for anew. Nothing here waits: who asks is
told, so that a fleet stream can have a thousand questions open without a thousand tasks.
"""

from __future__ import annotations

from collections.abc import Callable

import grpc

from vmm_proxy.errors import CallError
from vmm_proxy.upstream.shared_call import Answer, Outcome, SharedCall, Waiter

# A caller whose shared call ended earlier than its own deadline asks anew, if this much is left.
WORTH_ASKING_SECONDS = 0.02


class Question:
    """Open until `told` was called with its outcome, or until it is left; `over` is called once in either case."""

    __slots__ = ("_deadline", "_guest_id", "_join", "_over", "_shared_call", "_told", "_waiter")

    def __init__(
        self,
        guest_id: str,
        deadline: float,
        *,
        join: Callable[[], SharedCall],
        told: Callable[[Outcome], None],
        over: Callable[[], None],
    ) -> None:
        self._guest_id = guest_id
        self._deadline = deadline
        self._join = join
        self._told = told
        self._over = over
        self._waiter: Waiter | None
        self._wait_for_shared_call()

    def leave(self) -> None:
        """Stop waiting; nothing is told any more."""
        waiter, self._waiter = self._waiter, None
        if waiter:
            waiter.leave()
            self._over()

    def _wait_for_shared_call(self) -> None:
        self._shared_call = self._join()
        self._waiter = self._shared_call.join(self._finished, self._deadline)

    def _finished(self, outcome: Outcome | None) -> None:
        if self._waiter is None:
            # Left while the shared call was telling the others.
            return
        if outcome is None:
            text = f"guest {self._guest_id}: no answer within the caller's deadline"
            outcome = CallError(grpc.StatusCode.DEADLINE_EXCEEDED, text)
        elif self._ended_early(outcome):
            try:
                self._wait_for_shared_call()
            except CallError as error:
                outcome = error.as_value()
            else:
                return
        self._waiter = None
        self._over()
        self._told(outcome)

    def _ended_early(self, outcome: Outcome) -> bool:
        """Whether the guest still has time by this caller's deadline, and had none left by that of the shared call."""
        if isinstance(outcome, Answer) or outcome.answered or outcome.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
            return False
        return self._deadline - self._shared_call.deadline >= WORTH_ASKING_SECONDS
