"""What holds for every request together: how many at once, and the headers that each answer carries.

Counted are requests in progress, never open connections, so that idle or half-open clients take no place from a scrape. When all are
taken, the answer that has waited longest for its reader is cut for the newcomer; a peer beyond this machine has half of them at most. Where
none may be cut yet, because answers are still being made or their readers have begun to wait just now, the newcomer waits for a place, in
the order of coming and for WAIT_SECONDS, and is refused then: readers who come back as soon as they are cut would otherwise have each
place before a scraper has it. /healthz and /readyz, which are ready at once, are not counted: a server that is busy is not dead. Rejected:
uvicorn's limit_concurrency, which counts connections.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from email.utils import formatdate

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from guest_transport.http.connections import CONNECTION, BoundedConnection, peer_of

# A guest has a few scrapers and people; 64 at once is a mistake or an attack, and each takes up to a few MB while it is answered.
REQUESTS_AT_ONCE = 64
# Answers that are no page may load, run, frame and embed nothing. Pages bring a policy of their own.
NOTHING_CSP = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
# Answered whatever is in progress.
UNCOUNTED = frozenset({"/healthz", "/readyz"})
# For a place. Half of what a scraper waits by default, so that the other half is left for the answer.
WAIT_SECONDS = 5.0
# A reader who begins to wait tells nobody.
LOOK_AGAIN_SECONDS = 0.1
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": NOTHING_CSP,
    "cache-control": "no-store",
}


class RequestLimit:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, limit: int = REQUESTS_AT_ONCE) -> None:
        self._app = app
        self._limit = limit
        self._peers: Counter[str | None] = Counter()
        self._answered: dict[BoundedConnection, None] = {}
        self.in_progress = 0
        # Who waits for a place, in the order of coming, and whose request it is.
        self._waiting: dict[asyncio.Future[bool], str | None] = {}
        self._look_again: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it with 503."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["date"] = formatdate(usegmt=True)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if _two_lengths(scope):
            # Which of them holds is where two servers in a row disagree, and the second request begins (RFC 9112, 6.1).
            refusal = PlainTextResponse("bad request: both content-length and transfer-encoding\n", 400, {"connection": "close"})
            await refusal(scope, receive, send_with_headers)
            return
        if scope["path"] in UNCOUNTED:
            await self._app(scope, receive, send_with_headers)
            return
        peer = peer_of(scope.get("client"))
        if not await self._take_place(peer):
            busy = PlainTextResponse(f"busy: {self._limit} requests are being answered\n", 503, {"retry-after": "1"})
            await busy(scope, receive, send_with_headers)
            return
        connection = scope.get("state", {}).get(CONNECTION)
        if connection is not None:
            self._answered[connection] = None
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._answered.pop(connection, None)
            self._give_back(peer)

    async def _take_place(self, peer: str | None) -> bool:
        """Whether a request of `peer` may be answered: now, or once there is a place; False at once where too many wait already."""
        half = max(1, self._limit // 2)
        if len(self._waiting) >= self._limit or (peer is not None and list(self._waiting.values()).count(peer) >= half):
            return False
        loop = asyncio.get_running_loop()
        placed: asyncio.Future[bool] = loop.create_future()
        self._waiting[placed] = peer
        patience = loop.call_later(WAIT_SECONDS, self._end_waiting, placed, False)
        self._hand_out()
        try:
            return await placed
        except asyncio.CancelledError:
            if placed.done() and not placed.cancelled() and placed.result():
                self._give_back(peer)
            raise
        finally:
            patience.cancel()
            self._waiting.pop(placed, None)

    def _end_waiting(self, placed: asyncio.Future[bool], outcome: bool) -> None:
        self._waiting.pop(placed, None)
        if not placed.done():
            placed.set_result(outcome)

    def _hand_out(self) -> None:
        """Give each place to who has waited longest of those who may have it; a peer with its share holds nobody else up."""
        for placed, peer in list(self._waiting.items()):
            if not placed.done() and self._has_place(peer):
                self.in_progress += 1
                self._peers[peer] += 1
                self._end_waiting(placed, True)
        if self._look_again:
            self._look_again.cancel()
            self._look_again = None
        if self._waiting:
            slow = (each.may_be_cut_in_seconds for each in self._answered if each.paused_at is not None)
            # One that may be cut already is of a peer whose place none of those who wait can have.
            seconds = min([LOOK_AGAIN_SECONDS, *(seconds for seconds in slow if seconds > 0)])
            self._look_again = asyncio.get_running_loop().call_later(seconds, self._hand_out)

    def _give_back(self, peer: str | None) -> None:
        self.in_progress -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
        self._hand_out()

    def _has_place(self, peer: str | None) -> bool:
        """Whether a request of `peer` may be answered now, if need be in the place of who reads too slowly."""
        if not self._too_many_of(peer) and self.in_progress < self._limit:
            return True
        slowest = min(self._rivals(peer), key=lambda each: each.may_be_cut_in_seconds, default=None)
        if slowest is None or slowest.may_be_cut_in_seconds > 0:
            return False
        # Its place is free in the loop's next turns; until then one more is answered than may be.
        del self._answered[slowest]
        slowest.cut("somebody else waits for an answer")
        return True

    def _too_many_of(self, peer: str | None) -> bool:
        return peer is not None and self._peers[peer] >= max(1, self._limit // 2)

    def _rivals(self, peer: str | None) -> Iterator[BoundedConnection]:
        """Whose answers wait for their readers, and could make room for `peer`."""
        own = self._too_many_of(peer)
        return (each for each in self._answered if each.paused_at is not None and (not own or each.peer == peer))


def _two_lengths(scope: Scope) -> bool:
    names = {name for name, _ in scope["headers"]}
    return b"content-length" in names and b"transfer-encoding" in names
