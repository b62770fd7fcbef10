"""Callers on the Unix socket: who they are is for the kernel to say, and other users of this machine really connect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from guest_api import guest_api_pb2
from tests.policy.callers import channel_as, needs_root, rules
from tests.policy.two_tenants import DENIED, NOBODY, code_of, fleet_of_two
from tests.proxy.running import METHODS


@needs_root
async def test_a_guest_that_one_sees_and_may_not_shut_down_is_denied_and_not_hidden(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (_, blue, red), channel_as(sockets / "proxy", NOBODY, 0) as channel:
        shutdown: Callable[..., Awaitable[bytes]] = channel.unary_unary("/guest_api.ProxiedGuestApi/Shutdown")
        assert await code_of(shutdown(guest_api_pb2.Id(id="red1").SerializeToString(), timeout=30)) is DENIED
        assert await code_of(shutdown(guest_api_pb2.Id(id="blue1").SerializeToString(), timeout=30)) is grpc.StatusCode.OK
        assert [stream.path for stream in blue.requests] == ["/guest_api.GuestApi/Shutdown"]
        assert red.requests == []


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "reads", "shuts_down"),
    [
        (NOBODY, 65533, (0,), grpc.StatusCode.OK, grpc.StatusCode.OK),
        (1234, 0, (), grpc.StatusCode.OK, DENIED),
        (1234, 65533, (0,), grpc.StatusCode.OK, DENIED),
        (0, 65533, (), grpc.StatusCode.OK, grpc.StatusCode.OK),
    ],
    ids=["granted user", "in the socket's group", "in it besides", "root"],
)
@needs_root
async def test_a_unix_caller_is_who_the_kernel_says(
    sockets: Path, uid: int, gid: int, groups: tuple[int, ...], reads: grpc.StatusCode, shuts_down: grpc.StatusCode
) -> None:
    async with fleet_of_two(sockets) as _, channel_as(sockets / "proxy", uid, gid, groups) as channel:
        for method, expected in (("Info", reads), ("Shutdown", shuts_down)):
            call: Callable[..., Awaitable[bytes]] = channel.unary_unary(f"/guest_api.ProxiedGuestApi/{method}")
            request = guest_api_pb2.Id(id="blue1").SerializeToString()
            assert await code_of(call(request, timeout=30)) is expected


@needs_root
async def test_whoever_passes_an_open_socket_without_a_grant_is_denied_everything_but_health(sockets: Path) -> None:
    async with fleet_of_two(sockets, rules()) as _:
        (sockets / "proxy").chmod(0o666)
        async with channel_as(sockets / "proxy", 1234, 65533) as channel:
            for method in METHODS:
                call: Callable[..., Awaitable[bytes]] = channel.unary_unary(f"/guest_api.ProxiedGuestApi/{method}")
                assert await code_of(call(b"", timeout=30)) is DENIED
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


@needs_root
async def test_health_is_open_and_reflection_is_for_viewers(sockets: Path) -> None:
    nobody = rules(socket_group=None)
    async with fleet_of_two(sockets, nobody) as (proxy, *_), channel_as(sockets / "proxy", NOBODY, 0) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()

        def names(of: grpc.aio.Channel) -> Awaitable[Any]:
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            call = reflection_pb2_grpc.ServerReflectionStub(of).ServerReflectionInfo(iter([request]), timeout=30)
            first: Awaitable[Any] = call.read()
            return first

        assert await code_of(names(channel)) is DENIED
        services = (await names(proxy.channel)).list_services_response.service
        assert "guest_api.ProxiedGuestApi" in {service.name for service in services}


@needs_root
async def test_who_is_not_in_the_sockets_group_cannot_even_connect(sockets: Path) -> None:
    async with fleet_of_two(sockets) as _:
        with pytest.raises(ConnectionRefusedError, match="Permission denied"):
            async with channel_as(sockets / "proxy", 1234, 65533, (5,)):
                pass
