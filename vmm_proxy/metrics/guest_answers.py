"""What every running guest last answered. Guests are asked when a page or a scrape needs it, and never otherwise.

A reader gets what is known. Guests that answered promptly last time are waited for a moment, so that their figures are of now;
a guest of which nothing is known is waited for as long as the page may take; everything else comes behind the page. So a dead guest delays
the first page only, and nobody else's answer. One refresh of a guest at a time, however many scrapers there are. Rejected: a ticker (it
wakes a thousand idle VMs for a page nobody reads), and serving only what was known before (a scrape each minute shows the minute before).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from guest_api.guest_api_pb2 import GpuInfoResponse, ListContainersResponse, NetworkInformation, SystemInfo
from guest_contract.methods import Method, proxied_methods
from guest_transport.process.clock import Clock, boottime
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.errors import CallError
from vmm_proxy.metrics.last_answers import LastKnown, Part
from vmm_proxy.pacing import Pace
from vmm_proxy.upstream.pool import Pool
from vmm_proxy.upstream.shared_call import Answer

log = logging.getLogger(__name__)

# Two scrapers that come together share a refresh. A guest itself samples its cards every 5 s at most.
LOOK_AGAIN_SECONDS = 1.0
# Guests that answered within this are waited for this long: a person does not notice it, a scraper neither.
PROMPT_SECONDS = 0.1
# A guest is told to be late a little before the page goes, so that the page can say it.
LOOK_SHARE = 0.9
# What each guest is given at least, or as much as the first one if that is less: one that is asked last in a large fleet must not be called
# down for that.
LEAST_LOOK_SECONDS = 2.0
# As old as a guest's own page lets its list become.
CONTAINERS_SECONDS = 15.0
# Addresses change rarely, and the first question costs the guest's agent 10 MiB.
NETWORK_SECONDS = 60.0
NETWORK_CALL_SECONDS = 5.0
# A guest gives its container engine 10 s, and then says what is wrong with it.
CONTAINERS_CALL_SECONDS = 12.0
# 8 cards take 1.6 KB, 100 containers 20 KB. A card's text stands on eight lines of the page, so a bigger answer could crowd out the others.
KEPT_ANSWER_BYTES = 64 * 1024
CARDS_LIMIT = 256

_METHODS = {method.name: method for method in proxied_methods()}
M = TypeVar("M", bound=Message)

# Called when a guest's refresh ended, its entry changed, or it left (with False).
Listener = Callable[[LastKnown, bool], None]


class GuestAnswers:
    """The guests of `directory` that run, each with what it last answered."""

    def __init__(self, directory: Directory, pool: Pool, *, with_containers: bool = True, clock: Clock = boottime) -> None:
        self._pool = pool
        self._with_containers = with_containers
        self.clock = clock
        self._guests: dict[str, LastKnown] = {
            entry.id: LastKnown(entry, pool.reachability(entry.id)) for entry in directory.after() if entry.running
        }
        self._ordered: tuple[LastKnown, ...] | None = None
        self._pace = Pace()
        # Waiting for their refresh or in it; for others to read.
        self.looking: set[LastKnown] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: set[_Wait] = set()
        self._listeners: list[Listener] = []
        directory.subscribe(self._changed)

    def guests(self) -> Sequence[LastKnown]:
        """Every running guest, in id order."""
        if self._ordered is None:
            self._ordered = tuple(self._guests[guest_id] for guest_id in sorted(self._guests))
        return self._ordered

    def get(self, guest_id: str) -> LastKnown | None:
        """The running guest with this id."""
        return self._guests.get(guest_id)

    def subscribe(self, listener: Listener) -> None:
        """Tell `listener` of every guest that is new, looked at, changed or gone."""
        self._listeners.append(listener)

    async def bring_up_to_date(self, guests: Sequence[LastKnown], seconds: float) -> None:
        """Have `guests` looked at, and return when what is known is worth showing: after `seconds` at the latest."""
        wait = _Wait()
        now = self.clock()
        due: list[LastKnown] = []
        for guest in guests:
            if guest not in self.looking and now - guest.asked_at >= LOOK_AGAIN_SECONDS:
                guest.asked_at = now
                due.append(guest)
        self.looking.update(due)
        for guest in guests:
            if guest in self.looking:
                wait.add(guest)
        self._waits.add(wait)
        try:
            if due:
                self._keep(asyncio.create_task(self._look_at_all(due, seconds * LOOK_SHARE)))
            await wait.worth_showing(seconds)
        finally:
            self._waits.discard(wait)

    async def ask_for_network(self, guest: LastKnown, seconds: float) -> None:
        """Have the network of `guest` looked at, if that is due, and wait for it for `seconds` at most."""
        now = self.clock()
        if now - guest.network_asked_at < NETWORK_SECONDS:
            return
        guest.network_asked_at = now
        deadline = asyncio.get_running_loop().time() + NETWORK_CALL_SECONDS
        task = asyncio.create_task(self._ask(guest, guest.network, "NetworkInfo", NetworkInformation, deadline))
        self._keep(task)
        await asyncio.wait({task}, timeout=seconds)

    async def close(self) -> None:
        """End every refresh."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_at_all(self, guests: Sequence[LastKnown], seconds: float) -> None:
        loop = asyncio.get_running_loop()
        ends, least = loop.time() + seconds, min(seconds, LEAST_LOOK_SECONDS)
        for guest in guests:
            self._keep(await self._pace.start(self._look(guest, ends, least)))
            self._look_at_containers(guest)
            # Its first step, in which a channel may be made, in a turn of its own.
            await asyncio.sleep(0)

    async def _look(self, guest: LastKnown, ends: float, least_seconds: float) -> None:
        started = self.clock()
        deadline = max(ends, asyncio.get_running_loop().time() + least_seconds)
        await asyncio.gather(
            self._ask(guest, guest.gpus, "GpuInfo", GpuInfoResponse, deadline),
            self._ask(guest, guest.system, "SysInfo", SystemInfo, deadline),
        )
        guest.look_seconds = self.clock() - started
        self.looking.discard(guest)
        self._tell(guest)

    def _look_at_containers(self, guest: LastKnown) -> None:
        now = self.clock()
        if not self._with_containers or now - guest.containers_asked_at < CONTAINERS_SECONDS:
            return
        guest.containers_asked_at = now
        deadline = asyncio.get_running_loop().time() + CONTAINERS_CALL_SECONDS
        asking = self._ask(guest, guest.containers, "ListContainers", ListContainersResponse, deadline)
        self._keep(asyncio.create_task(asking))

    async def _ask(self, guest: LastKnown, part: Part[M], method_name: str, kind: type[M], deadline: float) -> None:
        """Ask one thing and keep the outcome; raises nothing but cancellation."""
        method: Method = _METHODS[method_name]
        try:
            answer = await self._pool.upstream(guest.id).call(method, (), deadline, for_fleet=True)
            message = _fitting(answer, kind)
        except CallError as error:
            part.failure = error.as_value()
        except Exception:
            log.exception("asking guest %s for %s failed in the proxy itself", guest.id, method_name)
            part.failure = CallError(grpc.StatusCode.INTERNAL, f"guest {guest.id}: a fault of the proxy; its log says more")
        else:
            part.answer, part.received_at, part.failure = message, self.clock(), None

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, guest: LastKnown) -> None:
        guest.version += 1
        for wait in self._waits:
            wait.ended(guest)
        if self._guests.get(guest.id) is guest:
            for listener in self._listeners:
                listener(guest, True)

    def _changed(self, before: GuestEntry | None, after: GuestEntry | None) -> None:
        known = self._guests.get(before.id) if before else None
        if known and before and after and before.generation == after.generation:
            known.entry = after
            known.version += 1
        else:
            if known:
                self._leave(known)
            if after is None or not after.running:
                return
            known = self._guests[after.id] = LastKnown(after, self._pool.reachability(after.id))
            self._ordered = None
        for listener in self._listeners:
            listener(known, True)

    def _leave(self, guest: LastKnown) -> None:
        del self._guests[guest.id]
        self._ordered = None
        for wait in self._waits:
            wait.ended(guest)
        for listener in self._listeners:
            listener(guest, False)


def _fitting(answer: Answer, kind: type[M]) -> M:
    """The message of `answer`; raises CallError when it is too big for a page of all guests."""
    message = answer.message
    if not isinstance(message, kind):
        raise TypeError(f"{kind.DESCRIPTOR.name} was expected, not {type(message).__name__}")
    cards = len(message.gpus) if isinstance(message, GpuInfoResponse) else 0
    if answer.wire_bytes > KEPT_ANSWER_BYTES or cards > CARDS_LIMIT:
        text = f"its {kind.DESCRIPTOR.name} is too big for a page of all guests: {answer.wire_bytes} bytes"
        raise CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, text, answered=True)
    return message


class _Wait:
    """One page that waits: for guests that will answer soon, and for those of which nothing is known."""

    def __init__(self) -> None:
        self._prompt: set[LastKnown] = set()
        self._unknown: set[LastKnown] = set()
        self._no_prompt = asyncio.Event()
        self._no_unknown = asyncio.Event()

    def add(self, guest: LastKnown) -> None:
        if guest.look_seconds is None:
            self._unknown.add(guest)
        elif guest.up and guest.look_seconds <= PROMPT_SECONDS:
            self._prompt.add(guest)

    def ended(self, guest: LastKnown) -> None:
        self._prompt.discard(guest)
        self._unknown.discard(guest)
        self._say()

    async def worth_showing(self, seconds: float) -> None:
        self._say()
        await asyncio.gather(
            _within(self._no_prompt, min(seconds, PROMPT_SECONDS)),
            _within(self._no_unknown, seconds),
        )

    def _say(self) -> None:
        if not self._prompt:
            self._no_prompt.set()
        if not self._unknown:
            self._no_unknown.set()


async def _within(event: asyncio.Event, seconds: float) -> None:
    if event.is_set():
        return
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
