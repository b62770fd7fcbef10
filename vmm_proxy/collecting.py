"""Asks many guests once and gives each outcome on as it comes, so that a silent guest delays nobody but itself.

All guests are asked at the same time: a bound on calls in progress would make guest 257 wait for the slowest of the first 256.
What bounds it is one call per guest, shared by every collection that asks for the same. Rejected: gather, which answers when
the last one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from vmm_proxy.guest_outcome import GuestOutcome
from vmm_proxy.outbox import Outbox
from vmm_proxy.passed_metadata import Metadata

# Calls started before other work of the loop gets its turn; starting one takes about 0.1 ms.
STARTS_AT_A_TIME = 32


# Asks one guest with this metadata until a deadline (loop time), by a wall clock; raises nothing but cancellation.
Ask = Callable[[str, Metadata, float, Callable[[], float]], Awaitable[GuestOutcome]]


async def collect(
    ask_guest: Ask, guest_ids: Sequence[str], metadata: Metadata, deadline: float, wall_clock: Callable[[], float]
) -> AsyncGenerator[GuestOutcome, None]:
    """The outcome of each of `guest_ids`, exactly once, as it comes; all have come by `deadline` (loop time)."""
    outbox = Outbox()

    async def ask(guest_id: str) -> None:
        outbox.offer(await ask_guest(guest_id, metadata, deadline, wall_clock))

    tasks: list[asyncio.Task[None]] = []

    async def ask_all() -> None:
        for number, guest_id in enumerate(guest_ids, start=1):
            tasks.append(asyncio.create_task(ask(guest_id)))
            if number % STARTS_AT_A_TIME == 0:
                await asyncio.sleep(0)

    starter = asyncio.create_task(ask_all())
    try:
        for _ in guest_ids:
            yield await outbox.take()
    finally:
        starter.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(starter, *tasks, return_exceptions=True)
