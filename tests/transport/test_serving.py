"""The server frame in this process: all addresses or none, and what a host name stands for."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from guest_transport.addresses import TcpAddress, UnixAddress, parse_address
from guest_transport.errors import ListenError
from guest_transport.options import CONNECTION_CALLS, channel_options, server_options
from guest_transport.server.grpc_server import GrpcServer
from tests.transport.server_process import door


async def test_a_start_that_fails_leaves_nothing_bound(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        server = GrpcServer([])
        free = TcpAddress("127.0.0.2", port)
        with pytest.raises(ListenError, match=rf"^127\.0\.0\.1:{port}: cannot listen: port {port}: "):
            await server.start([UnixAddress(f"{tmp_path}/s"), free, TcpAddress("127.0.0.1", port)])
        assert list(tmp_path.iterdir()) == []
        second = GrpcServer([])
        await second.start([UnixAddress(f"{tmp_path}/s"), free])
        await second.stop()


async def test_a_port_that_another_server_took_between_the_try_and_the_bind_is_not_shared() -> None:
    first = GrpcServer([])
    await first.start([TcpAddress("127.0.0.1", 0)])
    [taken] = first.addresses
    # As far as a server is that tried the port before: what is left is gRPC's own bind.
    late = grpc.aio.server(options=server_options())
    try:
        with pytest.raises(RuntimeError):
            late.add_insecure_port(str(taken))
    finally:
        await late.start()
        await late.stop(None)
        await first.stop()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("192.0.2.1:0", "no address of this host"),
        ("no-such-host.invalid:80", "does not resolve"),
        ("unix:/no/such/folder/s", "there is no folder /no/such/folder"),
        ("hvsock:/a:1", "vsock:any:1"),
    ],
)
async def test_an_address_that_cannot_be_listened_on_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ListenError) as refused:
        await GrpcServer([]).start([parse_address(text)])
    assert str(refused.value).startswith(f"{text}: cannot listen: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize("name", ["plain", "with space", "a%20b", "q?x=1", "h#f", "grün"])
async def test_any_file_name_can_be_listened_on_and_dialled(tmp_path: Path, name: str) -> None:
    address = UnixAddress(f"{tmp_path}/{name}")
    server = GrpcServer([])
    await server.start([address])
    assert Path(address.path).is_socket()
    async with grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel:
        await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    await server.stop()
    assert list(tmp_path.iterdir()) == []


async def test_a_host_name_is_listened_on_at_each_of_its_addresses_with_one_port() -> None:
    server = GrpcServer([])
    await server.start([TcpAddress("localhost", 0)])
    [address] = server.addresses
    assert isinstance(address, TcpAddress)
    assert address.port > 0
    for family, _, _, _, where in socket.getaddrinfo("localhost", address.port, type=socket.SOCK_STREAM):
        with socket.socket(family, socket.SOCK_STREAM) as client:
            client.connect(where)
    await server.stop()


async def test_health_and_reflection_know_every_service() -> None:
    server = GrpcServer([door()])
    await server.start([TcpAddress("127.0.0.1", 0)])
    [address] = server.addresses
    assert isinstance(address, TcpAddress)
    async with grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        listed = await health.List(health_pb2.HealthListRequest(), timeout=10)
        assert {name: status.status for name, status in listed.statuses.items()} == {"": 1, "test.Door": 1}
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        [answer] = [a async for a in reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([request]))]
        names = {service.name for service in answer.list_services_response.service}
        assert names == {"test.Door", "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    await server.stop()


async def test_stopping_is_told_to_handlers_whose_streams_never_end() -> None:
    server = GrpcServer([])
    await server.start([TcpAddress("127.0.0.1", 0)])
    assert not server.stopping.is_set()
    await server.stop()
    assert server.stopping.is_set()


Unary = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
Call = grpc.aio.UnaryUnaryCall[bytes, bytes] | grpc.aio.UnaryStreamCall[bytes, bytes] | grpc.aio.StreamStreamCall[bytes, bytes]


@contextlib.asynccontextmanager
async def _dialled_server(tmp_path: Path) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server with nothing but health and reflection."""
    address, server = UnixAddress(f"{tmp_path}/s"), GrpcServer([])
    await server.start([address])
    try:
        async with grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel:
            yield channel
    finally:
        await server.stop()


async def _status_of(call: Call) -> tuple[grpc.StatusCode, str]:
    return await call.code(), await call.details() or ""


async def test_a_request_that_does_not_decode_is_the_callers_mistake_and_no_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = (grpc.StatusCode.INVALID_ARGUMENT, "the request does not decode")
    async with _dialled_server(tmp_path) as channel:
        caplog.clear()
        check: Unary = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await _status_of(check(b"\xff", timeout=10)) == refusal
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream("/grpc.health.v1.Health/Watch")
        assert await _status_of(watch(b"\xff", timeout=10)) == refusal
        reflect: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        assert await _status_of(reflect(iter([b"\xff"]), timeout=10)) == refusal
        assert await _status_of(check(b"", timeout=10)) == (grpc.StatusCode.OK, "")
        assert caplog.records == []


async def test_of_a_burst_of_calls_each_is_answered_or_told_that_there_are_too_many(tmp_path: Path) -> None:
    address = UnixAddress(f"{tmp_path}/s")
    async with _dialled_server(tmp_path), contextlib.AsyncExitStack() as stack:
        calls = []
        # More than gRPC lets wait, by its own default, before it begins to cancel; no connection brings more than it may.
        for _ in range(25):
            channel = grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))
            await stack.enter_async_context(channel)
            check: Unary = channel.unary_unary("/grpc.health.v1.Health/Check")
            calls += [check(b"", timeout=30) for _ in range(CONNECTION_CALLS)]
        codes = {await call.code() for call in calls}
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
