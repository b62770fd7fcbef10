"""The only place that builds the proxy's parts and joins them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import msgspec
from starlette.types import ASGIApp

from guest_transport.addresses import TcpAddress
from guest_transport.http.server import PageServer
from guest_transport.peers import Peers
from guest_transport.process.reload import reloaded_on_hangup
from guest_transport.process.sd_notify import Notifier
from guest_transport.relay.listeners import CONNECTIONS_LIMIT
from guest_transport.server.grpc_server import GrpcServer
from guest_transport.server.grpc_server import run as run_server
from guest_transport.tls import ServerTls
from vmm_proxy import garbage
from vmm_proxy.call_stats import CallCounts
from vmm_proxy.config import Setup
from vmm_proxy.directory.directory import Directory
from vmm_proxy.directory.folder import GuestFolder
from vmm_proxy.directory.guest_tls import GuestTls
from vmm_proxy.directory.kubevirt import settings as kubevirt_settings
from vmm_proxy.directory.libvirt import settings as libvirt_settings
from vmm_proxy.directory.libvirt.guests import LibvirtSource
from vmm_proxy.directory.registered import RegisteredGuests
from vmm_proxy.directory.sources import SourceState, SourceStates
from vmm_proxy.fleet.guest_list import GuestList
from vmm_proxy.fleet.info_refresh import InfoRefresh
from vmm_proxy.fleet.watch import Sleep, Watches
from vmm_proxy.pages.app import create_http_app
from vmm_proxy.pages.dashboard.render import Pages
from vmm_proxy.pages.parts import PageParts
from vmm_proxy.pages.settings import PageSetup
from vmm_proxy.pages.token_auth import TokenAuth
from vmm_proxy.policy.access import READ_ONLY, Access, AccessRules
from vmm_proxy.policy.admission import Admission
from vmm_proxy.policy.audit_log import Audit
from vmm_proxy.policy.audit_trail import AuditTrail
from vmm_proxy.policy.interceptor import PolicyInterceptor
from vmm_proxy.policy.method_roles import method_roles
from vmm_proxy.services.directory_service import DirectoryService
from vmm_proxy.services.fleet_service import FleetService
from vmm_proxy.services.guest_http import GuestHttp
from vmm_proxy.services.pass_on import PassOn
from vmm_proxy.services.proxied_guest_api import proxied_api
from vmm_proxy.upstream.limits import HTTP_CALLS, HTTP_CALLS_KEPT, HTTP_CALLS_OF_ONE, SharedConcurrencyLimit
from vmm_proxy.upstream.pool import Pool

if TYPE_CHECKING:
    from vmm_proxy.directory.kubevirt.guests import KubevirtSource

log = logging.getLogger(__name__)

DISTRIBUTION = "guestscope"


@dataclass(frozen=True, slots=True)
class Parts:
    """A proxy, joined and not yet listening."""

    directory: Directory
    pool: Pool
    info_refresh: InfoRefresh
    watches: Watches
    access: Access
    audit: Audit
    server: GrpcServer
    # None: there is no read-only socket.
    read_only_server: GrpcServer | None
    calls: CallCounts
    # For the guests' methods over HTTP.
    pass_on: PassOn
    http_admission: Admission

    async def stop(self) -> None:
        """End the streams, finish the calls in progress, then let go of the guests."""
        await self.stop_serving()
        await self.close()

    async def stop_serving(self) -> None:
        """End the streams and finish the calls in progress."""
        self.watches.end()
        await asyncio.gather(*(server.stop() for server in self.servers))

    @property
    def servers(self) -> list[GrpcServer]:
        """All that there are."""
        return [server for server in (self.server, self.read_only_server) if server]

    async def close(self) -> None:
        """Let go of the guests, and write the audit log to its end."""
        await self.info_refresh.close()
        await self.pool.close()
        await self.audit.close()


def build(
    directory: Directory,
    *,
    access: AccessRules | None = None,
    audit: Audit | None = None,
    tls: ServerTls | None = None,
    guest_tls: GuestTls | None = None,
    registered: RegisteredGuests | None = None,
    allow_plaintext: bool = False,
    read_only: bool = False,
    read_only_group: int | None = None,
    wall_clock: Callable[[], float] = time.time,
    sleep: Sleep = asyncio.sleep,
) -> Parts:
    """The parts of a proxy for the guests of `directory`; without `access` by the rules of an empty configuration."""
    rules = access or AccessRules(own_uid=os.geteuid(), own_gid=os.getegid())
    judge, audit = Access(rules), audit or Audit(None, wall_clock)
    trail = AuditTrail(audit, time.monotonic)
    pool = Pool(directory, wall_clock, usual_tls=guest_tls, on_wrong_guest=trail.wrong_guest)
    info_refresh = InfoRefresh(pool, wall_clock)
    watches = Watches(pool, wall_clock, sleep)
    peers = Peers()
    fleet = FleetService(
        directory=directory,
        pool=pool,
        guest_list=GuestList(pool, info_refresh),
        watches=watches,
        wall_clock=wall_clock,
    )
    writer = DirectoryService(registered, allow_plaintext=allow_plaintext)
    calls = CallCounts()
    pass_on = PassOn(pool, calls)
    services = [proxied_api(pass_on), fleet.service(), writer.service()]
    server = GrpcServer(
        services,
        interceptors=[PolicyInterceptor(judge, peers, trail, method_roles(), counts=calls)],
        peers=peers,
        identify_unix=rules.unix_role is None,
        tls=tls,
        on_refused=calls.refused_by_server,
    )
    read_only_server = None
    if read_only:
        # A server of its own: whatever its callers name their sockets, to it they are all one.
        readers = Peers(others=READ_ONLY)
        read_only_server = GrpcServer(
            services,
            interceptors=[PolicyInterceptor(judge, readers, trail, method_roles(), counts=calls)],
            peers=readers,
            socket_group=read_only_group,
            connections_limit=CONNECTIONS_LIMIT,
            on_refused=calls.refused_by_server,
        )
    # Fewer than the pages answer at once, which share one server: whoever calls guests that hang keeps no scraper out.
    http_calls = SharedConcurrencyLimit(
        HTTP_CALLS, HTTP_CALLS_OF_ONE, "the proxy", kept=HTTP_CALLS_KEPT, what="calls in progress"
    )
    http_admission = Admission(judge, trail, method_roles(), http_calls, calls)
    return Parts(directory, pool, info_refresh, watches, judge, audit, server, read_only_server, calls, pass_on, http_admission)


def join_pages(
    setup: PageSetup,
    parts: Parts,
    dashboard: Pages,
    server: PageServer,
    *,
    sources: SourceStates = dict,
) -> PageParts:
    """What the pages of `parts` on `server` read from."""
    return PageParts.join(
        setup,
        directory=parts.directory,
        pool=parts.pool,
        calls=parts.calls,
        dashboard=dashboard,
        sources=sources,
        ready=lambda: bool(parts.server.addresses),
        stopping=server.stopping,
    )


def page_app(pages: PageParts, parts: Parts) -> ASGIApp:
    """The app over `pages`, behind tokens where the setup says so, and the guests' methods beside it where it says that."""
    setup = pages.setup
    app: ASGIApp = create_http_app(pages)
    if setup.need_token:
        app = TokenAuth(app, parts.access)
    if not setup.guest_api:
        return app
    here = not isinstance(setup.listen, TcpAddress) or setup.listen.loopback
    return GuestHttp(app, parts.pass_on, parts.http_admission, anonymous=here and not setup.need_token)


def check_sources(setup: Setup) -> tuple[int, list[str]]:
    """How many guests serve would know, those apart that libvirt or KubeVirt tells of, and why files of the directory's folder are refused.

    Raises SettingsError for what would stop the start. Blocks.
    """
    if setup.libvirt:
        libvirt_settings.require_module()
    if setup.kubevirt:
        kubevirt_settings.require_module()
    directory = Directory(setup.guests)
    if setup.registered_file:
        RegisteredGuests(setup.registered_file, directory, allow_plaintext=setup.allow_plaintext).load()
    if setup.directory_dir is None:
        return len(directory), []
    folder = GuestFolder(setup.directory_dir, directory, allow_plaintext=setup.allow_plaintext)
    folder.scan()
    return len(directory), list(folder.refused.values())


def run(setup: Setup, read_again: Callable[[], Setup]) -> int:
    """Serve until SIGTERM or SIGINT; SIGHUP takes the access rules of `read_again`. Returns the exit status."""
    notifier = Notifier.take(os.environ, os.getpid())
    return run_server(lambda stop: serve(setup, stop, read_again, notifier))


async def serve(setup: Setup, stop: asyncio.Event, read_again: Callable[[], Setup], notifier: Notifier) -> None:
    """Serve until `stop` is set; calls in progress are finished first. Raises StartError for what the operator must change."""
    plain = setup.allow_plaintext
    directory = Directory(setup.guests)
    registered = None
    if setup.registered_file:
        registered = RegisteredGuests(setup.registered_file, directory, allow_plaintext=plain)
        await asyncio.to_thread(registered.load)
    folder = GuestFolder(setup.directory_dir, directory, allow_plaintext=plain) if setup.directory_dir else None
    audit = Audit(setup.audit_file, time.time)
    libvirt = LibvirtSource(setup.libvirt, directory) if setup.libvirt else None
    kubevirt = await _kubevirt(setup.kubevirt, directory) if setup.kubevirt else None
    parts = build(
        directory,
        access=setup.access,
        audit=audit,
        tls=setup.tls,
        guest_tls=setup.guest_tls,
        registered=registered,
        allow_plaintext=plain,
        read_only=bool(setup.read_only_listen),
        read_only_group=setup.read_only_group,
    )
    started = asyncio.Event()

    async def reload() -> None:
        # What the service manager hears at its end must not come before the listeners are there.
        await started.wait()
        await _reload(parts, setup, read_again)

    async with contextlib.AsyncExitStack() as ending:
        ending.push_async_callback(parts.close)
        await asyncio.to_thread(audit.open)
        if folder:
            await folder.start()
            ending.push_async_callback(folder.close)
        if libvirt:
            libvirt.follower.start()
            ending.push_async_callback(libvirt.close)
        if kubevirt:
            kubevirt.start()
            ending.push_async_callback(kubevirt.close)
        await ending.enter_async_context(reloaded_on_hangup(notifier, reload))
        page_server = PageServer(host_names=setup.pages.host_names)
        dashboard = await asyncio.to_thread(lambda: Pages(metadata.version(DISTRIBUTION)))
        pages = join_pages(setup.pages, parts, dashboard, page_server, sources=lambda: _states(folder, libvirt, kubevirt))
        ending.push_async_callback(pages.close)
        await parts.server.start(setup.listen)
        # Together, because each may take most of the time that stopping has.
        ending.push_async_callback(lambda: asyncio.gather(parts.stop_serving(), page_server.stop()))
        if parts.read_only_server:
            await parts.read_only_server.start(setup.read_only_listen)
        if registered:
            await registered.remove_leftovers()
        if setup.pages.listen is not None:
            await page_server.start(page_app(pages, parts), setup.pages.listen)
        log.info("guests known: %d", len(directory))
        await ending.enter_async_context(notifier.watched())
        addresses = [address for server in parts.servers for address in server.addresses] + page_server.addresses
        notifier.ready(f"listening on {', '.join(map(str, addresses))}")
        started.set()
        await ending.enter_async_context(garbage.collected())
        await stop.wait()
        notifier.stopping()


async def _kubevirt(setup: kubevirt_settings.KubevirtSetup, directory: Directory) -> KubevirtSource:
    kubevirt_settings.require_module()

    def load() -> type[KubevirtSource]:
        # lightkube and its HTTP client take 0.3 s and 14 MiB, and are an extra: only who follows a cluster has them.
        from vmm_proxy.directory.kubevirt.guests import KubevirtSource  # noqa: PLC0415 - as above

        return KubevirtSource

    return (await asyncio.to_thread(load))(setup, directory)


def _states(
    folder: GuestFolder | None, libvirt: LibvirtSource | None, kubevirt: KubevirtSource | None
) -> Mapping[str, SourceState]:
    sources = {"folder": folder, "libvirt": libvirt, "kubevirt": kubevirt}
    return {name: source.state for name, source in sources.items() if source}


async def _reload(parts: Parts, setup: Setup, read_again: Callable[[], Setup]) -> None:
    """Put the access rules, renewed certificates and a moved audit file in force; raises StartError and changes nothing."""
    fresh = await asyncio.to_thread(read_again)
    await asyncio.to_thread(parts.audit.open)
    parts.access.replace(fresh.access.on_the_same_listeners(setup.access))
    parts.pool.renew_certificates()
    if needs_restart(setup, fresh):
        log.warning("what else was changed in the configuration needs a restart")


def needs_restart(before: Setup, after: Setup) -> bool:
    """Whether something differs that a reload does not take: all but the access rules and the certificates of the same listeners."""
    rules = after.access.on_the_same_listeners(before.access)
    tls = after.tls if before.tls and after.tls else before.tls
    return msgspec.structs.replace(before, access=rules, tls=tls) != after
