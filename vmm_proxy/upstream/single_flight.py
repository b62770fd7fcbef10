"""The calls to one guest in progress, of which identical ones are one: who comes first makes it, the others wait for its outcome.

What a call is identical by is its key; one without a key is nobody else's. A call takes its places when it begins and gives them back
when it has an outcome, before anybody is told it, so that whoever then asks again finds them free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from vmm_proxy.errors import CallError
from vmm_proxy.upstream.limits import Limit
from vmm_proxy.upstream.question import Question
from vmm_proxy.upstream.shared_call import Outcome, SharedCall

# Makes the call by a deadline (loop time). A failure is its outcome; it raises nothing.
Make = Callable[[float], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call as one caller wants it: `key` None for one that is never shared, `places` that it takes if it is made."""

    key: Hashable | None
    deadline: float
    make: Make
    places: Sequence[Limit]


class SingleFlight:
    """The calls to the guest `guest_id`."""

    def __init__(self, guest_id: str) -> None:
        self._guest_id = guest_id
        self._in_progress: set[SharedCall] = set()
        self._shared: dict[Hashable, SharedCall] = {}
        self._closed: CallError | None = None

    async def run(self, wanted: Wanted) -> Outcome:
        """The outcome of the call; raises CallError where there is no place for it, or everything was closed."""
        if wanted.key is not None and wanted.key in self._shared:
            return await self._wait(wanted)
        shared, end = self._begin(wanted)
        shared.take_leader()
        try:
            return await self._carry(shared, wanted.make, end)
        except asyncio.CancelledError:
            if shared.abandoned is None:
                end()
                shared.lose_leader()
                raise
            if _cancelled_besides():
                raise
            return shared.abandoned
        finally:
            end()

    def ask(self, wanted: Wanted, told: Callable[[Outcome], None], over: Callable[[], None]) -> Question:
        """As run(), but `told` gets the outcome, which others share: not to be raised. `over` is called when that is over, or left."""
        return Question(self._guest_id, wanted.deadline, join=partial(self._join, wanted), told=told, over=over)

    async def close(self, why: CallError) -> None:
        """End every call with `why`; further ones fail alike."""
        self._closed = why
        for shared in list(self._in_progress):
            shared.abandon(why)
        await asyncio.gather(
            *(shared.task for shared in self._in_progress if shared.task and not shared.has_leader), return_exceptions=True
        )

    async def _wait(self, wanted: Wanted) -> Outcome:
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def told(outcome: Outcome) -> None:
            # The caller may have been cancelled just now.
            if not answered.done():
                answered.set_result(outcome)

        question = self.ask(wanted, told, lambda: None)
        try:
            return await answered
        finally:
            question.leave()

    def _join(self, wanted: Wanted) -> SharedCall:
        if self._closed:
            raise self._closed.again()
        shared = self._shared.get(wanted.key) if wanted.key is not None else None
        if shared is None or shared.dropped:
            shared, end = self._begin(wanted)
            task = shared.task = asyncio.create_task(self._carry(shared, wanted.make, end))
            # For a task that was cancelled, perhaps before it began.
            task.add_done_callback(lambda _: end())
        return shared

    def _begin(self, wanted: Wanted) -> tuple[SharedCall, Callable[[], None]]:
        """A shared call with its places taken, and what ends it."""
        if self._closed:
            raise self._closed.again()
        taken: list[Limit] = []
        try:
            for place in wanted.places:
                place.take()
                taken.append(place)
        except CallError:
            for place in taken:
                place.give_back()
            raise
        shared = SharedCall(wanted.deadline)
        self._in_progress.add(shared)
        if wanted.key is not None:
            self._shared[wanted.key] = shared
        return shared, partial(self._end, shared, wanted)

    def _end(self, shared: SharedCall, wanted: Wanted) -> None:
        """Give the places of `shared` back and let nobody join it any more; the first time counts."""
        if shared not in self._in_progress:
            return
        self._in_progress.discard(shared)
        # A task that was cancelled keeps where that was, and its frames know the shared call.
        shared.task = None
        for place in wanted.places:
            place.give_back()
        if self._shared.get(wanted.key) is shared:
            del self._shared[wanted.key]

    async def _carry(self, shared: SharedCall, make: Make, end: Callable[[], None]) -> Outcome:
        outcome = await make(shared.deadline)
        end()
        shared.finish(outcome)
        return outcome


def _cancelled_besides() -> bool:
    """Take back a cancellation that was meant for the call and not for its caller's task; whether the task was cancelled as well."""
    task = asyncio.current_task()
    return task is not None and task.uncancel() > 0
