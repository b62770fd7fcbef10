"""A fleet for the proxy's pages: real gRPC guests on Unix sockets, a real proxy in front of them, its pages on a loopback port."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_api.guest_api_pb2 import GpuInfoResponse, ListContainersResponse, SystemInfo
from guest_transport.addresses import TcpAddress, UnixAddress
from guest_transport.http.connections import ClientLimits
from guest_transport.http.server import PageServer
from vmm_proxy.app import Parts, build, join_pages, page_app
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.directory.sources import SourceState
from vmm_proxy.pages.dashboard.render import Pages
from vmm_proxy.pages.parts import PageParts
from vmm_proxy.pages.settings import PageSetup
from vmm_proxy.policy.access import AccessRules
from vmm_proxy.policy.audit_log import Audit

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass
class Answers(guest_api_pb2_grpc.GuestApiServicer):
    """What one guest answers; what is `silent` is never answered."""

    gpus: GpuInfoResponse = field(default_factory=GpuInfoResponse)
    system: SystemInfo = field(default_factory=lambda: SystemInfo(os_name="Debian", num_cpus=4, uptime=90061))
    containers: ListContainersResponse = field(default_factory=ListContainersResponse)
    network: guest_api_pb2.NetworkInformation = field(default_factory=guest_api_pb2.NetworkInformation)
    silent: set[str] = field(default_factory=set)
    asked: dict[str, int] = field(default_factory=dict)

    async def _heard(self, method: str) -> None:
        self.asked[method] = self.asked.get(method, 0) + 1
        if method in self.silent:
            await asyncio.get_running_loop().create_future()

    async def GpuInfo(self, request: empty_pb2.Empty, context: Context) -> GpuInfoResponse:
        await self._heard("GpuInfo")
        return self.gpus

    async def SysInfo(self, request: empty_pb2.Empty, context: Context) -> SystemInfo:
        await self._heard("SysInfo")
        return self.system

    async def ListContainers(self, request: empty_pb2.Empty, context: Context) -> ListContainersResponse:
        await self._heard("ListContainers")
        return self.containers

    async def Info(self, request: empty_pb2.Empty, context: Context) -> guest_api_pb2.GuestInfo:
        return guest_api_pb2.GuestInfo(version="1")

    async def NetworkInfo(self, request: empty_pb2.Empty, context: Context) -> guest_api_pb2.NetworkInformation:
        await self._heard("NetworkInfo")
        return self.network

    async def Shutdown(self, request: empty_pb2.Empty, context: Context) -> empty_pb2.Empty:
        return empty_pb2.Empty()


ALL_SILENT = {"GpuInfo", "SysInfo", "ListContainers"}


class Fleet:
    """A running proxy with its pages, and the guests behind it."""

    def __init__(self, folder: Path, parts: Parts, pages: PageParts, server: PageServer) -> None:
        self.folder = folder
        self.parts = parts
        self.pages = pages
        self.server = server
        self.guests: dict[str, Answers] = {}
        self.sources: dict[str, SourceState] = {}
        self._servers: dict[str, grpc.aio.Server] = {}
        self._numbers: dict[str, int] = {}

    @property
    def directory(self) -> Directory:
        return self.parts.directory

    @property
    def address(self) -> TcpAddress:
        [address] = self.server.addresses
        assert isinstance(address, TcpAddress)
        return address

    async def add(
        self,
        guest_id: str,
        answers: Answers | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        gpus: tuple[str, ...] = (),
    ) -> Answers:
        """A guest that answers, in the directory."""
        answers = self.guests[guest_id] = answers or Answers()
        await self.start(guest_id)
        self.directory.add(GuestEntry(guest_id, self._socket(guest_id), labels=labels or {}, gpus=gpus))
        return answers

    def add_dead(self, guest_id: str) -> None:
        """A guest at whose address nobody is."""
        self.directory.add(GuestEntry(guest_id, self._socket(guest_id)))

    async def start(self, guest_id: str) -> None:
        server = self._servers[guest_id] = grpc.aio.server()
        guest_api_pb2_grpc.add_GuestApiServicer_to_server(self.guests[guest_id], server)
        server.add_insecure_port(self._socket(guest_id).grpc_target)
        await server.start()

    async def stop(self, guest_id: str) -> None:
        await self._servers.pop(guest_id).stop(None)

    async def close(self) -> None:
        await self.server.stop(grace_seconds=1.0)
        await self.pages.close()
        await self.parts.close()
        for server in self._servers.values():
            await server.stop(None)

    def _socket(self, guest_id: str) -> UnixAddress:
        number = self._numbers.setdefault(guest_id, len(self._numbers))
        return UnixAddress(str(self.folder / f"g{number}"))


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket's name (107 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="gs"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def running_fleet(
    *,
    labels: Mapping[str, str] | None = None,
    target: str | None = None,
    containers: bool = True,
    limits: ClientLimits | None = None,
    access: AccessRules | None = None,
    need_token: bool = False,
    guest_api: bool = False,
    audit: Audit | None = None,
) -> AsyncGenerator[Fleet, None]:
    """A proxy without guests, its pages on a loopback port."""
    with short_folder() as folder:
        parts = build(Directory(), access=access, audit=audit)
        setup = PageSetup(TcpAddress("127.0.0.1", 0), labels or {}, containers, target, need_token, guest_api)
        server = PageServer(limits=limits)
        pages = join_pages(setup, parts, await asyncio.to_thread(Pages, "1.2.3"), server, sources=lambda: fleet.sources)
        fleet = Fleet(folder, parts, pages, server)
        await parts.server.start([UnixAddress(str(folder / "proxy"))])
        await server.start(page_app(pages, parts), TcpAddress("127.0.0.1", 0))
        try:
            yield fleet
        finally:
            await fleet.close()
            await parts.server.stop(0)
