"""`/` and its assets: the whole table, made guest by guest, whole also for a browser without JavaScript."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from guest_transport.http.answers import answer_blocks
from guest_transport.http.pages import HTML, PAGE_CSP, utf8
from vmm_proxy.metrics.guest_answers import GuestAnswers
from vmm_proxy.pages.fleet_view import FleetView

# How long a person waits for a first page without wondering; guests that are down delay only that one.
PAGE_SECONDS = 2.0


class DashboardPage:
    """Answers the dashboard's addresses."""

    def __init__(self, guest_answers: GuestAnswers, view: FleetView) -> None:
        self._answers = guest_answers
        self._view = view

    async def page(self, request: Request) -> Response:
        """The whole page."""
        await self._answers.bring_up_to_date(self._answers.guests(), PAGE_SECONDS)
        made = await self._view.rows_of([entry.id for entry in self._view.entries()])
        rows = [utf8(html) for html in made.values() if html]
        blocks = [self._view.pages.head(self._view.summary()), *rows, self._view.pages.foot()]
        return await answer_blocks(request, blocks, HTML, {"content-security-policy": PAGE_CSP})

    async def asset(self, request: Request) -> Response:
        """A file of the page."""
        return await self._view.pages.assets.answer(request)
