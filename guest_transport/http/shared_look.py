"""One read in progress, however many requests wait for it, and a bound for each of them.

A disk or a Docker that hangs must cost one read, not one for each scrape; and a request that gives up must not end a read that others
wait for. A failed read is None here, with its cause in the log once per change, not once per scrape. Fails open: what is unknown is
left off the page.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class SharedLook(Generic[T]):
    """Looks at one thing; `name` says in the log which."""

    def __init__(self, name: str, read: Callable[[], Awaitable[T]]) -> None:
        self.name = name
        self._read = read
        self._running: asyncio.Task[T | None] | None = None
        self._complaint = ""

    async def within(self, seconds: float) -> T | None:
        """What the look shows, or None when it fails or needs longer than `seconds`; it then goes on for those who come later."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._look(), name=f"look at {self.name}")
        running = self._running
        done, _ = await asyncio.wait({running}, timeout=max(0.0, seconds))
        return running.result() if done and not running.cancelled() else None

    async def close(self) -> None:
        """End the read in progress."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _look(self) -> T | None:
        try:
            value = await self._read()
        except Exception as error:  # noqa: BLE001 -- the top of a task; whatever the part raises means "unknown now", and is logged
            complaint = f"{type(error).__name__}: {error}"
            if complaint != self._complaint:
                log.warning("%s cannot be read, left off the pages until they can: %s", self.name, complaint)
            self._complaint = complaint
            return None
        if self._complaint:
            log.info("%s can be read again", self.name)
        self._complaint = ""
        return value


def in_thread(read: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    """`read`, which blocks, as something to await."""
    return lambda: asyncio.to_thread(read)
