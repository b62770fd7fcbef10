"""The only place that builds the proxy's parts and joins them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from guest_transport.http.server import PageServer
from guest_transport.serving import GrpcServer
from vmm_proxy.call_counts import CallCounts
from vmm_proxy.config import Setup
from vmm_proxy.directory import Directory
from vmm_proxy.fleet import FleetService
from vmm_proxy.guest_list import GuestList
from vmm_proxy.http.app import create_http_app
from vmm_proxy.http.parts import PageParts
from vmm_proxy.http.settings import PageSetup
from vmm_proxy.looks import Looks
from vmm_proxy.proxied_api import proxied_api
from vmm_proxy.upstreams import Upstreams
from vmm_proxy.watching import Sleep, Watches

log = logging.getLogger(__name__)

DISTRIBUTION = "guestscope"
# As Python has them.
YOUNG_COLLECTIONS = (700, 10)
# A hundred times rarer.
FULL_COLLECTION = 1000


@dataclass(frozen=True, slots=True)
class Parts:
    """A proxy, joined and not yet listening."""

    directory: Directory
    upstreams: Upstreams
    looks: Looks
    watches: Watches
    server: GrpcServer
    calls: CallCounts

    async def stop(self) -> None:
        """End the streams, finish the calls in flight, then let go of the guests."""
        await self.stop_serving()
        await self.close()

    async def stop_serving(self) -> None:
        """End the streams and finish the calls in flight."""
        self.watches.end()
        await self.server.stop()

    async def close(self) -> None:
        """Let go of the guests."""
        await self.looks.close()
        await self.upstreams.close()


def build(directory: Directory, *, wall_clock: Callable[[], float] = time.time, sleep: Sleep = asyncio.sleep) -> Parts:
    """The parts of a proxy for the guests of `directory`."""
    upstreams = Upstreams(directory, wall_clock)
    looks = Looks(upstreams, wall_clock)
    watches = Watches(directory, upstreams, wall_clock, sleep)
    fleet = FleetService(directory, upstreams, GuestList(directory, upstreams, looks), watches, wall_clock)
    calls = CallCounts()
    server = GrpcServer([proxied_api(upstreams, calls), fleet.service()])
    return Parts(directory, upstreams, looks, watches, server, calls)


def join_pages(setup: PageSetup, parts: Parts, version: str, *, refused_entries: Callable[[], int] = lambda: 0) -> PageParts:
    """What the pages of `parts` read from."""
    return PageParts.join(
        setup,
        directory=parts.directory,
        upstreams=parts.upstreams,
        calls=parts.calls,
        version=version,
        refused_entries=refused_entries,
        ready=lambda: bool(parts.server.addresses),
    )


def collect_garbage_quietly() -> None:
    """Keep Python's full collections rare: with a thousand guests one looks at 100,000 objects and holds everything up for 50 ms.

    What is there at the start stays and is never looked at again; young garbage is collected as ever. Old garbage in cycles, of which
    there is little (a guest's channel that was closed), waits for one of some millions of allocations more.
    """
    gc.freeze()
    gc.set_threshold(*YOUNG_COLLECTIONS, FULL_COLLECTION)


async def serve(setup: Setup, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; calls in flight are finished first. Raises StartError when an address cannot be bound."""
    parts = build(Directory(setup.guests))
    async with contextlib.AsyncExitStack() as ending:
        ending.push_async_callback(parts.close)
        pages = join_pages(setup.pages, parts, await asyncio.to_thread(metadata.version, DISTRIBUTION))
        ending.push_async_callback(pages.close)
        page_server = PageServer(create_http_app(pages), stopping=pages.stopping)
        await parts.server.start(setup.listen)
        # Together, because each may take most of the time that stopping has.
        ending.push_async_callback(lambda: asyncio.gather(parts.stop_serving(), page_server.stop()))
        if setup.pages.listen is not None:
            await page_server.start(setup.pages.listen)
        log.info("%d guests are known", len(parts.directory))
        collect_garbage_quietly()
        await stop.wait()
