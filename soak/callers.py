"""The load: calls, collections, scrapes at a fixed rate, and streams that stay, each noted with how it ended.

The rate is kept by the clock and not by the answers, as real callers do: a product that slows down gets no easier load. Rejected: closed
loops (a hang of 5 s would be one slow call where a hundred should have failed).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

import grpc

from guest_api import guest_api_pb2
from guest_client import AsyncGuestClient, AsyncProxyClient, CallError
from guest_fleet.v1 import fleet_pb2
from soak import pages
from soak.ages import Ages
from soak.judging import BAD_PAGE, GPUS_UNKNOWN, MISSING, NOT_IN_TIME, TWICE, Book

# A call to a healthy guest takes some 10 ms, on a machine with other work a hundred times that.
CALL_SECONDS = 5.0
# A scraper's usual bound.
SCRAPE_SECONDS = 10.0
# Calls of one kind that may be in flight; beyond it the machine cannot keep up, and the calls that are not made are counted.
IN_FLIGHT = 100
# The fleet's page says something every 15 s at the least.
EVENTS_SILENCE_SECONDS = 30.0
# A stream is closed and opened again now and then: its end must leave nothing.
STREAM_LIFE_SECONDS = 12.0
WATCH_INTERVAL_SECONDS = 1.0
BETWEEN_STREAMS_SECONDS = 0.2

Call = Callable[[], Awaitable[None]]


class Callers:
    """The load on the proxy at `page` and behind `client`; `guests` tells the guests that are called, hostile ones included."""

    def __init__(self, client: AsyncProxyClient, page: Path, book: Book, ages: Ages) -> None:
        self._client = client
        self._page = page
        self._book = book
        self._ages = ages
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._firsts = itertools.count()
        self.not_made = 0

    def each(self, seconds: float, call: Call) -> None:
        """Make `call` every so many seconds from now on."""
        self._run(self._beat(seconds, call))

    def stay(self, stream: Callable[[], Awaitable[None]]) -> None:
        """Keep a stream open, each time for STREAM_LIFE_SECONDS."""
        self._run(self._again(stream))

    async def pause(self) -> None:
        """End the load: no new calls, streams closed, calls in flight answered."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()
        await asyncio.gather(*self._in_flight)

    def in_turn(self, method: str, guests: Sequence[str], seconds: float = CALL_SECONDS) -> Call:
        """A unary call of `method` to the next of `guests`, that may take so many seconds."""
        # Each method begins with another guest: all of them at one guest at once would take its four places.
        first = next(self._firsts) % len(guests)
        turns = itertools.cycle([*guests[first:], *guests[:first]])

        async def call() -> None:
            guest = next(turns)
            began = self._loop.time()
            try:
                reply = await getattr(self._client, method)(guest, timeout_seconds=seconds)
            except CallError as error:
                self._book.note(method, guest, began, self._loop.time(), status=error.code.name, text=error.reason)
                return
            self._note_reply(method, guest, began, reply)

        return call

    def ask_directly(self, client: AsyncGuestClient, guest: str) -> Call:
        """GpuInfo of an agent itself, without the proxy."""

        async def call() -> None:
            began = self._loop.time()
            try:
                reply = await client.gpu_info(timeout_seconds=CALL_SECONDS)
            except CallError as error:
                self._book.note("asked directly", guest, began, self._loop.time(), status=error.code.name, text=error.reason)
                return
            self._note_reply("asked directly", guest, began, reply)

        return call

    async def list_guests(self) -> None:
        """One list of all guests."""
        began = self._loop.time()
        try:
            async for _ in self._client.list_guests(timeout_seconds=CALL_SECONDS):
                pass
        except CallError as error:
            self._book.note("list_guests", "", began, self._loop.time(), status=error.code.name, text=error.reason)
            return
        self._book.note("list_guests", "", began, self._loop.time())

    def collect(self, expected: Callable[[], Sequence[str]]) -> Call:
        """One collection; each of the `expected` guests must be in it exactly once."""

        async def call() -> None:
            began, missing = self._loop.time(), set(expected())
            seen: set[str] = set()
            try:
                async for entry in self._client.collect_gpu_info(timeout_seconds=CALL_SECONDS):
                    if entry.guest_id in seen:
                        self._book.note("collect", entry.guest_id, began, self._loop.time(), status=TWICE)
                    seen.add(entry.guest_id)
                    self._note_entry("collect", began, entry)
            except CallError as error:
                # With a silent guest a collection lasts as long as its caller lets it, and on a busy machine its end may come a moment too
                # late: then it is the failure of those who were not in it by then.
                if error.code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._book.note("collect", "", began, self._loop.time(), status=error.code.name, text=error.reason)
                for guest in missing - seen:
                    self._book.note("collect", guest, began, self._loop.time(), status=NOT_IN_TIME)
                return
            for guest in missing - seen:
                self._book.note("collect", guest, began, self._loop.time(), status=MISSING)

        return call

    async def watch(self) -> None:
        """Watch all guests until cancelled; between two updates of one guest time is taken."""
        last: dict[str, float] = {}
        try:
            async for entry in self._client.watch_gpu_info(interval_seconds=WATCH_INTERVAL_SECONDS):
                now = self._loop.time()
                began = last.get(entry.guest_id, now)
                last[entry.guest_id] = now
                self._note_entry("watch", now, entry)
                if not self._book.disturbed(entry.guest_id, began, now):
                    self._ages.updated(entry.guest_id, now - began)
        except CallError as error:
            now = self._loop.time()
            self._book.note("watch", "", now, now, status=error.code.name, text=error.reason)

    async def follow_page(self) -> None:
        """Read the fleet page's events until cancelled."""
        began = self._loop.time()
        try:
            async for _ in pages.events(self._page, "/events", EVENTS_SILENCE_SECONDS):
                now = self._loop.time()
                self._ages.page_spoke(now - began)
                self._book.note("page event", "", now, now)
                began = now
        except pages.PageError as error:
            self._book.note("page event", "", began, self._loop.time(), status=BAD_PAGE, text=str(error))

    def scrape(self, socket: Path, guest: str = "") -> Call:
        """One scrape of /metrics: of the proxy's, whose ages are noted, or of a guest's own."""
        what = "scrape of a guest" if guest else "scrape"

        async def call() -> None:
            began = self._loop.time()
            try:
                page = await pages.get(socket, "/metrics", SCRAPE_SECONDS)
            except pages.PageError as error:
                self._book.note(what, guest, began, self._loop.time(), status=BAD_PAGE, text=str(error))
                return
            self._book.note(what, guest, began, self._loop.time())
            if not guest:
                self._ages.scraped(page, began)

        return call

    def _note_entry(self, what: str, began: float, entry: fleet_pb2.GuestGpuInfo) -> None:
        if entry.WhichOneof("outcome") == "status":
            name = grpc_code(entry.status.code)
            self._book.note(what, entry.guest_id, began, self._loop.time(), status=name, text=entry.status.message)
        else:
            self._note_reply(what, entry.guest_id, began, entry.gpu_info)

    def _note_reply(self, what: str, guest: str, began: float, reply: object) -> None:
        now = self._loop.time()
        if isinstance(reply, guest_api_pb2.GpuInfoResponse):
            if reply.error:
                self._book.note(what, guest, began, now, status=GPUS_UNKNOWN, text=reply.error)
                return
            self._ages.sampled(guest, reply.sample_age_ms / 1000)
        self._book.note(what, guest, began, now)

    async def _beat(self, seconds: float, call: Call) -> None:
        began = self._loop.time()
        in_flight: set[asyncio.Task[None]] = set()
        for number in itertools.count():
            await asyncio.sleep(began + number * seconds - self._loop.time())
            if len(in_flight) >= IN_FLIGHT:
                self.not_made += 1
                continue
            task = self._loop.create_task(_awaited(call))
            for tasks in (in_flight, self._in_flight):
                tasks.add(task)
                task.add_done_callback(tasks.discard)

    async def _again(self, stream: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                async with asyncio.timeout(STREAM_LIFE_SECONDS):
                    await stream()
            except TimeoutError:
                pass
            await asyncio.sleep(BETWEEN_STREAMS_SECONDS)

    def _run(self, coroutine: Coroutine[None, None, None]) -> None:
        self._running.add(self._loop.create_task(coroutine))


async def _awaited(call: Call) -> None:
    await call()


def grpc_code(number: int) -> str:
    """The name of a gRPC status."""
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), f"CODE_{number}")
