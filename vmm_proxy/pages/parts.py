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
from vmm_proxy.metrics.guest_answers import FleetBoard
from vmm_proxy.metrics.page import FleetPage
from vmm_proxy.metrics.proxy_series import OwnFigures
from vmm_proxy.pages.dashboard.render import Pages
from vmm_proxy.pages.fleet_view import FleetView
from vmm_proxy.pages.live import LiveFleet
from vmm_proxy.pages.settings import PageSetup
from vmm_proxy.upstream.pool import Upstreams


@dataclass(frozen=True, slots=True)
class PageParts:
    """The fleet's knowledge and its pages; `ready` says whether every other address is listened on."""

    setup: PageSetup
    board: FleetBoard
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
        upstreams: Upstreams,
        calls: CallCounts,
        dashboard: Pages,
        sources: SourceStates,
        ready: Callable[[], bool],
        stopping: asyncio.Event,
    ) -> PageParts:
        """Join the parts."""
        board = FleetBoard(directory, upstreams, with_containers=setup.containers)
        view = FleetView(directory, board, dashboard)
        return cls(
            setup=setup,
            board=board,
            page=FleetPage(board, setup.labels, dashboard.version),
            own=OwnFigures(directory, upstreams, calls, sources),
            process=SharedLook("process figures", in_thread(read_process)),
            view=view,
            live=LiveFleet(directory, board, view, stopping),
            ready=ready,
            stopping=stopping,
        )

    async def close(self) -> None:
        """End every look at a guest and at the process. The server has stopped by then."""
        await self.live.close()
        await self.board.close()
        await self.process.close()
