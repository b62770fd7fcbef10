"""Does something again and again while a context lasts: `async with every(60.0, work): ...`.

It waits first, and then after each time, so that work which takes long never runs twice at once. A failure ends it and is raised at the
end of the context: what is run here reports its own. Rejected: loop.call_later by hand (a timer that is not cancelled outlives its owner).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

Sleep = Callable[[float], Awaitable[None]]


@contextlib.asynccontextmanager
async def every(seconds: float, work: Callable[[], Awaitable[object]], sleep: Sleep = asyncio.sleep) -> AsyncIterator[None]:
    """Await `work()` every `seconds` while the context lasts."""

    async def run() -> None:
        while True:
            await sleep(seconds)
            await work()

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
