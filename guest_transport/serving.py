"""The frame of a gRPC server process: listen, health, reflection, stop with calls in flight finished.

Guest agent and proxy share it, so that both start, refuse and stop alike. It refuses to half-start: either every address is bound or
none stays bound. Rejected: grpc's own bind errors (they name neither the address nor the reason) and its own name resolution (it is content
with one address of several).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from guest_transport import health, options, socket_files, tcp
from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.errors import ListenError
from guest_transport.running import run

__all__ = ["STOP_GRACE_SECONDS", "GrpcServer", "Service", "run"]

log = logging.getLogger(__name__)

# Calls in flight get this long to finish after SIGTERM; with the farewell of health it stays under the 5 s of the door's promise.
STOP_GRACE_SECONDS = 4.0
# After the grace gRPC cancels what is left and closes every connection; it has always taken less, and is not waited for longer.
_CUT_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service: its full name and what adds its servicer to a server."""

    full_name: str
    add_to: Callable[[grpc.aio.Server], None]


class GrpcServer:
    """A gRPC server on any number of addresses, with health and reflection.

    Health is overall ("") and per service: SERVING from start() on, NOT_SERVING from the begin of stop(). `stopping` is set at the begin of
    stop(), for handlers whose streams would otherwise never end.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        socket_mode: int = 0o660,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self._services = services
        self._socket_mode = socket_mode
        self._server = grpc.aio.server(
            interceptors=interceptors,
            options=options.server_options(),
            maximum_concurrent_rpcs=options.CONCURRENT_CALLS,
        )
        self._health = health.Health(service.full_name for service in services)
        self._sockets: list[socket_files.SocketFile] = []
        self.stopping = asyncio.Event()
        self.addresses: list[Address] = []

    async def start(self, listen: Sequence[Address]) -> None:
        """Bind every address and serve; raises ListenError naming the first address that cannot be bound."""
        for service in self._services:
            service.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [*(service.full_name for service in self._services), health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self._server)
        try:
            for address in listen:
                self.addresses.append(await self._bind(address))
        except BaseException:
            await self._server.stop(None)
            self._release_sockets()
            raise
        await self._server.start()
        self._health.serve()
        for address in self.addresses:
            log.info("listening on %s", address)

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Say NOT_SERVING, let calls in flight finish within `grace_seconds`, remove the socket files."""
        self.stopping.set()
        await self._health.stop()
        try:
            await asyncio.wait_for(self._server.stop(grace_seconds), grace_seconds + _CUT_SECONDS)
        except TimeoutError:
            log.warning("connections still open %s s after the grace period; leaving them", _CUT_SECONDS)
        finally:
            self._release_sockets()

    async def _bind(self, address: Address) -> Address:
        match address:
            case UnixAddress():
                held = socket_files.SocketFile.claim(address.path)
                self._sockets.append(held)
                with held.binding(self._socket_mode):
                    self._add_port(address.grpc_target, address)
                return address
            case TcpAddress():
                return await self._bind_tcp(address)
        raise ListenError(f"{address}: listening on this kind of address is not built yet; use unix:/path or HOST:PORT")

    async def _bind_tcp(self, address: TcpAddress) -> TcpAddress:
        port = address.port
        for host in await tcp.own_hosts(address):
            # Port 0 is chosen for the first address of a name; the others get the same.
            port = self._add_port(str(TcpAddress(host, port)), address)
        return TcpAddress(address.host, port)

    def _add_port(self, target: str, address: Address) -> int:
        try:
            return self._server.add_insecure_port(target)
        except RuntimeError as error:
            # All that can be told apart was tried before; what is left is somebody who was faster.
            raise ListenError(f"{address}: cannot listen: another program took it just now; try again") from error

    def _release_sockets(self) -> None:
        for held in self._sockets:
            held.release()
        self._sockets.clear()
