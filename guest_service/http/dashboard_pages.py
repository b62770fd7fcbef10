"""`/`, `/live` and the dashboard's assets: gathers what may be shown, and leaves words and looks to `dashboard`.

What is not public is not even read: with public_sysinfo off a visit takes no GPU sample. The page waits for a slow system or engine a
moment, because a person who loads it once wants to see it; what is not there by then is shown as not known.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from guest_pages.view import GpuView, SystemView, container_views, gpu_view, system_view
from guest_service.dashboard.render import Dashboard, Pages
from guest_service.http.parts import HttpParts
from guest_transport.http.answers import answer, caller
from guest_transport.http.pages import HTML, PAGE_CSP

# How long a person waits for a page without wondering.
SYSTEM_SECONDS = 5.0
CONTAINERS_SECONDS = 1.0


class DashboardPages:
    """Answers the dashboard's addresses."""

    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts
        self._made: Pages | None = None

    async def page(self, request: Request) -> Response:
        """The whole page."""
        pages = await self._pages()
        return await answer(request, pages.page(await self._gather(request)), HTML, {"content-security-policy": PAGE_CSP})

    async def live(self, request: Request) -> Response:
        """What the page fetches to refresh itself."""
        pages = await self._pages()
        return await answer(request, pages.live(await self._gather(request)), HTML, {"content-security-policy": PAGE_CSP})

    async def asset(self, request: Request) -> Response:
        """A file of the page."""
        return await (await self._pages()).assets.answer(request)

    async def _pages(self) -> Pages:
        """Made for the first who opens a page: most agents are scraped and never looked at."""
        if self._made is None:
            self._made = await asyncio.to_thread(Pages)
        return self._made

    async def _gather(self, request: Request) -> Dashboard:
        switches = self._parts.switches()
        sysinfo, containers_public = switches.public_sysinfo, switches.public_containers
        listing = await self._parts.containers.soon(CONTAINERS_SECONDS) if containers_public else None
        note = ""
        if listing is not None and listing.containers is None:
            note = "The container engine does not answer." if listing.failed else "The container list is being read."
        return Dashboard(
            version=self._parts.version,
            sysinfo=sysinfo,
            system=await self._system() if sysinfo else None,
            gpus=self._gpus(caller(request, "dashboard")) if sysinfo else None,
            containers_public=containers_public,
            containers=container_views(listing.containers) if listing is not None and listing.containers is not None else None,
            containers_note=note,
            logs=switches.public_logs,
        )

    async def _system(self) -> SystemView | None:
        info = await self._parts.system.within(SYSTEM_SECONDS)
        return None if info is None else system_view(info)

    def _gpus(self, who: str) -> GpuView:
        telemetry = self._parts.telemetry
        reply = telemetry.last(who)
        inventory = telemetry.inventory
        return gpu_view(reply, ready=telemetry.ready, pci_devices=None if inventory is None else inventory.nvidia)
