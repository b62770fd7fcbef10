"""A proxy in the test's own event loop, joined like app.py joins it, with real sockets on both sides."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_fleet.v1 import fleet_pb2_grpc
from guest_transport.addresses import Address, UnixAddress
from guest_transport.options import channel_options
from guest_transport.tls import ServerTls
from vmm_proxy.app import Parts, build
from vmm_proxy.directory.directory import Directory, GuestEntry
from vmm_proxy.directory.entry import guest_address
from vmm_proxy.directory.guest_tls import GuestTls
from vmm_proxy.directory.registered import RegisteredGuests
from vmm_proxy.fleet.watch import Sleep
from vmm_proxy.policy.access import AccessRules
from vmm_proxy.policy.audit_log import Audit

METHODS = ("Info", "SysInfo", "GpuInfo", "NetworkInfo", "ListContainers", "Shutdown")


class Proxy:
    """A running proxy and a channel to it."""

    def __init__(self, parts: Parts, address: UnixAddress) -> None:
        self.parts = parts
        self.directory: Directory = parts.directory
        self.pool = parts.pool
        self.channel = grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))
        self.api = guest_api_pb2_grpc.ProxiedGuestApiStub(self.channel)
        self.fleet = fleet_pb2_grpc.FleetServiceStub(self.channel)

    def add(self, guest_id: str, address: str, **entry: object) -> None:
        place, dstack = guest_address(address, "address", allow_plaintext=True)
        self.directory.add(GuestEntry(guest_id, place, dstack=dstack, **entry))  # type: ignore[arg-type] # a test's shorthand

    async def gpu_info(self, guest_id: str, timeout: float | None = 10, **call: object) -> guest_api_pb2.GpuInfoResponse:
        return await self.api.GpuInfo(guest_api_pb2.Id(id=guest_id), timeout=timeout, **call)  # type: ignore[arg-type] # the same

    async def failure(self, guest_id: str, method: str = "GpuInfo", timeout: float | None = 10) -> grpc.aio.AioRpcError:
        try:
            await getattr(self.api, method)(guest_api_pb2.Id(id=guest_id), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"{method} of {guest_id!r} did not fail")


@contextlib.asynccontextmanager
async def running_proxy(
    socket: Path,
    *,
    also: Address | None = None,
    sleep: Sleep = asyncio.sleep,
    directory: Directory | None = None,
    registered: RegisteredGuests | None = None,
    access: AccessRules | None = None,
    audit: Audit | None = None,
    tls: ServerTls | None = None,
    guest_tls: GuestTls | None = None,
    read_only: UnixAddress | None = None,
) -> AsyncIterator[Proxy]:
    """A proxy that listens on `socket`, on `also`, and at `read_only` for readers."""
    address = UnixAddress(str(socket))
    parts = build(
        Directory() if directory is None else directory,
        access=access,
        audit=audit,
        tls=tls,
        guest_tls=guest_tls,
        registered=registered,
        sleep=sleep,
        read_only=read_only is not None,
    )
    await parts.server.start([address, also] if also else [address])
    if parts.read_only_server and read_only:
        await parts.read_only_server.start([read_only])
    proxy = Proxy(parts, address)
    try:
        yield proxy
    finally:
        await proxy.channel.close()
        await parts.stop()
