"""When Python looks for garbage in cycles: often among young objects, and through everything at times of our own choosing.

Python starts a full collection whenever a quarter more objects stayed than there were. With a thousand guests that is in the middle of a
page: 100,000 objects, 20 to 60 ms in which nobody is answered. Never is no answer either: libraries leave cycles (connections that closed,
streams that were cancelled), and the proxy grew by 20 MiB an hour under a disturbed fleet (docs/decisions/memory.md). So a full collection
runs at a fixed interval, and at no other time. Rejected: gc.freeze() after each one, which keeps for ever what became garbage later.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator

from guest_transport.process.every import Sleep, every

log = logging.getLogger(__name__)

# As Python has them.
YOUNG_COLLECTIONS = (700, 10)
# More collections of the middle generation than a process lives to see: no full collection begins by itself.
NEVER = 2**31 - 1
# What 1,200 objects a minute leave in this time is 3 MiB; one hold of the loop in this time is one call in ten thousand.
FULL_COLLECTION_SECONDS = 600.0


def collect_rarely() -> None:
    """From now on Python begins no full collection by itself. What is there at the start stays, and is never looked at again."""
    gc.freeze()
    gc.set_threshold(*YOUNG_COLLECTIONS, NEVER)


async def collect() -> None:
    """One full collection."""
    began = time.perf_counter()
    found = gc.collect()
    log.debug("garbage: %d objects found in %.1f ms", found, (time.perf_counter() - began) * 1000)


@contextlib.asynccontextmanager
async def collected(every_seconds: float = FULL_COLLECTION_SECONDS, sleep: Sleep = asyncio.sleep) -> AsyncIterator[None]:
    """A full collection every `every_seconds` while the context lasts."""
    collect_rarely()
    async with every(every_seconds, collect, sleep):
        yield
