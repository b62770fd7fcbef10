"""`/guests/ID` and the part of it that changes: one guest in detail.

The guest is asked when somebody opens the page, and as often as the page comes again. Made in a thread, because a guest with 64 cards takes
some 0.1 s. What was made of a VM that is not the entry's any more is thrown away, and the page is made anew. Whoever sees the fleet's page
sees these: they have no roles of their own.
"""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from guest_transport.http.answers import answer
from guest_transport.http.pages import HTML, PAGE_CSP
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.metrics.guest_answers import GuestAnswers
from vmm_proxy.metrics.last_answers import LastKnown
from vmm_proxy.pages.dashboard.guest import Past, guest_view, past_of
from vmm_proxy.pages.dashboard.history import History
from vmm_proxy.pages.dashboard.render import Pages

# As for the fleet's page.
PAGE_SECONDS = 2.0


class GuestPage:
    """Answers the addresses of one guest."""

    def __init__(
        self, directory: Directory, guest_answers: GuestAnswers, history: History, pages: Pages, *, with_containers: bool
    ) -> None:
        self._directory = directory
        self._answers = guest_answers
        self._history = history
        self._pages = pages
        self._with_containers = with_containers

    async def page(self, request: Request) -> Response:
        """The whole page."""
        return await self._answer(request, whole=True)

    async def live(self, request: Request) -> Response:
        """What the page fetches to refresh itself."""
        return await self._answer(request, whole=False)

    async def _answer(self, request: Request, *, whole: bool) -> Response:
        guest_id = request.path_params["id"]
        if known := self._answers.get(guest_id):
            looks = self._answers.bring_up_to_date([known], PAGE_SECONDS), self._answers.ask_for_network(known, PAGE_SECONDS)
            await asyncio.gather(*looks)
        while True:
            entry = self._directory.get(guest_id)
            if entry is None:
                raise HTTPException(404, "no guest of this id is known")
            known, now = self._answers.get(guest_id), self._answers.clock()
            past = past_of(entry, known, self._history, now)
            html = await asyncio.to_thread(self._made, entry, known, past, now, whole)
            after = self._directory.get(guest_id)
            if after is not None and after.generation == entry.generation:
                return await answer(request, html, HTML, {"content-security-policy": PAGE_CSP})

    def _made(self, entry: GuestEntry, known: LastKnown | None, past: Past, now: float, whole: bool) -> bytes:
        return self._pages.guest_page(guest_view(entry, known, past, now, with_containers=self._with_containers), whole=whole)
