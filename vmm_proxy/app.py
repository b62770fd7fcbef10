"""The only place that builds the proxy's parts and joins them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from guest_transport.serving import GrpcServer
from vmm_proxy.config import Setup
from vmm_proxy.directory import Directory
from vmm_proxy.fleet import FleetService
from vmm_proxy.guest_list import GuestList
from vmm_proxy.looks import Looks
from vmm_proxy.proxied_api import proxied_api
from vmm_proxy.upstreams import Upstreams
from vmm_proxy.watching import Sleep, Watches

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """A proxy, joined and not yet listening."""

    directory: Directory
    upstreams: Upstreams
    looks: Looks
    watches: Watches
    server: GrpcServer

    async def stop(self) -> None:
        """End the streams, finish the calls in flight, then let go of the guests."""
        self.watches.end()
        await self.server.stop()
        await self.close()

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
    return Parts(directory, upstreams, looks, watches, GrpcServer([proxied_api(upstreams), fleet.service()]))


async def serve(setup: Setup, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; calls in flight are finished first. Raises StartError when an address cannot be bound."""
    parts = build(Directory(setup.guests))
    try:
        await parts.server.start(setup.listen)
        log.info("%d guests are known", len(parts.directory))
        await stop.wait()
    except BaseException:
        await parts.close()
        raise
    await parts.stop()
