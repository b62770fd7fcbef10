"""`/events`: the fleet's table as it changes, by server-sent events, for as many viewers as one look at the guests.

While somebody watches, guests are looked at every LIVE_SECONDS, and never otherwise. Of a viewer is kept which guests it has not been shown
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
from vmm_proxy.metrics.guest_answers import FleetBoard
from vmm_proxy.metrics.last_answers import LastKnown
from vmm_proxy.pages.fleet_view import FleetView

# A guest samples its cards no more often than this.
LIVE_SECONDS = 5.0
# A guest that needs longer is shown as down, and asked again at the next look.
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
    """The viewers and the beat that looks at guests for them."""

    def __init__(self, directory: Directory, board: FleetBoard, view: FleetView, stopping: asyncio.Event) -> None:
        self._board = board
        self._view = view
        self._stopping = stopping
        self._viewers: set[_Viewer] = set()
        self._places = StreamPlaces(STREAMS_AT_ONCE, "dashboards")
        self._beat: asyncio.Task[None] | None = None
        directory.listen(self._entry_changed)
        board.listen(self._looked)

    async def answer(self, request: Request) -> Response:
        """The stream of one viewer."""
        give_back = self._places.take(request)
        if request.method == "HEAD":
            give_back()
            return Response(media_type="text/event-stream")
        viewer = _Viewer()
        self._viewers.add(viewer)
        if self._beat is None or self._beat.done():
            self._beat = asyncio.create_task(self._look_again_and_again(), name="live fleet")
        stream = BoundedStream(self._events(viewer), stopping=self._stopping, seconds=STREAM_SECONDS)
        return StreamAnswer(
            _until_its_time(stream), stream, lambda: self._leave(viewer, give_back), media_type="text/event-stream"
        )

    async def close(self) -> None:
        """End the beat."""
        if self._beat is not None:
            self._beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beat

    def _leave(self, viewer: _Viewer, give_back: Callable[[], None]) -> None:
        give_back()
        self._viewers.discard(viewer)
        if not self._viewers:
            self._view.forget_rows()

    async def _look_again_and_again(self) -> None:
        while self._viewers:
            await self._board.bring_up_to_date(self._board.guests(), LOOK_SECONDS)
            await asyncio.sleep(LIVE_SECONDS)

    async def _events(self, viewer: _Viewer) -> AsyncGenerator[bytes, None]:
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


class _Viewer:
    """Which guests one viewer has not been shown since they changed, in the order in which they did."""

    def __init__(self) -> None:
        self._unseen: dict[str, None] = {}
        self._new = asyncio.Event()

    def note(self, *guest_ids: str) -> None:
        self._unseen.update(dict.fromkeys(guest_ids))
        if self._unseen:
            self._new.set()

    async def something_new(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._new.wait()
        except TimeoutError:
            return False
        return True

    def take(self, count: int) -> list[str]:
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
