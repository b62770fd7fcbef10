"""Serves guest_api.GuestApi: each method asks one part of the agent and answers with its value or with one status.

It takes every caller as hostile: requests are empty, so one header is all there is to parse, and an error's text says which part failed and
why, never more. FactError becomes UNAVAILABLE, a refused Shutdown PERMISSION_DENIED, a bug of ours INTERNAL with its trace in the log only.
Rejected: an interceptor for the errors (it would cost the constant answer of a guest without a GPU more than the answer itself).
"""
# ruff: noqa: N802, ARG002 -- names and parameters of the methods are the contract's

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import grpc
from google.protobuf import empty_pb2

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_contract.cache_control import CacheControlError, parse_max_age
from guest_service.host_facts.errors import FactError, PartLog
from guest_service.host_facts.power import Power, ShutdownRefusedError
from guest_transport.abort import abort
from guest_transport.peers import Peer, Peers, TcpPeer
from guest_transport.server.grpc_server import Service
from guest_transport.tls import certificate_names

log = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[empty_pb2.Empty, T]

SERVICE_NAME = guest_api_pb2.DESCRIPTOR.services_by_name["GuestApi"].full_name


class Telemetry(Protocol):
    """What is used of the GPU telemetry."""

    def answer_without_sample(self) -> guest_api_pb2.GpuInfoResponse | None:
        """The reply of a guest that has no card or no driver, else None."""

    async def gpu_info(
        self, caller: str, *, max_age_seconds: float | None = None, timeout_seconds: float | None = None
    ) -> guest_api_pb2.GpuInfoResponse:
        """The GPUs, from a sample at most so old."""


class SystemReader(Protocol):
    """What is used of the system's facts."""

    async def read(self) -> guest_api_pb2.SystemInfo:
        """The system now, or FactError."""


class NetworkReader(Protocol):
    """What is used of the network's facts."""

    async def read(self) -> guest_api_pb2.NetworkInformation:
        """The network now, or FactError."""


class ContainerReader(Protocol):
    """What is used of the container engine."""

    async def list(self) -> guest_api_pb2.ListContainersResponse:
        """All containers, or FactError."""


class GuestApi(guest_api_pb2_grpc.GuestApiServicer):
    """The servicer; its parts come from app.py."""

    def __init__(
        self,
        *,
        telemetry: Telemetry,
        system: SystemReader,
        network: NetworkReader,
        containers: ContainerReader,
        info: Callable[[], guest_api_pb2.GuestInfo],
        power: Power,
        peers: Peers,
        part_log: PartLog,
    ) -> None:
        self._telemetry = telemetry
        self._system = system
        self._network = network
        self._containers = containers
        self._info = info
        self._power = power
        self._peers = peers
        self._log = part_log

    def service(self) -> Service:
        """This servicer as a part of a gRPC server."""
        return Service(SERVICE_NAME, lambda server: guest_api_pb2_grpc.add_GuestApiServicer_to_server(self, server))

    async def Info(self, request: empty_pb2.Empty, context: Context[guest_api_pb2.GuestInfo]) -> guest_api_pb2.GuestInfo:
        """Who the guest is."""
        return self._info()

    async def SysInfo(self, request: empty_pb2.Empty, context: Context[guest_api_pb2.SystemInfo]) -> guest_api_pb2.SystemInfo:
        """The operating system and its resources."""
        return await self._ask("SysInfo", self._system.read, context)

    async def GpuInfo(
        self, request: empty_pb2.Empty, context: Context[guest_api_pb2.GpuInfoResponse]
    ) -> guest_api_pb2.GpuInfoResponse:
        """The GPUs; a guest without a card answers before it looks at the call."""
        reply = self._telemetry.answer_without_sample()
        if reply is not None:
            return reply
        try:
            max_age = parse_max_age(
                value for key, value in context.invocation_metadata() or () if key == "cache-control" and isinstance(value, str)
            )
        except CacheControlError as error:
            refusal = str(error)
        else:
            caller = caller_of(self._peers.of(context))
            return await self._telemetry.gpu_info(caller, max_age_seconds=max_age, timeout_seconds=context.time_remaining())
        return await abort(context, grpc.StatusCode.INVALID_ARGUMENT, refusal)

    async def NetworkInfo(
        self, request: empty_pb2.Empty, context: Context[guest_api_pb2.NetworkInformation]
    ) -> guest_api_pb2.NetworkInformation:
        """The network."""
        return await self._ask("NetworkInfo", self._network.read, context)

    async def ListContainers(
        self, request: empty_pb2.Empty, context: Context[guest_api_pb2.ListContainersResponse]
    ) -> guest_api_pb2.ListContainersResponse:
        """The containers, running or not."""
        return await self._ask("ListContainers", self._containers.list, context)

    async def Shutdown(self, request: empty_pb2.Empty, context: Context[empty_pb2.Empty]) -> empty_pb2.Empty:
        """Accept the shutdown; the command runs when the answer is out."""
        peer = self._peers.of(context)
        try:
            first = self._power.request(shown_caller(peer, context), local_listener=not isinstance(peer, TcpPeer))
        except ShutdownRefusedError as error:
            refusal = str(error)
        else:
            if first:
                context.add_done_callback(self._answered)  # type: ignore[arg-type] # the stub names a class, gRPC takes any callable
            return empty_pb2.Empty()
        return await abort(context, grpc.StatusCode.PERMISSION_DENIED, refusal)

    def _answered(self, _: object) -> None:
        self._power.power_off()

    async def _ask(self, method: str, read: Callable[[], Awaitable[T]], context: Context[T]) -> T:
        try:
            value = await read()
        except FactError as error:
            self._log.failed(method, error)
            refusal = grpc.StatusCode.UNAVAILABLE, str(error)
        except Exception:
            log.exception("%s failed", method)
            refusal = grpc.StatusCode.INTERNAL, f"{method} failed inside the guest agent; its log says why"
        else:
            self._log.works(method)
            return value
        return await abort(context, *refusal)


def shown_caller(peer: Peer, context: Context[T]) -> str:
    """Who calls, for the log: the peer, and the names in its certificate where TLS verified one."""
    names = certificate_names(context) if isinstance(peer, TcpPeer) else ()
    return f"{peer} ({', '.join(names)})" if names else str(peer)


def caller_of(peer: Peer) -> str:
    """Who calls again and again, without the port that each new connection changes."""
    return peer.host if isinstance(peer, TcpPeer) else str(peer)
