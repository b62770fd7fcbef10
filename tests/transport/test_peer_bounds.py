"""What one peer can hold of a server without paying, and what the others notice: raw HTTP/2 against a real server process."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TypeGuard

import grpc
import h2.events
import h2.exceptions
import pytest

from guest_transport.addresses import TcpAddress, UnixAddress
from guest_transport.options import CONCURRENT_CALLS, CONNECTION_CALLS
from guest_transport.peers import TcpPeer
from guest_transport.relay.listeners import CONNECTIONS_OF_ONE
from guest_transport.server.grpc_server import GrpcServer
from guest_transport.server.health import WATCHERS_OF_ONE
from tests.transport import ways
from tests.transport.processes import server_process
from tests.transport.raw_caller import RawCaller, raw_caller
from tests.transport.server_process import door
from tests.transport.test_processes import _channel, _status

REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
Stream = grpc.aio.StreamStreamCall[bytes, bytes]
SERVING = 1


def _ends(event: h2.events.Event) -> TypeGuard[h2.events.StreamReset | h2.events.StreamEnded]:
    return isinstance(event, h2.events.StreamReset | h2.events.StreamEnded)


@pytest.mark.parametrize("way", ways.NAMES)
async def test_headers_without_a_body_take_no_place_from_another_caller(tmp_path: Path, way: str) -> None:
    to = ways.way_of(way, tmp_path)
    async with server_process(*to.arguments) as server, contextlib.AsyncExitStack() as stack:
        await server.serving()
        [target] = server.addresses
        for _ in range(12):
            caller = await stack.enter_async_context(raw_caller(target, to.client_context))
            for _ in range(100):
                caller.head("/test.Door/Wait")
            await caller.flush()
        assert await _status(to.channel(target)) == SERVING


@pytest.mark.parametrize("way", ways.NAMES)
async def test_a_call_whose_body_does_not_come_is_ended(tmp_path: Path, way: str) -> None:
    to = ways.way_of(way, tmp_path)
    async with server_process(*to.arguments) as server:
        await server.serving()
        [target] = server.addresses
        async with raw_caller(target, to.client_context) as caller:
            paths = ("/test.Door/Wait", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
            numbers = [caller.head(path) for path in paths]
            for number in numbers:
                caller.h2.send_data(number, b"\0\0\0\0\x09half")
            await caller.flush()
            ended: set[int] = set()
            while ended != set(numbers):
                await caller.until(_ends)
                assert not caller.closed
                ended |= {event.stream_id for event in caller.events if _ends(event)}


async def test_a_call_that_is_ended_for_want_of_its_body_is_counted() -> None:
    refused: list[str] = []
    server = GrpcServer([door()], on_refused=refused.append)
    await server.start([TcpAddress("127.0.0.1", 0)])
    try:
        async with raw_caller(str(server.addresses[0])) as caller:
            caller.head("/test.Door/Wait")
            await caller.flush()
            await caller.until(_ends)
        assert refused == ["no_request"]
    finally:
        await server.stop(0)


@pytest.mark.parametrize("way", ways.NAMES)
async def test_a_connection_is_told_how_many_calls_it_may_have(tmp_path: Path, way: str) -> None:
    to = ways.way_of(way, tmp_path)
    async with server_process(*to.arguments) as server:
        await server.serving()
        async with raw_caller(server.addresses[0], to.client_context) as caller:
            assert caller.streams_limit == CONNECTION_CALLS
            for _ in range(CONNECTION_CALLS):
                caller.head("/test.Door/Wait")
            with pytest.raises(h2.exceptions.TooManyStreamsError):
                caller.head("/test.Door/Wait")


@pytest.mark.parametrize("way", ways.NAMES)
async def test_connections_beyond_those_of_one_peer_are_closed(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The tests' only address, taken for one of another machine.
    monkeypatch.setattr(TcpPeer, "loopback", False)
    refused: list[str] = []
    to = ways.way_of(way, tmp_path)
    server = GrpcServer([door()], identify_unix=True, on_refused=refused.append, tls=to.server_tls)
    await server.start([to.listen])
    [target] = map(str, server.addresses)
    try:
        async with contextlib.AsyncExitStack() as stack:

            async def connect() -> RawCaller:
                return await stack.enter_async_context(raw_caller(target, to.client_context))

            callers = [await connect() for _ in range(CONNECTIONS_OF_ONE)]
            with contextlib.suppress(ConnectionError):
                callers.append(await connect())
            assert [caller.closed for caller in callers[:CONNECTIONS_OF_ONE]] == [False] * CONNECTIONS_OF_ONE
            assert [caller.closed for caller in callers[CONNECTIONS_OF_ONE:]] in ([True], [])
            assert refused == ["connections"]
    finally:
        await server.stop(0)


async def test_users_of_loopback_who_look_alike_share_more_connections_than_one_peer_has() -> None:
    refused: list[str] = []
    server = GrpcServer([door()], on_refused=refused.append)
    await server.start([TcpAddress("127.0.0.1", 0)])
    try:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(CONNECTIONS_OF_ONE + 10):
                await stack.enter_async_context(raw_caller(str(server.addresses[0])))
            assert not refused
    finally:
        await server.stop(0)


async def test_each_refused_call_and_connection_is_counted_by_its_reason(tmp_path: Path) -> None:
    refused: list[str] = []
    server = GrpcServer([door()], calls_of_one=10, on_refused=refused.append)
    await server.start([TcpAddress("127.0.0.1", 0)])
    try:
        async with _channel(str(server.addresses[0])) as mine:
            streams, _ = await _codes(mine, REFLECTION, 13)
            assert refused == ["calls"] * 3
            for stream in streams:
                stream.cancel()
    finally:
        await server.stop(0)


async def _codes(channel: grpc.aio.Channel, path: str, count: int) -> tuple[list[Stream], list[str]]:
    """`count` streams of `path` and what each said first: OK or how it ended."""
    method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
    streams = [method(timeout=60) for _ in range(count)]

    async def first(stream: Stream) -> str:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await stream.write(b"")
            if await stream.read() is not grpc.aio.EOF:
                return "OK"
        return (await stream.code()).name

    return streams, await asyncio.gather(*map(first, streams))


async def test_a_peer_with_all_its_calls_is_refused_and_its_health_checks_and_other_peers_are_not(tmp_path: Path) -> None:
    server = GrpcServer([door()], calls_of_one=10, identify_unix=True)
    await server.start([TcpAddress("127.0.0.1", 0), UnixAddress(str(tmp_path / "s"))])
    [address, of_another] = server.addresses
    another = _channel(str(of_another))
    mine = _channel(str(address))
    try:
        async with mine, another:
            streams, codes = await _codes(mine, REFLECTION, 15)
            assert codes.count("OK") == 10
            assert codes.count("RESOURCE_EXHAUSTED") == 5
            refused = streams[codes.index("RESOURCE_EXHAUSTED")]
            assert (await refused.details() or "").startswith("127.0.0.1 has 10 calls in progress")
            assert await _status(str(address)) == SERVING
            assert (await _codes(another, REFLECTION, 10))[1] == ["OK"] * 10
            for stream in streams:
                stream.cancel()
    finally:
        await server.stop(0)


async def test_a_peer_with_all_its_health_watches_takes_none_from_another(tmp_path: Path) -> None:
    server = GrpcServer([door()], identify_unix=True)
    await server.start([UnixAddress(str(tmp_path / "s")), TcpAddress("127.0.0.1", 0)])
    try:
        async with contextlib.AsyncExitStack() as stack:
            answers = []
            for address in server.addresses:
                channel = await stack.enter_async_context(_channel(str(address)))
                answers.append(await _codes(channel, "/grpc.health.v1.Health/Watch", WATCHERS_OF_ONE + 3))
            for streams, codes in answers:
                assert codes.count("OK") == WATCHERS_OF_ONE
                assert codes.count("RESOURCE_EXHAUSTED") == 3
                for stream in streams:
                    stream.cancel()
    finally:
        await server.stop(0)


def test_all_connections_of_one_peer_stay_under_what_the_server_takes() -> None:
    assert CONNECTIONS_OF_ONE * CONNECTION_CALLS < CONCURRENT_CALLS
