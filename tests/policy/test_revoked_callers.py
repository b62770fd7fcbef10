"""What is open when a caller loses its credentials ends by that, however quiet it is, and its places come back.

The rules are replaced as SIGHUP does it; guests and callers are real. Nothing here is ended by what a stream sends: its guests are silent,
or its interval is an hour.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import grpc

from guest_api import guest_api_pb2
from guest_fleet.v1 import fleet_pb2
from tests.eventually import eventually
from tests.policy.callers import bearer, rules, token
from tests.policy.two_tenants import BLUE, NO_CREDENTIALS, code_of, fleet_of_two
from tests.proxy.raw_guest import Stream, raw_guest
from vmm_proxy.policy.roles import Role
from vmm_proxy.upstream.limits import FLEET_STREAMS_OF_ONE

Watch = grpc.aio.UnaryStreamCall[fleet_pb2.WatchGpuInfoRequest, fleet_pb2.WatchGpuInfoResponse]
# Ends a wait that would be for ever; nothing is measured by it.
PATIENCE_SECONDS = 20


def hourly(**selector: object) -> fleet_pb2.WatchGpuInfoRequest:
    request = fleet_pb2.WatchGpuInfoRequest(selector=fleet_pb2.GuestSelector(**selector))  # type: ignore[arg-type] # a test's shorthand
    request.interval.FromSeconds(3600)
    return request


async def code_at_end(stream: Watch) -> grpc.StatusCode:
    """The status after what was sent before it, which a client must read first."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await stream.read():
            pass
    return await stream.code()


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def test_a_quiet_watch_ends_when_its_token_is_revoked_whatever_it_selects(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, *_):
        selectors: list[dict[str, object]] = [{}, {"labels": BLUE}, {"ids": ["blue1"]}, {"labels": {"tenant": "nobody"}}]
        quiet = [proxy.fleet.WatchGpuInfo(hourly(**chosen), metadata=bearer("viewer")) for chosen in selectors]
        for stream in quiet[:3]:
            await stream.read()
        kept = proxy.fleet.WatchGpuInfo(hourly(), metadata=bearer("blue-viewer"))
        await kept.read()
        await eventually(lambda: proxy.parts.watches.watchers >= 5)
        proxy.parts.access.replace(rules(tokens=(token("blue-viewer", Role.VIEWER, BLUE),)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert {await code_at_end(stream) for stream in quiet} == {NO_CREDENTIALS}
            await eventually(lambda: proxy.parts.watches.watchers <= 1)
        assert not kept.done(), "who kept its token keeps its stream"
        kept.cancel()


async def test_a_watch_ends_when_its_token_has_no_role_for_it_any_more_and_its_places_come_back(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, *_):
        mine = [proxy.fleet.WatchGpuInfo(hourly(), metadata=bearer("viewer")) for _ in range(FLEET_STREAMS_OF_ONE)]
        for stream in mine:
            await stream.read()
        proxy.parts.access.replace(rules())
        proxy.parts.access.replace(rules(tokens=(token("viewer", Role.VIEWER),)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert {await code_at_end(stream) for stream in mine} == {NO_CREDENTIALS}
            again = [proxy.fleet.WatchGpuInfo(hourly(), metadata=bearer("viewer")) for _ in range(FLEET_STREAMS_OF_ONE)]
            for stream in again:
                assert isinstance(await stream.read(), fleet_pb2.WatchGpuInfoResponse)


async def test_calls_and_collections_that_wait_for_a_silent_guest_end_and_the_guest_is_left_in_peace(sockets: Path) -> None:
    async with fleet_of_two(sockets) as (proxy, *_), raw_guest(str(sockets / "s"), silence) as silent:
        proxy.add("silent", silent.address)
        call = proxy.api.SysInfo(guest_api_pb2.Id(id="silent"), metadata=bearer("viewer"))
        collection = proxy.fleet.CollectGpuInfo(
            fleet_pb2.CollectGpuInfoRequest(selector=fleet_pb2.GuestSelector(ids=["silent"])), metadata=bearer("viewer")
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            await eventually(lambda: len(silent.requests) >= 2)
            proxy.parts.access.replace(rules())
            assert await code_of(call) is NO_CREDENTIALS
            assert await collection.code() is NO_CREDENTIALS
            for request in silent.requests:
                await request.reset.wait()
            assert not proxy.pool.upstream("silent").callers


async def test_a_reader_who_does_not_read_loses_its_places_with_its_token(sockets: Path) -> None:
    big = guest_api_pb2.GpuInfoResponse(error="x" * 60_000).SerializeToString()

    async def answers(stream: Stream) -> None:
        await stream.answer(big)

    async with fleet_of_two(sockets) as (proxy, *_), raw_guest(str(sockets / "big"), answers) as guest:
        for number in range(40):
            proxy.add(f"big{number}", f"unix:{sockets}/big" if not number else f"unix:{sockets}/big{number}")
            if number:
                (sockets / f"big{number}").symlink_to(sockets / "big")
        stream = proxy.fleet.WatchGpuInfo(hourly(), metadata=bearer("viewer"))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await eventually(
                lambda: len(guest.requests) >= 40 and not any(proxy.pool.upstream(f"big{number}").callers for number in range(40))
            )
            assert proxy.parts.watches.watchers == 1
            proxy.parts.access.replace(rules())
            await eventually(lambda: not proxy.parts.watches.watchers)
        stream.cancel()
