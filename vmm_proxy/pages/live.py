"""`/events`: the fleet's table as it changes, by server-sent events, for any number of viewers from one refresh of the guests.

While somebody watches, the guests are refreshed every LIVE_SECONDS, and never otherwise. For each viewer are kept the guests not yet sent
since they changed, so that one who reads slowly misses what was overtaken, never the newest, and costs no memory for it. Rejected: a
websocket (nothing is ever said back), and sending values for the page to make into rows (a second place where a guest's text is escaped).

Format: WHATWG HTML, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response

from guest_transport.http.bounded_stream import BoundedStream, StreamAnswer, StreamPlaces
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.metrics.guest_answers import GuestAnswers
from vmm_proxy.metrics.last_answers import LastKnown
from vmm_proxy.pages.fleet_view import FleetView

# A guest samples its cards no more often than this.
LIVE_SECONDS = 5.0
# A guest that needs longer is shown as down, and asked again at the next refresh.
LOOK_SECONDS = 4.5
# A quarter of the requests at once: people who watch must not keep a scraper out.
STREAMS_AT_ONCE = 16
# A forgotten tab comes back by itself; a client that is gone without a word does not.
STREAM_SECONDS = 3600.0
# Shorter than the minute after which proxies on the way close what is silent.
PULSE_SECONDS = 15.0
# When a browser tries again after a lost connection.
RETRY_MILLISECONDS = 3000
# Guests in one event; 16 with 8 cards take 100 KB.
GUESTS_AT_ONCE = 16
# Changes that come together are sent together.
GATHER_SECONDS = 0.1


class LiveFleet:
    """The viewers and the poller that refreshes the guests for them."""

    def __init__(self, directory: Directory, guest_answers: GuestAnswers, view: FleetView, stopping: asyncio.Event) -> None:
        self._answers = guest_answers
        self._view = view
        self._stopping = stopping
        self._viewers: set[Viewer] = set()
        # One for each viewer.
        self.places = StreamPlaces(STREAMS_AT_ONCE, "dashboards")
        self._poller: asyncio.Task[None] | None = None
        directory.subscribe(self._entry_changed)
        guest_answers.subscribe(self._looked)

    async def answer(self, request: Request) -> Response:
        """The stream of one viewer."""
        give_back = self.places.take(request)
        if request.method == "HEAD":
            give_back()
            return Response(media_type="text/event-stream")
        viewer = Viewer()
        self._viewers.add(viewer)
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll(), name="live fleet")
        stream = BoundedStream(self._events(viewer), stopping=self._stopping, seconds=STREAM_SECONDS)
        return StreamAnswer(
            _until_its_time(stream), stream, lambda: self._leave(viewer, give_back), media_type="text/event-stream"
        )

    async def close(self) -> None:
        """End the poller."""
        if self._poller is not None:
            self._poller.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._poller

    def _leave(self, viewer: Viewer, give_back: Callable[[], None]) -> None:
        give_back()
        self._viewers.discard(viewer)
        if not self._viewers:
            self._view.forget_rows()

    async def _poll(self) -> None:
        while self._viewers:
            await self._answers.bring_up_to_date(self._answers.guests(), LOOK_SECONDS)
            await asyncio.sleep(LIVE_SECONDS)

    async def _events(self, viewer: Viewer) -> AsyncGenerator[bytes, None]:
        entries = self._view.entries()
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode() + _event("guests", [entry.id for entry in entries])
        # A stopped guest is not looked at, and may have changed since the page was made.
        viewer.note(*(entry.id for entry in entries if not entry.running))
        while True:
            if not await viewer.something_new(PULSE_SECONDS):
                yield _event("pulse", None)
                continue
            await asyncio.sleep(GATHER_SECONDS)
            while guest_ids := viewer.take(GUESTS_AT_ONCE):
                yield await self._shown(guest_ids)
            yield _event("summary", self._view.pages.summary(self._view.summary()))

    async def _shown(self, guest_ids: list[str]) -> bytes:
        made = await self._view.rows_of(guest_ids)
        rows = [html for html in made.values() if html is not None]
        gone = [guest_id for guest_id, html in made.items() if html is None]
        return (_event("rows", rows) if rows else b"") + (_event("gone", gone) if gone else b"")

    def _entry_changed(self, before: GuestEntry | None, after: GuestEntry | None) -> None:
        if entry := after or before:
            self._note(entry.id)

    def _looked(self, guest: LastKnown, _here: bool) -> None:
        self._note(guest.id)

    def _note(self, guest_id: str) -> None:
        for viewer in self._viewers:
            viewer.note(guest_id)


class Viewer:
    """The guests that changed since they were last sent to one viewer, in the order of their changes."""

    def __init__(self) -> None:
        self._unseen: dict[str, None] = {}
        self._new = asyncio.Event()

    def note(self, *guest_ids: str) -> None:
        """These changed."""
        self._unseen.update(dict.fromkeys(guest_ids))
        if self._unseen:
            self._new.set()

    async def something_new(self, seconds: float) -> bool:
        """Whether something changed, waited for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._new.wait()
        except TimeoutError:
            return False
        return True

    def take(self, count: int) -> list[str]:
        """Up to `count` of them, which are sent now."""
        taken = list(self._unseen)[:count]
        for guest_id in taken:
            del self._unseen[guest_id]
        if not self._unseen:
            self._new.clear()
        return taken


async def _until_its_time(stream: BoundedStream) -> AsyncIterator[bytes]:
    with contextlib.suppress(TimeoutError):
        async for chunk in stream:
            yield chunk


def _event(name: str, data: object) -> bytes:
    # JSON has no line breaks of its own, and so none that a guest could put into the stream. ASCII, for lone surrogates are no UTF-8.
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")
