"""The frame of a gRPC server process: listen, health, reflection, stop on a signal with calls in flight finished.

Guest agent and proxy share it, so that both start, refuse and stop alike. It refuses to half-start: either every address is bound or
none stays bound. Rejected: grpc's own bind errors (they name neither the address nor the reason).
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from guest_transport import options, socket_files
from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.errors import ListenError, StartError

log = logging.getLogger(__name__)

# Calls in flight get this long to finish after SIGTERM; the process must be gone after 5 s (the door's promise).
STOP_GRACE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service: its full name and what adds its servicer to a server."""

    full_name: str
    add_to: Callable[[grpc.aio.Server], None]


class GrpcServer:
    """A gRPC server on any number of addresses, with health and reflection.

    Health is overall ("") and per service: SERVING from start() on, NOT_SERVING from the begin of stop().
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
        self._health = HealthServicer()
        self._sockets: list[socket_files.SocketFile] = []
        self.addresses: list[Address] = []

    async def start(self, listen: Sequence[Address]) -> None:
        """Bind every address and serve; raises ListenError naming the first address that cannot be bound."""
        for service in self._services:
            service.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [service.full_name for service in self._services]
        reflection.enable_server_reflection(
            [*names, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME], self._server
        )
        try:
            for address in listen:
                self.addresses.append(self._bind(address))
        except ListenError:
            self._release_sockets()
            raise
        await self._server.start()
        for name in ["", *names]:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        for address in self.addresses:
            log.info("listening on %s", address)

    async def stop(self, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        """Say NOT_SERVING, let calls in flight finish within `grace_seconds`, remove the socket files."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace_seconds)
        self._release_sockets()

    def _bind(self, address: Address) -> Address:
        match address:
            case UnixAddress():
                held = socket_files.SocketFile.claim(address.path)
                self._sockets.append(held)
                with held.binding(self._socket_mode):
                    self._add_port(address)
                return address
            case TcpAddress():
                return TcpAddress(address.host, self._add_port(address))
        raise ListenError(f"{address}: listening on this kind of address is not built yet; use unix:/path or HOST:PORT")

    def _add_port(self, address: UnixAddress | TcpAddress) -> int:
        try:
            return self._server.add_insecure_port(address.grpc_target)
        except RuntimeError as error:
            raise ListenError(f"{address}: cannot listen: the address is taken or not of this host") from error

    def _release_sockets(self) -> None:
        for held in self._sockets:
            held.release()
        self._sockets.clear()


def run(main: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    """Run `main` in a fresh event loop until it returns; SIGTERM and SIGINT set its event.

    Returns the exit status: 0, or that of the StartError that `main` raised, whose one line goes to stderr.
    """

    async def with_signals() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await main(stop)

    try:
        asyncio.run(with_signals())
    except StartError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    return 0
