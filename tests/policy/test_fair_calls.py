"""Calls of one caller: whoever takes all it can get is refused by name, and the others notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from guest_api import guest_api_pb2
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from tests.eventually import eventually
from tests.policy.callers import bearer
from tests.policy.two_tenants import BLUE, asked, code_of, fleet_of_two
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.running import Proxy
from vmm_proxy.upstream.limits import CALLS_OF_ONE, PROXY_CALLS, PROXY_CALLS_KEPT, PROXY_CALLS_OF_ONE

METHODS = ("GpuInfo", "SysInfo", "NetworkInfo", "ListContainers")
CONNECTIONS = 3


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def test_a_caller_whose_guests_hang_holds_no_more_than_its_share_of_the_calls_to_guests(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, *_), contextlib.AsyncExitStack() as stack:
        names = [f"hangs{number}" for number in range(PROXY_CALLS_OF_ONE // len(METHODS))]
        hanging = [await stack.enter_async_context(raw_guest(str(sockets / name), silence)) for name in names]
        for name, guest in zip(names, hanging, strict=True):
            proxy.add(name, guest.address, labels=BLUE)
        held = [
            getattr(proxy.api, method)(guest_api_pb2.Id(id=name), timeout=60, metadata=bearer("blue-viewer"))
            for name in names
            for method in METHODS
        ]
        await eventually(lambda: sum(len(guest.requests) for guest in hanging) >= PROXY_CALLS_OF_ONE)
        refused = proxy.api.GpuInfo(guest_api_pb2.Id(id="blue1"), timeout=20, metadata=bearer("blue-viewer"))
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await refused.details() or "").startswith(
            f"token blue-viewer has {PROXY_CALLS_OF_ONE} calls to guests in progress"
        )
        for other in ("viewer", "blue-operator", "admin"):
            assert await code_of(asked(proxy, "GpuInfo", "blue1", bearer(other))) is grpc.StatusCode.OK
        for call in held:
            call.cancel()


async def test_four_callers_that_take_all_they_can_leave_administrators_and_health_their_share(sockets: Path) -> None:
    callers = ("viewer", "operator", "blue-viewer", "blue-operator")
    async with fleet_of_two(sockets) as (proxy, *_), contextlib.AsyncExitStack() as stack:
        address = proxy.parts.server.addresses[0]
        assert isinstance(address, UnixAddress)
        hanging, calls = [], []
        for caller in callers:
            connection = Proxy(proxy.parts, address)
            stack.push_async_callback(connection.channel.close)
            for number in range(PROXY_CALLS_OF_ONE // len(METHODS)):
                name = f"{caller}{number}"
                guest = await stack.enter_async_context(raw_guest(str(sockets / name), silence))
                hanging.append(guest)
                proxy.add(name, guest.address, labels=BLUE)
                calls += [
                    getattr(connection.api, method)(guest_api_pb2.Id(id=name), timeout=60, metadata=bearer(caller))
                    for method in METHODS
                ]
        await eventually(lambda: sum(len(guest.requests) for guest in hanging) >= PROXY_CALLS - PROXY_CALLS_KEPT)
        for caller in callers:
            refused = await code_of(asked(proxy, "GpuInfo", "blue1", bearer(caller)))
            assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await code_of(asked(proxy, "GpuInfo", "blue1", bearer("admin"))) is grpc.StatusCode.OK
        health = health_pb2_grpc.HealthStub(proxy.channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        for call in calls:
            call.cancel()


async def test_a_caller_with_all_its_streams_of_reflection_takes_no_call_from_another(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, *_), contextlib.AsyncExitStack() as stack:
        address = proxy.parts.server.addresses[0]
        assert isinstance(address, UnixAddress)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        streams = []
        for _ in range(CONNECTIONS):
            channel = grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))
            await stack.enter_async_context(channel)
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            streams += [stub.ServerReflectionInfo(metadata=bearer("blue-viewer")) for _ in range(100)]

        async def code(stream: grpc.aio.StreamStreamCall[object, object]) -> str:
            try:
                await stream.write(ask)
                await stream.read()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return (await stream.code()).name
            return "OK"

        codes = await asyncio.gather(*map(code, streams))
        assert codes.count("OK") == CALLS_OF_ONE
        assert codes.count("RESOURCE_EXHAUSTED") == len(streams) - CALLS_OF_ONE
        for other in ("viewer", "blue-operator", "admin"):
            assert await code_of(asked(proxy, "GpuInfo", "blue1", bearer(other))) is grpc.StatusCode.OK
