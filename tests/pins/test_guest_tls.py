"""TLS towards guests: real certificates, real handshakes, with and without a pin."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_transport.addresses import TcpAddress
from guest_transport.server.grpc_server import GrpcServer, Service
from guest_transport.tls import ClientTls, ServerTls, certificate_names
from tests.policy.certificates import write, write_authority
from tests.proxy.running import Proxy, running_proxy
from vmm_proxy.directory.guest_tls import GuestTls, tls_for
from vmm_proxy.fleet.outcome import GPU_INFO
from vmm_proxy.upstream.limits import GUEST_CALLS

OURS = b"\x11" * 20
UNREACHABLE = grpc.StatusCode.UNAVAILABLE


class Guest(guest_api_pb2_grpc.GuestApiServicer):
    """Answers who it is, and with whom it speaks."""

    def __init__(self) -> None:
        self.callers: list[str] = []
        self.connections: set[str] = set()

    async def Info(self, request: object, context: object) -> guest_api_pb2.GuestInfo:
        return guest_api_pb2.GuestInfo(instance_id=OURS)

    async def GpuInfo(self, request: object, context: grpc.aio.ServicerContext[Any, Any]) -> guest_api_pb2.GpuInfoResponse:
        self.callers.append(",".join(certificate_names(context)))
        self.connections.add(context.peer())
        return guest_api_pb2.GpuInfoResponse()


Guest.__abstractmethods__ = frozenset()


class Authorities:
    """What the tests' certificates hang on: guests' and proxies' are signed by different authorities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.of_guests, self.of_proxies = trustme.CA(), trustme.CA()
        self.guests_file = write_authority(folder, "guests.ca", self.of_guests)
        self.proxies_file = write_authority(folder, "proxies.ca", self.of_proxies)

    def proxy(self, name: str = "") -> GuestTls:
        chain, key = write(self.folder, "proxy", self.of_proxies, "proxy.example")
        return GuestTls(ClientTls(self.guests_file, chain, key), name)


@pytest.fixture
def authorities(tmp_path: Path) -> Authorities:
    return Authorities(tmp_path)


@contextlib.asynccontextmanager
async def tls_guest(authorities: Authorities, *names: str) -> AsyncIterator[tuple[Guest, str]]:
    """A guest that speaks mutual TLS at an address of this machine."""
    guest = Guest()  # type: ignore[abstract] # the other methods answer UNIMPLEMENTED
    tls = ServerTls(*write(authorities.folder, "guest", authorities.of_guests, *names), authorities.proxies_file)
    service = Service("guest_api.GuestApi", lambda server: guest_api_pb2_grpc.add_GuestApiServicer_to_server(guest, server))
    server = GrpcServer([service], tls=tls)
    await server.start([TcpAddress("127.0.0.1", 0)])
    try:
        yield guest, str(server.addresses[0])
    finally:
        await server.stop()


@pytest.fixture
async def proxy(sockets: Path) -> AsyncIterator[Proxy]:
    async with running_proxy(sockets / "proxy") as proxy:
        yield proxy


@pytest.mark.parametrize("pin", [b"", OURS], ids=["no pin", "pinned"])
async def test_proxy_and_guest_know_each_other_by_their_certificates(proxy: Proxy, authorities: Authorities, pin: bytes) -> None:
    async with tls_guest(authorities, "127.0.0.1") as (guest, address):
        proxy.add("vm1", address, tls=authorities.proxy(), instance_id=pin)
        await asyncio.gather(*(proxy.gpu_info("vm1") for _ in range(8)))
        assert set(guest.callers) == {"dns:proxy.example"}


async def test_calls_that_come_while_the_files_are_read_are_made_over_one_connection(
    proxy: Proxy, authorities: Authorities
) -> None:
    async with tls_guest(authorities, "127.0.0.1") as (guest, address):
        proxy.add("vm1", address, tls=authorities.proxy())
        upstream, deadline = proxy.pool.upstream("vm1"), asyncio.get_running_loop().time() + 10
        # They differ, so that none of them shares another's.
        metadata = [(("cache-control", f"max-age={number}"),) for number in range(GUEST_CALLS)]
        await asyncio.gather(*(upstream.call(GPU_INFO, each, deadline) for each in metadata))
        assert len(guest.callers) == GUEST_CALLS
        assert len(guest.connections) == 1


@pytest.mark.parametrize("pin", [b"", OURS], ids=["no pin", "pinned"])
async def test_the_name_in_the_certificate_must_be_the_guests(proxy: Proxy, authorities: Authorities, pin: bytes) -> None:
    async with tls_guest(authorities, "vm1.example") as (guest, address):
        proxy.add("host", address, tls=authorities.proxy(), instance_id=pin)
        error = await proxy.failure("host")
        assert error.code() is UNREACHABLE
        assert pin or "TLS: its certificate is for another name" in (error.details() or "")
        assert guest.callers == []
        proxy.directory.remove("host")
        proxy.add("vm1", address, tls=authorities.proxy("vm1.example"), instance_id=pin)
        await proxy.gpu_info("vm1")
        assert guest.callers == ["dns:proxy.example"]


async def test_a_guest_of_another_authority_and_one_that_speaks_no_tls_get_no_call(
    proxy: Proxy, authorities: Authorities, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    async with tls_guest(Authorities(others), "127.0.0.1") as (guest, address):
        proxy.add("vm1", address, tls=authorities.proxy())
        error = await proxy.failure("vm1")
        assert error.code() is UNREACHABLE
        assert address not in (error.details() or "")
        assert "TLS: its certificate is of no authority" in (error.details() or "")
        assert guest.callers == []
        proxy.directory.remove("vm1")
        proxy.add("vm1", address)
        error = await proxy.failure("vm1")
        assert error.code() is UNREACHABLE, "and plain text is not spoken to one that wants TLS"
        assert "is TLS the same on both sides?" in (error.details() or "")


async def test_a_renewed_certificate_is_shown_after_a_reload_without_dropping_a_call(
    proxy: Proxy, authorities: Authorities
) -> None:
    async with tls_guest(authorities, "127.0.0.1") as (guest, address):
        proxy.add("vm1", address, tls=authorities.proxy())
        await proxy.gpu_info("vm1")
        write(authorities.folder, "proxy", authorities.of_proxies, "renewed.example")
        await proxy.gpu_info("vm1")
        calls = [asyncio.ensure_future(proxy.gpu_info("vm1")) for _ in range(8)]
        proxy.pool.renew_certificates()
        await asyncio.gather(*calls)
        await proxy.gpu_info("vm1")
        assert guest.callers[0] == "dns:proxy.example"
        assert guest.callers[-1] == "dns:renewed.example"


async def test_files_that_went_missing_are_a_status_that_names_the_guest_and_no_path(
    proxy: Proxy, authorities: Authorities, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_guest(authorities, "127.0.0.1") as (guest, address):
        proxy.add("vm1", address, tls=authorities.proxy())
        (authorities.folder / "proxy.key").unlink()
        error = await proxy.failure("vm1")
        assert error.code() is UNREACHABLE
        assert error.details() == "guest vm1: the proxy's certificates for it cannot be used; its log says more"
        assert f"{authorities.folder}/proxy.key: cannot be read" in caplog.text
        write(authorities.folder, "proxy", authorities.of_proxies, "proxy.example")
        await proxy.gpu_info("vm1")
        assert guest.callers == ["dns:proxy.example"]


async def test_changed_tls_of_a_guest_ends_the_line_of_before(proxy: Proxy, authorities: Authorities) -> None:
    async with tls_guest(authorities, "127.0.0.1") as (_, address):
        proxy.add("vm1", address, tls=authorities.proxy())
        await proxy.gpu_info("vm1")
        entry = proxy.directory.get("vm1")
        assert entry is not None
        proxy.directory.remove("vm1")
        proxy.add("vm1", address, tls=authorities.proxy("other.example"))
        assert (await proxy.failure("vm1")).code() is UNREACHABLE


def test_the_usual_tls_is_for_guests_across_a_network_that_have_none_of_their_own() -> None:
    usual, own = GuestTls(ClientTls(), "usual"), GuestTls(ClientTls(), "own")
    remote, local = TcpAddress("192.0.2.1", 1), TcpAddress("127.0.0.1", 1)
    assert tls_for(remote, None, usual) is usual
    assert tls_for(remote, own, usual) is own
    assert tls_for(remote, None, None) is None
    assert tls_for(local, None, usual) is None
    assert tls_for(local, own, usual) is own
