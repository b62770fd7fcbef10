"""One asynchronous read for all who ask at one time.

A hundred callers of NetworkInfo must not be a hundred `wg show`. A caller that gives up leaves the read to the others. Rejected: keeping
the answer for a while (the next caller would get an old one without knowing it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedRead(Generic[T]):
    """`read`, at most once at a time; `name` is that of its task."""

    def __init__(self, name: str, read: Callable[[], Awaitable[T]]) -> None:
        self._name = name
        self._read = read
        self._running: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """What the read in progress, or one that begins now, returns or raises. Do not change it: others hold it too."""
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name=self._name)
            self._running.add_done_callback(self._over)
        return await asyncio.shield(self._running)

    async def _run(self) -> T:
        return await self._read()

    def _over(self, task: asyncio.Task[T]) -> None:
        self._running = None
        if not task.cancelled():
            # Read once: a failure that nobody waits for any more is no surprise worth a log line.
            task.exception()
