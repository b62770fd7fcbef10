"""The frame of a gRPC server process: listen, health, reflection, stop with calls in flight finished.

Guest agent and proxy share it, so that both start, refuse and stop alike. It refuses to half-start: either every address is bound or
none stays bound. Rejected: grpc's own bind errors (they name neither the address nor the reason) and its own name resolution (it is content
with one address of several).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from guest_transport import options
from guest_transport.addresses import VSOCK_CID_HOST, Address, HvsockAddress, TcpAddress, UnixAddress, VsockAddress
from guest_transport.errors import ListenError
from guest_transport.peers import Peers
from guest_transport.process.run import run
from guest_transport.relay.listeners import RelayedListeners, TakeHttp
from guest_transport.server import health, reflection, undecodable
from guest_transport.server.calls_of_one import CallsOfOne
from guest_transport.server.request_deadline import RequestDeadline
from guest_transport.sockets import socket_files, tcp, unix, vsock
from guest_transport.sockets.private_folder import remove_abandoned_folders
from guest_transport.tls import ServerTls

__all__ = ["STOP_GRACE_SECONDS", "GrpcServer", "Service", "run"]

log = logging.getLogger(__name__)

# Calls in flight get this long to finish after SIGTERM; with the farewell of health it stays under the 5 s that the command promises.
STOP_GRACE_SECONDS = 3.5
# After the grace gRPC cancels what is left and closes every connection; it has always taken less, and is not waited for longer.
_CUT_SECONDS = 0.3
# What GrpcServer refuses by itself.
NO_REQUEST, CONNECTIONS, CALLS = REFUSED_FOR = ("no_request", "connections", "calls")


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service: its full name and what adds its servicer to a server."""

    full_name: str
    add_to: Callable[[grpc.aio.Server], None]


class GrpcServer:
    """A gRPC server on any number of addresses, with health and reflection.

    Health is overall ("") and per service: SERVING from start() on, NOT_SERVING from the begin of stop(). `stopping` is set at the begin of
    stop(), for handlers whose streams would otherwise never end.

    vsock listeners take connections from `vsock_cids` only (default: the host). With `identify_unix`, `peers` knows the uid, gid and pid
    of Unix clients, at the price of a relay between them and gRPC; a server with a vsock or TCP listener relays its Unix listeners as well.
    With `tls` every TCP listener speaks TLS; whether TCP may be plain is for the server's settings to decide. `calls_of_one`: calls that
    one peer may have in progress, for a server that does not know its callers by name. `on_refused` hears NO_REQUEST for each call that
    was ended because its request did not come, and CONNECTIONS and CALLS for each that was one too many of its peer. Unix sockets have the
    group `socket_group` (a gid), by default the process's own. `connections_limit` is gRPC's own, for listeners that are not relayed: it
    bounds each of them, whoever connects. Connections that speak HTTP/1.1 go to `take_http`, if given: every listener is relayed then.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        socket_mode: int = 0o660,
        socket_group: int | None = None,
        connections_limit: int | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        peers: Peers | None = None,
        identify_unix: bool = False,
        vsock_cids: Collection[int] = (VSOCK_CID_HOST,),
        tls: ServerTls | None = None,
        calls_of_one: int | None = None,
        on_refused: Callable[[str], None] = lambda _reason: None,
        take_http: TakeHttp | None = None,
    ) -> None:
        self.peers = peers if peers is not None else Peers()
        self._services = services
        self._socket_mode = socket_mode
        self._socket_group = socket_group
        counted = None if calls_of_one is None else CallsOfOne(self.peers, calls_of_one, partial(on_refused, CALLS))
        deadline = RequestDeadline(self.peers, on_ended=partial(on_refused, NO_REQUEST), calls=counted)
        self._server = undecodable.careful(
            grpc.aio.server(
                interceptors=[deadline, *interceptors],
                options=options.server_options(connections_limit),
                maximum_concurrent_rpcs=options.CONCURRENT_CALLS,
            )
        )
        self._health = health.Health((service.full_name for service in services), self.peers)
        self._sockets: list[socket_files.SocketFile] = []
        self._identify_unix = identify_unix or take_http is not None
        self._take_http = take_http
        self._vsock_cids = vsock_cids
        self._tls = tls
        self._relayed: RelayedListeners | None = None
        self._on_connection_refused = partial(on_refused, CONNECTIONS)
        self.stopping = asyncio.Event()
        self.addresses: list[Address] = []

    async def start(self, listen: Sequence[Address]) -> None:
        """Bind every address and serve; raises ListenError naming the first address that cannot be bound."""
        for service in self._services:
            service.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [*(service.full_name for service in self._services), health.SERVICE_NAME]
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflection.Reflection(names), self._server)
        try:
            await self._bind_all(listen)
        except BaseException:
            await self._let_go()
            raise
        await self._server.start()
        if self._relayed is not None:
            self._relayed.start()
        await asyncio.to_thread(remove_abandoned_folders)
        self._health.serve()
        for address in self.addresses:
            log.info("listening on %s", address)

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Say NOT_SERVING, let calls in flight finish within `grace_seconds`, remove the socket files."""
        self.stopping.set()
        if self._relayed is not None:
            self._relayed.stop_accepting()
        await self._health.stop()
        try:
            await asyncio.wait_for(self._server.stop(grace_seconds), grace_seconds + _CUT_SECONDS)
        except TimeoutError:
            log.warning("connections still open %s s after the grace period; leaving them", _CUT_SECONDS)
        finally:
            await self._release_sockets()

    async def _bind_all(self, listen: Sequence[Address]) -> None:
        if self._identify_unix or not all(isinstance(address, UnixAddress) for address in listen):
            self._relayed = RelayedListeners(self.peers, self._vsock_cids, self._on_connection_refused, self._take_http)
        credentials = await asyncio.to_thread(self._tls.credentials) if self._tls is not None else None
        # First everything that can be found out without gRPC, which cannot let go of a port again before it has served on it.
        ports = [await self._prepare(address) for address in listen]
        if self._relayed is not None:
            self._add_port(self._relayed.grpc_target)
            if credentials is not None:
                self._add_port(self._relayed.tls_target, credentials)
        self.addresses = [await bind() for bind in ports]

    async def _prepare(self, address: Address) -> Callable[[], Awaitable[Address]]:
        """Claims and tries `address`; what it returns binds it and says where."""
        match address:
            case UnixAddress():
                held = await asyncio.to_thread(socket_files.SocketFile.claim, address.path)
                self._sockets.append(held)
                return partial(self._bind_unix, address, held)
            case TcpAddress():
                assert self._relayed is not None  # noqa: S101  # made by _bind_all for just this case
                listeners = await tcp.listen(address)
                port: int = listeners[0].getsockname()[1]
                for listener in listeners:
                    self._relayed.add_tcp(address, listener, tls=self._tls is not None)
                return partial(_chosen, TcpAddress(address.host, port))
            case VsockAddress():
                assert self._relayed is not None  # noqa: S101  # the same
                listener = vsock.listen(address)
                self._relayed.add_vsock(address, listener)
                return partial(_chosen, VsockAddress(address.cid, listener.getsockname()[1]))
            case HvsockAddress():
                raise ListenError(
                    f"{address}: cannot listen: hvsock is the host's side; in the guest use vsock:any:{address.port}"
                )

    async def _bind_unix(self, address: UnixAddress, held: socket_files.SocketFile) -> Address:
        async with held.binding(self._socket_mode, self._socket_group) as place:
            if self._relayed is None:
                # gRPC removes a socket at that path before it binds and when it stops: there is none but its own, and not for long.
                self._add_port(UnixAddress(place).grpc_target)
                return address
            try:
                self._relayed.add_unix(address, unix.listen(place))
            except OSError as error:
                raise ListenError(f"{address}: cannot listen: {error.strerror}") from error
        return address

    def _add_port(self, target: str, credentials: grpc.ServerCredentials | None = None) -> int:
        try:
            if credentials is not None:
                return self._server.add_secure_port(target, credentials)
            return self._server.add_insecure_port(target)
        except RuntimeError as error:
            # All that can be told apart was tried before; what is left is somebody who was faster.
            raise ListenError(f"{target}: cannot listen: another program took it just now; try again") from error

    async def _let_go(self) -> None:
        """After a start that failed: nothing stays bound."""
        # gRPC (1.85) frees its ports only when it stops after a start.
        await self._server.start()
        await self._server.stop(None)
        await self._release_sockets()

    async def _release_sockets(self) -> None:
        if self._relayed is not None:
            await self._relayed.close()
        for held in self._sockets:
            await asyncio.to_thread(held.release)
        self._sockets.clear()


async def _chosen(address: Address) -> Address:
    """A listener that is bound already."""
    return address
