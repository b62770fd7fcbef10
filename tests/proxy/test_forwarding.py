"""Deadlines, cancellation, redial and metadata, against guests on real sockets."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import grpc
import psutil
import pytest

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_contract.methods import GUEST_SERVICE, proxied_methods
from guest_transport.addresses import UnixAddress
from tests.eventually import eventually
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.running import Proxy, running_proxy
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.upstream import deadlines, passed_metadata


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


def grpc_timeout_seconds(stream: Stream) -> float:
    text = stream.headers["grpc-timeout"]
    return int(text[:-1]) * {"S": 1.0, "m": 1e-3, "u": 1e-6, "M": 60.0, "H": 3600.0, "n": 1e-9}[text[-1]]


def test_every_method_of_the_contract_is_forwarded_and_only_shutdown_is_never_shared() -> None:
    methods = {method.name: method for method in proxied_methods()}
    assert set(methods) == {method.name for method in GUEST_SERVICE.methods}
    assert {name for name, method in methods.items() if not method.only_reads} == {"Shutdown"}
    assert methods["GpuInfo"].bound_seconds == 15
    assert methods["SysInfo"].bound_seconds == 20


async def test_a_callers_deadline_reaches_the_guest_shortened_by_the_margin(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1", timeout=8)
        assert 8 - deadlines.MARGIN_SECONDS - 1 < grpc_timeout_seconds(guest.requests[0]) < 8


@pytest.mark.parametrize(("method", "bound"), [("GpuInfo", 15), ("SysInfo", 20), ("Shutdown", 20)])
async def test_a_call_without_a_deadline_gets_the_products_own(proxy: Proxy, sockets: Path, method: str, bound: float) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        proxy.add("vm1", guest.address)
        await getattr(proxy.api, method)(guest_api_pb2.Id(id="vm1"))
        assert abs(grpc_timeout_seconds(guest.requests[0]) - bound) < 1


async def test_a_deadline_of_a_year_does_not_hold_a_place_for_a_year(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1", timeout=3e7)
        assert grpc_timeout_seconds(guest.requests[0]) <= deadlines.LONGEST_SECONDS + 1, "gRPC rounds up"


async def test_a_cancelled_call_is_cancelled_at_the_guest_within_200_ms(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        call = proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=30)
        started = asyncio.ensure_future(guest.called.wait())
        await asyncio.wait([started], timeout=5)
        call.cancel()
        await asyncio.wait_for(guest.requests[0].reset.wait(), 0.2)


@pytest.mark.parametrize("vmm_answer", [None, b"OK 5\n"], ids=["plain", "hvsock"])
async def test_a_guest_that_ignores_the_first_connection_is_dialled_again_within_the_deadline(
    proxy: Proxy, sockets: Path, vmm_answer: bytes | None
) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu, ignored_connections=1, vmm_answer=vmm_answer) as guest:
        proxy.add("vm1", guest.address)
        assert await proxy.gpu_info("vm1", timeout=6) == guest_api_pb2.GpuInfoResponse()
        assert guest.connections == 2
        assert len(guest.requests) == 1


async def test_a_guest_behind_hybrid_vsock_is_called_by_its_port(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu, vmm_answer=b"OK 1073741824\n") as guest:
        proxy.add("vm1", guest.address)
        for _ in range(3):
            assert await proxy.gpu_info("vm1") == guest_api_pb2.GpuInfoResponse()
        assert guest.asked_ports == [b"CONNECT 8000\n"]
        assert guest.requests[0].headers[":authority"] == "localhost"


async def test_a_vmm_that_refuses_the_port_is_quoted_and_its_path_stays_ours(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu, vmm_answer=b"ERR \x1b[2J\n") as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1", timeout=5)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        details = error.details() or ""
        assert details.startswith("guest vm1: unreachable: the VMM refused")
        assert details.isprintable()
        assert str(sockets) not in details


async def test_a_shutdown_that_met_an_ignored_connection_is_sent_once(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu, ignored_connections=1) as guest:
        proxy.add("vm1", guest.address)
        await proxy.api.Shutdown(guest_api_pb2.Id(id="vm1"), timeout=6)
        assert len(guest.requests) == 1


async def test_a_guest_that_ignores_every_connection_is_unavailable_long_before_the_deadline(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu, ignored_connections=99) as guest:
        proxy.add("vm1", guest.address)
        started = time.monotonic()
        error = await proxy.failure("vm1", timeout=15)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "guest vm1: unreachable: it does not answer the connection"
        assert time.monotonic() - started < 6


async def test_the_first_connection_carries_the_call_and_nobody_probes(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        proxy.add("vm1", guest.address)
        assert guest.connections == 0, "a guest is dialled when it is called, not before"
        await proxy.gpu_info("vm1")
        assert guest.connections == 1


@pytest.mark.parametrize("change", ["removed", "stopped", "moved"])
async def test_a_call_in_flight_ends_at_once_when_its_guest_goes(proxy: Proxy, sockets: Path, change: str) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        failing = asyncio.create_task(proxy.failure("vm1", timeout=30))
        await asyncio.wait_for(guest.called.wait(), 5)
        entry = proxy.directory.get("vm1")
        assert entry is not None
        match change:
            case "removed":
                proxy.directory.remove("vm1")
            case "stopped":
                proxy.directory.replace(GuestEntry("vm1", entry.address, running=False))
            case "moved":
                proxy.directory.replace(GuestEntry("vm1", UnixAddress(f"{sockets}/other")))
        error = await asyncio.wait_for(failing, 2)
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert change in (error.details() or "")
        await asyncio.wait_for(guest.requests[0].reset.wait(), 2)


async def test_a_new_label_keeps_the_line_and_its_calls(proxy: Proxy, sockets: Path) -> None:
    hold = asyncio.Event()

    async def when_told(stream: Stream) -> None:
        await hold.wait()
        await stream.answer(b"")

    async with raw_guest(str(sockets / "g"), when_told) as guest:
        proxy.add("vm1", guest.address)
        call = asyncio.create_task(proxy.gpu_info("vm1"))
        await asyncio.wait_for(guest.called.wait(), 5)
        entry = proxy.directory.get("vm1")
        assert entry is not None
        proxy.directory.replace(GuestEntry("vm1", entry.address, labels={"rack": "7"}))
        hold.set()
        assert await call == guest_api_pb2.GpuInfoResponse()


async def test_only_listed_metadata_reaches_a_guest(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu) as guest:
        proxy.add("vm1", guest.address)
        metadata = (
            ("proxy-authorization", "Bearer s3cret"),
            ("cookie", "a=b"),
            ("x-request-id", "r1"),
            ("cache-control", "max-age=3"),
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("x-forwarded-for", "10.0.0.1"),
            ("evil-bin", b"\0\1"),
        )
        await proxy.gpu_info("vm1", metadata=metadata)
        ours = {"cache-control", "traceparent", "x-request-id"}
        protocol = {"te", "content-type", "user-agent", "grpc-accept-encoding", "grpc-timeout"}
        headers = {name for name in guest.requests[0].headers if not name.startswith(":")}
        assert headers == ours | protocol
        assert guest.requests[0].headers["cache-control"] == "max-age=3"
        assert guest.requests[0].headers[":authority"] == "localhost"


@pytest.mark.parametrize(
    "metadata", [(("x-request-id", "x" * 257),), (("x-request-id", "x"),) * (passed_metadata.ENTRIES_LIMIT + 1)]
)
async def test_listed_metadata_over_its_limit_is_refused_by_name(
    proxy: Proxy, sockets: Path, metadata: tuple[tuple[str, str], ...]
) -> None:
    proxy.add("vm1", f"unix:{sockets}/g")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await proxy.gpu_info("vm1", metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "metadata" in (caught.value.details() or "")


async def test_a_tcp_guest_is_dialled_directly_whatever_http_proxy_says(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_the_proxy = asyncio.Event()

    def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked_the_proxy.set()
        writer.close()

    web_proxy = await asyncio.start_server(note, "127.0.0.1", 0)
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{web_proxy.sockets[0].getsockname()[1]}")
    monkeypatch.delenv("no_proxy", raising=False)
    server = grpc.aio.server()

    class Guest(guest_api_pb2_grpc.GuestApiServicer):
        async def GpuInfo(self, request: object, context: object) -> guest_api_pb2.GpuInfoResponse:
            return guest_api_pb2.GpuInfoResponse(error="here")

    Guest.__abstractmethods__ = frozenset()
    guest_api_pb2_grpc.add_GuestApiServicer_to_server(Guest(), server)  # type: ignore[abstract] # the other methods answer UNIMPLEMENTED
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with running_proxy(sockets / "direct") as proxy:
        proxy.add("vm1", f"127.0.0.1:{port}")
        assert (await proxy.gpu_info("vm1")).error == "here"
    await server.stop(None)
    web_proxy.close()
    assert not asked_the_proxy.is_set()


@pytest.mark.parametrize(("vmm_answer", "guests"), [(None, 1000), (b"OK 5\n", 200)], ids=["plain", "hvsock"])
async def test_guests_that_come_and_go_leave_no_descriptor_and_little_memory(
    proxy: Proxy, sockets: Path, vmm_answer: bytes | None, guests: int
) -> None:
    process = psutil.Process()
    async with raw_guest(str(sockets / "g"), no_gpu, vmm_answer=vmm_answer) as guest:

        async def come_and_go(number: int) -> None:
            proxy.add(f"vm{number}", guest.address)
            await proxy.gpu_info(f"vm{number}")
            proxy.directory.remove(f"vm{number}")
            guest.requests.clear()

        for number in range(guests // 5):
            await come_and_go(number)
        await eventually(lambda: not guest.still_open)
        descriptors = len(os.listdir("/proc/self/fd"))
        memory = process.memory_info().rss
        for number in range(guests):
            await come_and_go(number)
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
        assert process.memory_info().rss - memory < 8e6
