"""Streams of the fleet: one caller who takes all it can get leaves room for the others, and is told so."""

from __future__ import annotations

from pathlib import Path

import grpc

from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from tests.eventually import eventually
from tests.policy.callers import bearer, channel_as, needs_root, rules
from tests.policy.two_tenants import NOBODY, fleet_of_two
from tests.proxy.running import Proxy
from vmm_proxy.policy.roles import Role
from vmm_proxy.upstream.limits import FLEET_STREAMS, FLEET_STREAMS_OF_ONE

Watch = grpc.aio.UnaryStreamCall[fleet_pb2.WatchGpuInfoRequest, fleet_pb2.WatchGpuInfoResponse]
FULL = f"has {FLEET_STREAMS_OF_ONE} streams open already, which is the most for one caller; end one first"


async def watch(fleet: fleet_pb2_grpc.FleetServiceAsyncStub, metadata: tuple[tuple[str, str], ...] = ()) -> tuple[Watch, str]:
    """A stream that stays, and how it began: its first answer's guest, or the words of the refusal."""
    request = fleet_pb2.WatchGpuInfoRequest()
    request.interval.FromSeconds(3600)
    stream: Watch = fleet.WatchGpuInfo(request, metadata=metadata)
    try:
        first = await stream.read()
    except grpc.aio.AioRpcError as error:
        return stream, error.details() or ""
    assert isinstance(first, fleet_pb2.WatchGpuInfoResponse)
    return stream, first.guests[0].guest_id


def fleet_of(channel: grpc.aio.Channel) -> fleet_pb2_grpc.FleetServiceAsyncStub:
    stub: fleet_pb2_grpc.FleetServiceAsyncStub = fleet_pb2_grpc.FleetServiceStub(channel)
    return stub


async def watches(proxy: Proxy, name: str, count: int) -> list[tuple[Watch, str]]:
    return [await watch(proxy.fleet, bearer(name)) for _ in range(count)]


async def test_a_caller_with_all_its_streams_is_refused_by_name_and_the_others_are_not(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, *_):
        greedy = await watches(proxy, "viewer", FLEET_STREAMS_OF_ONE + 3)
        refused = [said for _, said in greedy if "streams open already" in said]
        assert await greedy[-1][0].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert refused == [f"token viewer {FULL}"] * 3
        others = [await watches(proxy, name, FLEET_STREAMS_OF_ONE) for name in ("operator", "admin", "blue-viewer")]
        assert not [said for served in others for _, said in served if "already" in said]
        ((_, said),) = await watches(proxy, "blue-operator", 1)
        assert said == f"the fleet: {FLEET_STREAMS} calls are in progress already, try again later"
        for stream, _ in greedy:
            stream.cancel()

        async def has_room() -> bool:
            return "already" not in (await watches(proxy, "viewer", 1))[0][1]

        await eventually(has_room)


async def test_a_collection_takes_a_place_of_its_caller_too(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, *_):
        await watches(proxy, "viewer", FLEET_STREAMS_OF_ONE)
        collection = proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=20, metadata=bearer("viewer"))
        assert await collection.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert [answer async for answer in proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=20)]


@needs_root
async def test_all_connections_of_one_user_are_one_caller(sockets: Path) -> None:
    async with fleet_of_two(sockets):
        socket = sockets / "proxy"
        socket.chmod(0o666)
        async with channel_as(socket, NOBODY, NOBODY) as one, channel_as(socket, NOBODY, NOBODY) as other:
            served = [await watch(stub) for stub in map(fleet_of, (one, other)) for _ in range(FLEET_STREAMS_OF_ONE)]
        assert [said for _, said in served if "already" in said] == [
            f"unix uid {NOBODY} gid {NOBODY} {FULL}"
        ] * FLEET_STREAMS_OF_ONE


async def test_callers_whom_nobody_asked_who_they_are_share_all_places(sockets: Path) -> None:
    async with fleet_of_two(sockets, access=rules(unix_role=Role.VIEWER)) as (proxy, *_):
        served = [await watch(proxy.fleet) for _ in range(FLEET_STREAMS + 1)]
        assert [said for _, said in served if "already" in said] == [
            f"the fleet: {FLEET_STREAMS} calls are in progress already, try again later"
        ]
