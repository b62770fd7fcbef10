"""Asks guests for Info when somebody lists them, so that state and version in the list are of this minute.

The list does not wait for slow guests. A guest is asked at most once in INFO_AGE_SECONDS, a bounded number at a time; nobody lists,
nobody is asked. Rejected: a ticker over all guests (it wakes a thousand idle VMs for a list that nobody reads).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from guest_contract.methods import proxied_methods
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.errors import CallError
from vmm_proxy.upstream.pool import Pool

# A list that is refreshed by hand shows what is true now; a guest is still asked at most twice a minute.
INFO_AGE_SECONDS = 30.0
# A guest that needs longer for Info is shown as unreachable.
INFO_SECONDS = 5.0
# Black-holed guests hold a place for INFO_SECONDS; so many do not keep the others from being asked soon.
REFRESHES_AT_ONCE = 64
# How long a list waits for the calls that it started: a healthy guest answers in a few milliseconds, and a list must start at once.
LIST_WAIT_SECONDS = 0.25

_INFO = next(method for method in proxied_methods() if method.name == "Info")


class InfoRefresh:
    """The calls of Info in progress."""

    def __init__(self, pool: Pool, wall_clock: Callable[[], float]) -> None:
        self._pool = pool
        self._wall_clock = wall_clock
        self._places = asyncio.Semaphore(REFRESHES_AT_ONCE)
        # By generation: what the VM before answers says nothing of the one that has the entry now.
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def refresh(self, entries: Iterable[GuestEntry]) -> None:
        """Ask those of `entries` of which nothing recent is known; returns after LIST_WAIT_SECONDS at the latest."""
        tasks = [self._refresh_soon(entry) for entry in entries if entry.running and self._due(entry.id)]
        if tasks:
            await asyncio.wait(tasks, timeout=LIST_WAIT_SECONDS)

    async def close(self) -> None:
        """End all calls."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _due(self, guest_id: str) -> bool:
        reachability = self._pool.reachability(guest_id)
        fresh = reachability.tried_at is not None and abs(self._wall_clock() - reachability.tried_at) < INFO_AGE_SECONDS
        # A guest that answered something else is asked for its version once.
        return not fresh or (
            reachability.answered_at is not None and not reachability.agent_version and not reachability.info_asked
        )

    def _refresh_soon(self, entry: GuestEntry) -> asyncio.Task[None]:
        task = self._tasks.get(entry.generation)
        if task is None:
            task = self._tasks[entry.generation] = asyncio.create_task(self._refresh(entry.id))
            task.add_done_callback(lambda _: self._tasks.pop(entry.generation, None))
        return task

    async def _refresh(self, guest_id: str) -> None:
        async with self._places:
            try:
                upstream = self._pool.upstream(guest_id)
                upstream.reachability.info_asked = True
                await upstream.call(_INFO, (), asyncio.get_running_loop().time() + INFO_SECONDS, for_fleet=True)
            except CallError:
                # The pool has noted the outcome in the guest's reachability. Nothing else is needed here.
                return
