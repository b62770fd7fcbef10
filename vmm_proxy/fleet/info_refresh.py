"""Asks guests for Info when somebody lists them, so that state and version in the list are of this minute.

A look is made behind the answer, at most once per guest in LOOK_AGE_SECONDS and a bounded number at a time; nobody lists,
nobody is asked. Rejected: a ticker over all guests (it wakes a thousand idle VMs for a list that nobody reads).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from guest_contract.methods import proxied_methods
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.errors import CallError
from vmm_proxy.upstream.pool import Upstreams

# A list that is refreshed by hand shows what is true now; a guest is still asked at most twice a minute.
LOOK_AGE_SECONDS = 30.0
# A guest that needs longer for Info is shown as unreachable.
LOOK_SECONDS = 5.0
# Black-holed guests hold a place for LOOK_SECONDS; so many do not keep the others from being looked at soon.
LOOKS_AT_ONCE = 64
# How long a list waits for looks that it started: a healthy guest answers in a few milliseconds, and a list must start at once.
LIST_WAIT_SECONDS = 0.25

_INFO = next(method for method in proxied_methods() if method.name == "Info")


class Looks:
    """The looks in progress."""

    def __init__(self, upstreams: Upstreams, wall_clock: Callable[[], float]) -> None:
        self._upstreams = upstreams
        self._wall_clock = wall_clock
        self._places = asyncio.Semaphore(LOOKS_AT_ONCE)
        # By generation: a look at the VM before says nothing of the one that has the entry now.
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def refresh(self, entries: Iterable[GuestEntry]) -> None:
        """Look at those of `entries` of which nothing recent is known; returns after LIST_WAIT_SECONDS at the latest."""
        tasks = [self._look_soon(entry) for entry in entries if entry.running and self._due(entry.id)]
        if tasks:
            await asyncio.wait(tasks, timeout=LIST_WAIT_SECONDS)

    async def close(self) -> None:
        """End all looks."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _due(self, guest_id: str) -> bool:
        contact = self._upstreams.contact(guest_id)
        fresh = contact.tried_at is not None and abs(self._wall_clock() - contact.tried_at) < LOOK_AGE_SECONDS
        # A guest that answered something else is asked for its version once.
        return not fresh or (contact.answered_at is not None and not contact.agent_version and not contact.looked)

    def _look_soon(self, entry: GuestEntry) -> asyncio.Task[None]:
        task = self._tasks.get(entry.generation)
        if task is None:
            task = self._tasks[entry.generation] = asyncio.create_task(self._look(entry.id))
            task.add_done_callback(lambda _: self._tasks.pop(entry.generation, None))
        return task

    async def _look(self, guest_id: str) -> None:
        async with self._places:
            try:
                upstream = self._upstreams.reach(guest_id)
                upstream.contact.looked = True
                await upstream.call(_INFO, (), asyncio.get_running_loop().time() + LOOK_SECONDS, for_fleet=True)
            except CallError:
                # The outcome stands in the guest's contact, which is all that a look is for.
                return
