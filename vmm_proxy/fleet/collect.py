"""Asks many guests once and gives each outcome on as it comes, so that a silent guest delays nobody but itself.

All guests are asked as soon as the loop has time for their answers (pacing): a bound on calls in progress would make guest 257 wait for
the slowest of the first 256, and no bound has a thousand answers ready in one turn of the loop. What bounds it besides is one call per
guest, shared by every collection that asks for the same. Rejected: gather, which answers when the last one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Protocol

from vmm_proxy.fleet.outbox import Outbox
from vmm_proxy.fleet.outcome import GuestOutcome
from vmm_proxy.pacing import YOUNG_CALLS_AT_ONCE, Pace
from vmm_proxy.upstream.passed_metadata import Metadata
from vmm_proxy.upstream.question import Question

# Calls started before other work of the loop gets its turn; starting one takes about 0.1 ms.
STARTS_AT_A_TIME = 32


# Gives a guest's place to the next one.
Free = Callable[[], None]


class Ask(Protocol):
    """Asks one guest until a deadline (loop time) and tells its outcome once; None where that has happened already."""

    def __call__(
        self,
        guest_id: str,
        metadata: Metadata,
        deadline: float,
        wall_clock: Callable[[], float],
        *,
        told: Callable[[GuestOutcome], None],
    ) -> Question | None:
        """Ask."""


async def collect(
    ask_guest: Ask, guest_ids: Sequence[str], metadata: Metadata, deadline: float, wall_clock: Callable[[], float]
) -> AsyncGenerator[list[GuestOutcome], None]:
    """The outcome of each of `guest_ids`, exactly once, as they come, what comes together in one list; all have come by `deadline`
    (loop time)."""
    outbox = Outbox()
    questions: list[Question | None] = []

    def ask(guest_id: str, free: Free) -> None:
        def told(outcome: GuestOutcome) -> None:
            free()
            outbox.offer(outcome)

        questions.append(ask_guest(guest_id, metadata, deadline, wall_clock, told=told))

    starter = asyncio.create_task(ask_each(guest_ids, ask, Pace(YOUNG_CALLS_AT_ONCE)))
    try:
        missing = len(guest_ids)
        while missing:
            outcomes = await outbox.take()
            missing -= len(outcomes)
            yield outcomes
    finally:
        starter.cancel()
        await asyncio.gather(starter, return_exceptions=True)
        for question in questions:
            if question:
                question.leave()


async def ask_each(guest_ids: Iterable[str], ask: Callable[[str, Free], None], pace: Pace) -> None:
    """Call `ask` for each of them at `pace`, with what it calls when the guest has answered; the loop does other work in between."""
    for number, guest_id in enumerate(guest_ids, start=1):
        ask(guest_id, await pace.place())
        if number % STARTS_AT_A_TIME == 0:
            await asyncio.sleep(0)
