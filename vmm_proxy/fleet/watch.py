"""Asks guests again and again for those who watch them: one question per guest and interval, however many watch.

Watchers with one interval and one max-age share a Poller, which asks each guest that any of them wants and gives every outcome to all
who want it. A guest that has not answered yet is not asked again. The poller ends with its last watcher. What is kept is the answer of one
generation of a guest's entry, and each watcher judges what it sends when it sends it: who may see what changes within an interval, which
can be a day. Rejected: a timer per watcher (a call per watcher), and one fixed interval for all (the slowest watcher would set the load).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from guest_contract.methods import GPU_INFO_BOUND_SECONDS
from vmm_proxy.directory.selector import Guests, Selection
from vmm_proxy.errors import not_known
from vmm_proxy.fleet.collect import Free, ask_each
from vmm_proxy.fleet.outbox import Outbox
from vmm_proxy.fleet.outcome import GuestOutcome, ask_gpu_info
from vmm_proxy.pacing import YOUNG_CALLS_AT_ONCE, Pace
from vmm_proxy.upstream.passed_metadata import Metadata, deciding
from vmm_proxy.upstream.pool import Pool
from vmm_proxy.upstream.question import Question

# The contract's words at WatchGpuInfoRequest.interval.
DEFAULT_INTERVAL_SECONDS = 5.0
LEAST_INTERVAL_SECONDS = 1.0
# Longer than a day is a typing error; the bound keeps the clock's arithmetic honest.
LONGEST_INTERVAL_SECONDS = 86400.0
# A bigger answer is not kept for the next watcher, who then asks the guest itself; 8 cards take 1.6 KB.
KEPT_ANSWER_BYTES = 64 * 1024

Sleep = Callable[[float], Awaitable[None]]


class Watcher:
    """One reader: what it wants of the `guests` that it sees, and what waits for it."""

    def __init__(self, selection: Selection, guests: Guests, wall_clock: Callable[[], float]) -> None:
        self._selection = selection
        self._guests = guests
        self._wall_clock = wall_clock
        self.outbox = Outbox()
        # The generations of the guests' entries, by id.
        self.wanted: dict[str, int] = {}

    def choose(self) -> None:
        """Choose again from the guests of now; one that is asked for by name and not seen is answered here, and nobody is asked."""
        chosen = self._selection.choose(self._guests)
        self.wanted = {guest_id: entry.generation for guest_id in chosen if (entry := self._guests.get(guest_id))}
        for guest_id in chosen:
            if guest_id not in self.wanted:
                self.outbox.offer(GuestOutcome(guest_id, not_known(guest_id), self._wall_clock(), 0.0))

    async def take(self) -> list[GuestOutcome]:
        """What waits and may be sent now, as much as one message holds; raises OutboxClosedError when the stream is to end."""
        while True:
            judged = [self._judged(outcome) for outcome in await self.outbox.take()]
            if sendable := [outcome for outcome in judged if outcome]:
                return sendable

    def _judged(self, outcome: GuestOutcome) -> GuestOutcome | None:
        guest_id = outcome.guest_id
        entry = self._guests.get(guest_id)
        if entry is None:
            return outcome.failed_instead(not_known(guest_id)) if self._selection.names(guest_id) else None
        current = outcome.generation in {0, entry.generation}
        return outcome if current and self._selection.matches(entry) else None


class Watches:
    """The pollers by interval, and by how old an answer may be."""

    def __init__(self, pool: Pool, wall_clock: Callable[[], float], sleep: Sleep = asyncio.sleep) -> None:
        self._pool = pool
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._pollers: dict[tuple[float, Metadata], Poller] = {}
        self._watchers: set[Watcher] = set()

    @property
    def pollers(self) -> int:
        """How many intervals (with a max-age of their own each) are being watched."""
        return len(self._pollers)

    @property
    def watchers(self) -> int:
        """How many read."""
        return len(self._watchers)

    def join(self, selection: Selection, guests: Guests, interval_seconds: float, metadata: Metadata = ()) -> Watcher:
        """A new watcher of those of `guests` that are selected; end it with leave() and the same `interval_seconds` and `metadata`."""
        watcher = Watcher(selection, guests, self._wall_clock)
        key = (interval_seconds, deciding(metadata))
        poller = self._pollers.get(key)
        if poller is None:
            poller = self._pollers[key] = Poller(interval_seconds, key[1], self._pool, self._wall_clock, self._sleep)
        self._watchers.add(watcher)
        poller.add(watcher)
        return watcher

    async def leave(self, watcher: Watcher, interval_seconds: float, metadata: Metadata = ()) -> None:
        """End a watcher, and its poller if it was the last."""
        self._watchers.discard(watcher)
        key = (interval_seconds, deciding(metadata))
        poller = self._pollers[key]
        if poller.remove(watcher):
            del self._pollers[key]
            await poller.close()

    def end(self) -> None:
        """End every stream: the proxy stops."""
        for watcher in self._watchers:
            watcher.outbox.close()


class Poller:
    """Asks the guests that its watchers want, every `interval_seconds`."""

    def __init__(
        self,
        interval_seconds: float,
        metadata: Metadata,
        pool: Pool,
        wall_clock: Callable[[], float],
        sleep: Sleep,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._metadata = metadata
        self._pool = pool
        self._wall_clock = wall_clock
        self._sleep = sleep
        self._watchers: set[Watcher] = set()
        self._last: dict[str, GuestOutcome] = {}
        # Guests that have not answered yet.
        self._asking: dict[str, Question | None] = {}
        self._starting: set[asyncio.Task[None]] = set()
        self._pace = Pace(YOUNG_CALLS_AT_ONCE)
        self._task = asyncio.create_task(self._run())

    def add(self, watcher: Watcher) -> None:
        """Serve `watcher` with what is known now, and ask at once for the rest."""
        self._watchers.add(watcher)
        watcher.choose()
        unknown = []
        for guest_id in sorted(watcher.wanted):
            known = self._last.get(guest_id)
            if known and known.generation == watcher.wanted[guest_id]:
                watcher.outbox.offer(known)
            else:
                unknown.append(guest_id)
        if unknown:
            starting = asyncio.create_task(ask_each(unknown, self._ask_first, self._pace))
            self._starting.add(starting)
            starting.add_done_callback(self._starting.discard)

    def remove(self, watcher: Watcher) -> bool:
        """Forget `watcher`; whether it was the last."""
        self._watchers.discard(watcher)
        return not self._watchers

    async def close(self) -> None:
        """End the poller and its questions."""
        tasks = [self._task, *self._starting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for question in self._asking.values():
            if question:
                question.leave()

    async def _run(self) -> None:
        while True:
            await self._sleep(self._interval_seconds)
            for watcher in self._watchers:
                watcher.choose()
            wanted = frozenset[str]().union(*(watcher.wanted for watcher in self._watchers))
            self._last = {guest_id: last for guest_id, last in self._last.items() if guest_id in wanted and self._current(last)}
            await ask_each(sorted(wanted), self._ask, self._pace)

    def _ask_first(self, guest_id: str, free: Free) -> None:
        # Another watcher's question may have been answered before this one's turn came; its outcome went to all who want it.
        last = self._last.get(guest_id)
        if last is None or not self._current(last):
            self._ask(guest_id, free)
        else:
            free()

    def _ask(self, guest_id: str, free: Free = lambda: None) -> None:
        if guest_id in self._asking:
            free()
            return
        self._asking[guest_id] = None
        deadline = asyncio.get_running_loop().time() + GPU_INFO_BOUND_SECONDS
        question = ask_gpu_info(self._pool, guest_id, self._metadata, deadline, self._wall_clock, told=partial(self._told, free))
        if question:
            self._asking[guest_id] = question

    def _told(self, free: Free, outcome: GuestOutcome) -> None:
        free()
        guest_id = outcome.guest_id
        del self._asking[guest_id]
        if outcome.wire_bytes <= KEPT_ANSWER_BYTES and self._current(outcome):
            self._last[guest_id] = outcome
        else:
            self._last.pop(guest_id, None)
        for watcher in self._watchers:
            if guest_id in watcher.wanted:
                watcher.outbox.offer(outcome)
        if outcome.generation and not self._current(outcome) and self._pool.generation(guest_id):
            # Its VM is another one since it was asked.
            self._ask(guest_id)

    def _current(self, outcome: GuestOutcome) -> bool:
        return outcome.generation == self._pool.generation(outcome.guest_id)
