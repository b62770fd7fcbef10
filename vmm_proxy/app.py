"""The only place that builds the proxy's parts and joins them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from guest_transport.peers import Peers
from guest_transport.serving import GrpcServer
from vmm_proxy.config import Setup
from vmm_proxy.directory import Directory
from vmm_proxy.directory_service import DirectoryService
from vmm_proxy.domains.guests import LibvirtSource
from vmm_proxy.domains.settings import require_module
from vmm_proxy.fleet import FleetService
from vmm_proxy.guest_folder import GuestFolder
from vmm_proxy.guest_list import GuestList
from vmm_proxy.looks import Looks
from vmm_proxy.proxied_api import proxied_api
from vmm_proxy.registered_guests import RegisteredGuests
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


def build(
    directory: Directory,
    *,
    registered: RegisteredGuests | None = None,
    allow_plaintext: bool = False,
    wall_clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> Parts:
    """The parts of a proxy for the guests of `directory`."""
    upstreams = Upstreams(directory, wall_clock)
    looks = Looks(upstreams, wall_clock)
    watches = Watches(directory, upstreams, wall_clock, sleep)
    peers = Peers()
    fleet = FleetService(
        directory=directory,
        upstreams=upstreams,
        guest_list=GuestList(directory, upstreams, looks),
        watches=watches,
        peers=peers,
        wall_clock=wall_clock,
    )
    writer = DirectoryService(registered, peers, allow_plaintext=allow_plaintext)
    server = GrpcServer([proxied_api(upstreams, peers), fleet.service(), writer.service()], peers=peers)
    return Parts(directory, upstreams, looks, watches, server)


def check_sources(setup: Setup) -> list[str]:
    """Why files of the directory's folder are refused; raises SettingsError for what would stop the start. Blocks."""
    if setup.libvirt:
        require_module()
    directory = Directory(setup.guests)
    if setup.registered_file:
        RegisteredGuests(setup.registered_file, directory, allow_plaintext=setup.allow_plaintext).load()
    if setup.directory_dir is None:
        return []
    folder = GuestFolder(setup.directory_dir, directory, allow_plaintext=setup.allow_plaintext)
    folder.scan()
    return list(folder.refused.values())


async def serve(setup: Setup, stop: asyncio.Event) -> None:
    """Serve until `stop` is set; calls in flight are finished first. Raises StartError for what the operator must change."""
    plain = setup.allow_plaintext
    directory = Directory(setup.guests)
    registered = None
    if setup.registered_file:
        registered = RegisteredGuests(setup.registered_file, directory, allow_plaintext=plain)
        await asyncio.to_thread(registered.load)
    folder = GuestFolder(setup.directory_dir, directory, allow_plaintext=plain) if setup.directory_dir else None
    libvirt = LibvirtSource(setup.libvirt, directory) if setup.libvirt else None
    parts = build(directory, registered=registered, allow_plaintext=plain)
    try:
        if folder:
            await folder.start()
        if libvirt:
            libvirt.follower.start()
        await parts.server.start(setup.listen)
        log.info("%d guests are known", len(directory))
        await stop.wait()
    except BaseException:
        await parts.close()
        raise
    finally:
        if libvirt:
            await libvirt.close()
        if folder:
            await folder.close()
    await parts.stop()
