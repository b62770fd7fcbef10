"""Builds the guest agent's parts from its configuration, joins them, and ends them in order: the only place that knows them all.

Nothing is half-started: what the configuration names is read before a socket is bound, and a bound socket is given back when the next one
fails. Stopping lets calls in flight finish, kills a collector that hangs, and is over within the door's 5 s. Rejected: a framework for
wiring; the parts are a dozen constructor calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from guest_service.api import GuestApi
from guest_service.config import GuestConfig, grpc_addresses, http_address, kernel_log_path, needs_restart, process_names_root
from guest_service.host_facts.containers import ENGINE_SOCKETS, ContainerEngine
from guest_service.host_facts.errors import PartLog
from guest_service.host_facts.identity import Identity
from guest_service.host_facts.network import NetworkFacts
from guest_service.host_facts.power import Power
from guest_service.host_facts.system import SystemFacts
from guest_service.simulator import RackError, load_rack
from guest_service.telemetry import GpuTelemetry, build_telemetry
from guest_transport.addresses import TcpAddress
from guest_transport.errors import SettingsError
from guest_transport.peers import Peers
from guest_transport.process.logs import log_to_stderr
from guest_transport.process.reload import reloaded_on_hangup
from guest_transport.process.sd_notify import Notifier
from guest_transport.process.socket_activation import take_sockets
from guest_transport.server.calls_of_one import CALLS_OF_ONE
from guest_transport.server.grpc_server import REFUSED_FOR, GrpcServer
from guest_transport.server.grpc_server import run as run_server
from guest_transport.tls_settings import server_tls

if TYPE_CHECKING:
    from guest_service.http.dstack import DstackServer
    from guest_service.http.server import HttpServer

log = logging.getLogger(__name__)

DISTRIBUTION = "guestscope"
# As in deploy/systemd/guest-service-http.socket.
HTTP_SOCKET_NAME = "http"
# A cold call that waits for a sample gets this long after SIGTERM; then the collector is ended (2 s at most), and the call answered
# before the server's own grace is over.
SAMPLE_GRACE_SECONDS = 1.0


@dataclass(slots=True)
class Settings:
    """The configuration in force; a reload replaces it, and parts that ask through it see the new one."""

    now: GuestConfig


@dataclass(slots=True)
class Agent:
    """The joined parts of one agent; `http` is None where there are no pages, and until they are loaded."""

    settings: Settings
    telemetry: GpuTelemetry
    engine: ContainerEngine
    server: GrpcServer
    system: SystemFacts
    version: str
    # What the gRPC server refused since the start, by reason.
    rejected: Counter[str]
    dstack: DstackServer | None
    http: HttpServer | None = None


def run(config: GuestConfig, read_again: Callable[[], GuestConfig]) -> int:
    """Serve until SIGTERM or SIGINT; SIGHUP takes the switches and the log level of `read_again`. Returns the exit status."""
    log_to_stderr(config.log.format, _level(config))
    notifier = Notifier.take(os.environ, os.getpid())
    handed = take_sockets(os.environ, os.getpid())
    return run_server(lambda stop: serve(config, stop, read_again, notifier, handed.get(HTTP_SOCKET_NAME, ())))


async def serve(
    config: GuestConfig,
    stop: asyncio.Event,
    read_again: Callable[[], GuestConfig],
    notifier: Notifier,
    http_sockets: Sequence[socket.socket] = (),
) -> None:
    """Serve until `stop` is set; raises StartError when something cannot be read or bound."""
    agent = build(config)

    async def reload() -> None:
        fresh = await asyncio.to_thread(read_again)
        agent.settings.now = fresh
        logging.getLogger().setLevel(_level(fresh))
        if needs_restart(config, fresh):
            log.warning("what else was changed in the configuration needs a restart")

    async with contextlib.AsyncExitStack() as ending:
        ending.push_async_callback(agent.engine.close)
        ending.push_async_callback(agent.telemetry.close)
        await agent.telemetry.start()
        await agent.server.start(grpc_addresses(config))
        ending.push_async_callback(_stop_serving, agent)
        await _start_http(agent, http_sockets)
        await ending.enter_async_context(reloaded_on_hangup(notifier, reload))
        await ending.enter_async_context(notifier.watched())
        notifier.ready(
            f"listening on {', '.join(map(str, [*agent.server.addresses, *(agent.http.addresses if agent.http else ())]))}"
        )
        await stop.wait()
        notifier.stopping()


async def _start_http(agent: Agent, handed: Sequence[socket.socket]) -> None:
    """Listen where configuration says; a port that the service manager opened for the agent wins over it."""
    address = http_address(agent.settings.now.http.listen)
    if address is not None:
        agent.http = await asyncio.to_thread(_http_server, agent)
        await agent.http.start(handed[0] if handed else address)
    for unused in handed[0 if address is None else 1 :]:
        unused.close()


def _http_server(agent: Agent) -> HttpServer:
    """The pages. Their libraries take longer to load than all else, so gRPC answers meanwhile."""
    from guest_service.http.parts import HttpParts  # noqa: PLC0415 -- see above
    from guest_service.http.server import HttpServer  # noqa: PLC0415 -- the same

    settings = agent.settings
    parts = HttpParts.join(
        telemetry=agent.telemetry,
        system=agent.system,
        engine=agent.engine,
        switches=lambda: settings.now.http,
        version=agent.version,
        rejected=agent.rejected,
    )
    return HttpServer(parts, host_names=settings.now.http.host_names)


def _dstack_server(api: GuestApi, config: GuestConfig) -> DstackServer:
    from guest_service.http.dstack import DstackServer  # noqa: PLC0415 -- who leaves it off loads none of it

    own = [address.host for address in grpc_addresses(config) if isinstance(address, TcpAddress)]
    return DstackServer(api, host_names=[*config.http.host_names, *own])


def build(config: GuestConfig) -> Agent:
    """Make the parts; raises SettingsError for a rack, an identity file or certificates that are wrong. Nothing runs yet."""
    version = metadata.version(DISTRIBUTION)
    settings = Settings(config)
    part_log, peers = PartLog(), Peers()
    telemetry = _telemetry(config)
    system = SystemFacts(
        procfs=Path(config.host.procfs_root),
        data_disks=config.host.data_disks,
        extra_prefixes=config.host.extra_interface_prefixes,
        part_log=part_log,
    )
    network = NetworkFacts(
        procfs=Path(config.host.procfs_root), extra_prefixes=config.host.extra_interface_prefixes, part_log=part_log
    )
    engine = _container_engine(config)
    identity = Identity(version=version, file=Path(config.identity.file) if config.identity.file else None)
    api = GuestApi(
        telemetry=telemetry,
        system=system,
        network=network,
        containers=engine,
        info=lambda: identity.info(show_tcb=settings.now.http.public_tcbinfo),
        power=Power(config.power.shutdown_command, allow_shutdown=config.power.allow_shutdown),
        peers=peers,
        part_log=part_log,
    )
    dstack = _dstack_server(api, config) if config.dstack.enabled else None
    rejected = Counter(dict.fromkeys(REFUSED_FOR, 0))
    server = GrpcServer(
        [api.service()],
        peers=peers,
        vsock_cids=config.grpc.vsock_cids,
        tls=server_tls(config.tls),
        calls_of_one=CALLS_OF_ONE,
        on_refused=lambda reason: rejected.update((reason,)),
        take_http=dstack.take if dstack else None,
    )
    return Agent(settings, telemetry, engine, server, system, version, rejected, dstack)


def _telemetry(config: GuestConfig) -> GpuTelemetry:
    gpu = config.gpu
    try:
        rack = None if gpu.simulate is None else load_rack(gpu.simulate)
    except RackError as error:
        raise SettingsError(f"gpu.simulate: {error}") from error
    library = None if gpu.nvml_library is None else Path(gpu.nvml_library)
    return build_telemetry(
        sysfs=Path(config.host.sysfs_root),
        simulate=rack,
        nvml_library=library,
        sample_ttl_seconds=gpu.sample_ttl_seconds,
        failure_backoff_seconds=gpu.failure_backoff_seconds,
        sample_timeout_seconds=gpu.sample_timeout_seconds,
        first_sample_timeout_seconds=gpu.first_sample_timeout_seconds,
        refresh=gpu.refresh,
        groups=gpu.groups,
        process_names=process_names_root(config),
        kernel_log=kernel_log_path(config),
    )


def _container_engine(config: GuestConfig) -> ContainerEngine:
    match config.containers.socket:
        case "auto":
            return ContainerEngine(ENGINE_SOCKETS)
        case "off":
            return ContainerEngine(())
        case path:
            return ContainerEngine((Path(path),), named=True)


async def _stop_serving(agent: Agent) -> None:
    """Stop both servers at once, and the collector when calls still wait for it after a moment."""
    servers = [server for server in (agent.server, agent.dstack, agent.http) if server]
    stopping = asyncio.gather(*(server.stop() for server in servers))
    await asyncio.wait({stopping}, timeout=SAMPLE_GRACE_SECONDS)
    await agent.telemetry.close()
    await stopping


def _level(config: GuestConfig) -> int:
    return logging.getLevelNamesMapping()[config.log.level.upper()]
