"""What the proxy's pages read from. Made by app.py, ended by close()."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from guest_metrics.process import ProcessFigures, read_process
from guest_transport.http.shared_look import SharedLook, in_thread
from vmm_proxy.call_stats import CallCounts
from vmm_proxy.directory.directory import Directory
from vmm_proxy.directory.sources import SourceStates
from vmm_proxy.metrics.guest_answers import GuestAnswers
from vmm_proxy.metrics.page import FleetPage
from vmm_proxy.metrics.proxy_series import OwnFigures
from vmm_proxy.pages.dashboard.render import Pages
from vmm_proxy.pages.fleet_view import FleetView
from vmm_proxy.pages.live import LiveFleet
from vmm_proxy.pages.settings import PageSetup
from vmm_proxy.upstream.pool import Pool


@dataclass(frozen=True, slots=True)
class PageParts:
    """The fleet's knowledge and its pages; `ready` says whether every other address is listened on."""

    setup: PageSetup
    directory: Directory
    guest_answers: GuestAnswers
    page: FleetPage
    own: OwnFigures
    process: SharedLook[ProcessFigures]
    view: FleetView
    live: LiveFleet
    ready: Callable[[], bool]
    # Set when the server stops, for live streams.
    stopping: asyncio.Event

    @classmethod
    def join(
        cls,
        setup: PageSetup,
        *,
        directory: Directory,
        pool: Pool,
        calls: CallCounts,
        dashboard: Pages,
        sources: SourceStates,
        ready: Callable[[], bool],
        stopping: asyncio.Event,
    ) -> PageParts:
        """Join the parts."""
        guest_answers = GuestAnswers(directory, pool, with_containers=setup.containers)
        view = FleetView(directory, guest_answers, dashboard)
        return cls(
            setup=setup,
            directory=directory,
            guest_answers=guest_answers,
            page=FleetPage(guest_answers, setup.labels, dashboard.version),
            own=OwnFigures(directory, pool, calls, sources),
            process=SharedLook("process figures", in_thread(read_process)),
            view=view,
            live=LiveFleet(directory, guest_answers, view, stopping),
            ready=ready,
            stopping=stopping,
        )

    async def close(self) -> None:
        """End every refresh of guests and of the process's figures. Call it after the server has stopped."""
        await self.live.close()
        await self.guest_answers.close()
        await self.process.close()
