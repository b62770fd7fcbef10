"""Callers who ask too much, too hastily, or leave half-way: the proxy answers the others, and is afterwards what it was before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psutil
import pytest
from google.protobuf import duration_pb2

from guest_api import guest_api_pb2
from guest_client.async_client import AsyncProxyClient
from guest_fleet.v1 import fleet_pb2
from guest_transport.addresses import UnixAddress
from guest_transport.options import CONNECTION_CALLS
from tests.eventually import eventually, turns
from tests.proxy.fleet_entries import Entries
from tests.proxy.raw_guest import Behaviour, RawGuest, Stream, raw_guest
from tests.proxy.running import Proxy
from vmm_proxy.upstream.limits import FLEET_STREAMS_OF_ONE, GUEST_CALLERS, GUEST_CALLS

# More than the proxy (256) and a guest (128) admit, and still quick; on so many connections that none waits in its channel.
CROWD_CONNECTIONS = 20
CROWD = CROWD_CONNECTIONS * CONNECTION_CALLS


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


def says(text: str) -> Behaviour:
    """A healthy guest that says `text` in each answer, so that an answer shows whose it is."""
    wire = guest_api_pb2.GpuInfoResponse(error=text).SerializeToString()
    return lambda stream: stream.answer(wire)


@contextlib.asynccontextmanager
async def another_caller(proxy: Proxy) -> AsyncIterator[Proxy]:
    """A second connection to the same proxy."""
    address = proxy.parts.server.addresses[0]
    assert isinstance(address, UnixAddress)
    other = Proxy(proxy.parts, address)
    try:
        yield other
    finally:
        await other.channel.close()


async def code_of(call: grpc.aio.UnaryUnaryCall[guest_api_pb2.Id, guest_api_pb2.GpuInfoResponse]) -> grpc.StatusCode:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
        await call
    return await call.code()


async def idle(proxy: Proxy, guest_id: str) -> None:
    """Returns once nobody waits for the guest any more; fails when a place was lost."""
    await eventually(lambda: not proxy.pool.upstream(guest_id).callers)


async def test_a_crowd_at_a_silent_guest_is_refused_at_once_and_another_guest_answers_meanwhile(
    proxy: Proxy, sockets: Path
) -> None:
    async with (
        raw_guest(str(sockets / "s"), silence) as silent,
        raw_guest(str(sockets / "o"), says("other")) as other,
        another_caller(proxy) as caller,
        contextlib.AsyncExitStack() as stack,
    ):
        proxy.add("silent", silent.address)
        proxy.add("other", other.address)
        crowd = [await stack.enter_async_context(another_caller(proxy)) for _ in range(CROWD_CONNECTIONS)]
        calls = [one.api.GpuInfo(guest_api_pb2.Id(id="silent"), timeout=50) for one in crowd for _ in range(CONNECTION_CALLS)]
        await eventually(lambda: proxy.pool.upstream("silent").callers >= GUEST_CALLERS)
        assert (await caller.gpu_info("other", timeout=20)).error == "other"
        await eventually(lambda: sum(call.done() for call in calls) >= CROWD - GUEST_CALLERS)
        for call in calls:
            call.cancel()
        codes = Counter(await asyncio.gather(*map(code_of, calls)))
        assert codes == {grpc.StatusCode.CANCELLED: GUEST_CALLERS, grpc.StatusCode.RESOURCE_EXHAUSTED: CROWD - GUEST_CALLERS}
        await idle(proxy, "silent")


async def test_a_crowd_at_a_healthy_guest_is_served_or_refused_and_nothing_else(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), says("good")) as good, contextlib.AsyncExitStack() as stack:
        proxy.add("good", good.address)
        crowd = [await stack.enter_async_context(another_caller(proxy)) for _ in range(CROWD_CONNECTIONS)]
        calls = [one.api.GpuInfo(guest_api_pb2.Id(id="good"), timeout=50) for one in crowd for _ in range(CONNECTION_CALLS)]
        codes = Counter(await asyncio.gather(*map(code_of, calls)))
        assert set(codes) <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OK}
        assert codes[grpc.StatusCode.OK] >= GUEST_CALLERS
        assert len(good.requests) < codes[grpc.StatusCode.OK], "identical calls share one"
        await idle(proxy, "good")


async def test_of_a_crowd_that_shares_one_client_every_call_is_answered(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), says("good")) as good:
        proxy.add("good", good.address)
        async with AsyncProxyClient(proxy.parts.server.addresses[0], timeout_seconds=50) as client:
            answers = await asyncio.gather(*(client.gpu_info("good") for _ in range(2 * CROWD)))
        assert {answer.error for answer in answers} == {"good"}


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 1e-9, 0.001, 0.05])
async def test_hasty_callers_get_an_answer_or_their_deadline_and_say_nothing_of_the_guest(
    proxy: Proxy, sockets: Path, seconds: float
) -> None:
    async with raw_guest(str(sockets / "g"), says("good")) as guest, raw_guest(str(sockets / "s"), silence) as slow:
        proxy.add("good", guest.address)
        proxy.add("slow", slow.address)
        assert (await proxy.gpu_info("good")).error == "good"
        for _ in range(5):
            calls = [proxy.api.GpuInfo(guest_api_pb2.Id(id=guest_id), timeout=seconds) for guest_id in ("good", "slow")]
            codes = await asyncio.gather(*map(code_of, calls))
            assert set(codes) <= {grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED}
            await idle(proxy, "slow")
        states = {
            guest.id: guest.state for guest in (await proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(), timeout=5)).guests
        }
        assert states["good"] == fleet_pb2.GUEST_STATE_SERVING
        assert proxy.pool.redials == 0
        assert (await proxy.gpu_info("good")).error == "good"


async def test_streams_that_are_left_half_way_leave_nothing_behind(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), says("good")) as good, raw_guest(str(sockets / "s"), silence) as silent:
        proxy.add("good", good.address)
        proxy.add("silent", silent.address)
        for number in range(30):
            proxy.add(f"dead{number:02}", f"unix:{sockets}/nobody{number}")

        async def leave_half_way(number: int) -> None:
            collected = proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=30)
            request = fleet_pb2.WatchGpuInfoRequest()
            request.interval.FromMilliseconds(1000 + number)
            watched = proxy.fleet.WatchGpuInfo(request)
            if number % 3:
                await collected.read()
                await watched.read()
            collected.cancel()
            watched.cancel()

        async def settled() -> int:
            await eventually(
                lambda: (
                    not proxy.parts.watches.pollers
                    and not any(proxy.pool.upstream(guest_id).callers for guest_id in ("good", "silent"))
                )
            )
            return len(asyncio.all_tasks())

        await asyncio.gather(*map(leave_half_way, range(FLEET_STREAMS_OF_ONE // 2)))
        tasks = await settled()
        for _ in range(5):
            await asyncio.gather(*map(leave_half_way, range(FLEET_STREAMS_OF_ONE // 2)))
        # Connections and their readers stay; ten are the noise of what just ends.
        assert await settled() <= tasks + 10
        answers = await Entries(proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=1)).all()
        assert len(answers) == 32


async def test_a_thousand_watchers_get_the_places_there_are_and_the_rest_a_refusal(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), says("good")) as good, contextlib.AsyncExitStack() as stack:
        proxy.add("good", good.address)
        crowd = [await stack.enter_async_context(another_caller(proxy)) for _ in range(10)]

        async def watch(
            caller: Proxy = proxy,
        ) -> tuple[grpc.aio.UnaryStreamCall[fleet_pb2.WatchGpuInfoRequest, fleet_pb2.WatchGpuInfoResponse], str]:
            # Longer than a busy machine takes for them all: the second question of an interval would be right.
            stream = caller.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest(interval=duration_pb2.Duration(seconds=60)))
            try:
                await stream.read()
            except grpc.aio.AioRpcError as error:
                return stream, error.code().name
            return stream, "OK"

        watchers = await asyncio.gather(*(watch(caller) for caller in crowd for _ in range(CONNECTION_CALLS)))
        assert Counter(code for _, code in watchers) == {
            "OK": FLEET_STREAMS_OF_ONE,
            "RESOURCE_EXHAUSTED": 1000 - FLEET_STREAMS_OF_ONE,
        }
        assert len(good.requests) == 1, "watchers of one interval share one question"
        for stream, _ in watchers:
            stream.cancel()
        await eventually(lambda: not proxy.parts.watches.pollers)
        stream, code = await watch()
        assert code == "OK"
        stream.cancel()


async def test_guests_that_come_go_and_move_under_load_never_answer_for_each_other(proxy: Proxy, sockets: Path) -> None:
    machines = 8
    chance = random.Random(7)
    async with contextlib.AsyncExitStack() as stack:
        guests: list[RawGuest] = [
            await stack.enter_async_context(raw_guest(str(sockets / f"g{number}"), says(f"machine {number}")))
            for number in range(machines)
        ]
        codes: Counter[grpc.StatusCode] = Counter()

        async def churn() -> None:
            # An id is a machine for good, so that every answer can be told true from false; the machines come and go.
            for _ in range(300):
                number = chance.randrange(machines)
                if proxy.directory.get(f"vm{number}"):
                    proxy.directory.remove(f"vm{number}")
                else:
                    proxy.add(f"vm{number}", guests[number].address)
                # So that calls come between two changes, some of them in the middle of one.
                await asyncio.sleep(0.002)

        async def call_them() -> None:
            while not churning.done():
                number = chance.randrange(machines)
                try:
                    answer = await proxy.gpu_info(f"vm{number}", timeout=10)
                except grpc.aio.AioRpcError as error:
                    codes[error.code()] += 1
                else:
                    codes[grpc.StatusCode.OK] += 1
                    assert answer.error == f"machine {number}"

        async def collect_them() -> None:
            while not churning.done():
                for entry in await Entries(proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=10)).all():
                    if entry.WhichOneof("outcome") == "gpu_info":
                        assert entry.gpu_info.error == f"machine {entry.guest_id[2:]}"

        churning = asyncio.create_task(churn())
        await asyncio.gather(churning, *(call_them() for _ in range(8)), collect_them(), collect_them())
        expected = {
            grpc.StatusCode.OK,
            grpc.StatusCode.NOT_FOUND,
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        }
        assert set(codes) <= expected
        assert codes[grpc.StatusCode.OK]


async def test_a_crowd_and_churn_leave_descriptors_and_memory_as_they_were(proxy: Proxy, sockets: Path) -> None:
    process = psutil.Process()
    async with raw_guest(str(sockets / "g"), says("good")) as good:

        async def round_of_calls() -> None:
            for _ in range(4):
                proxy.add("good", good.address)
                calls = [proxy.api.GpuInfo(guest_api_pb2.Id(id="good"), timeout=20) for _ in range(GUEST_CALLERS)]
                await turns()
                for call in calls[::2]:
                    call.cancel()
                await asyncio.gather(*map(code_of, calls))
                proxy.directory.remove("good")
            good.requests.clear()

        for _ in range(2):
            await round_of_calls()
        await eventually(lambda: not good.still_open)
        descriptors, memory = len(os.listdir("/proc/self/fd")), process.memory_info().rss
        for _ in range(4):
            await round_of_calls()
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
        assert process.memory_info().rss - memory < 16e6


REQUESTS = {
    "an id of 60 KB": (guest_api_pb2.Id(id="x" * 60_000).SerializeToString(), grpc.StatusCode.INVALID_ARGUMENT),
    "a request over the limit": (guest_api_pb2.Id(id="x" * 70_000).SerializeToString(), grpc.StatusCode.RESOURCE_EXHAUSTED),
    "an id twice, the second one none": (b"\x0a\x04good\x0a\x00", grpc.StatusCode.INVALID_ARGUMENT),
    "noise": (b"\xff" * 100, grpc.StatusCode.INVALID_ARGUMENT),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_request_that_cannot_be_meant_is_refused_and_its_caller_served_after_it(
    proxy: Proxy, sockets: Path, kind: str
) -> None:
    request, code = REQUESTS[kind]
    async with raw_guest(str(sockets / "g"), says("good")) as good:
        proxy.add("good", good.address)
        rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = proxy.channel.unary_unary("/guest_api.ProxiedGuestApi/GpuInfo")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rpc(request, timeout=10)
        assert caught.value.code() is code
        assert len(caught.value.details() or "") < 200
        assert (await proxy.gpu_info("good")).error == "good"


async def test_metadata_that_does_not_travel_changes_nothing(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), says("good")) as good:
        proxy.add("good", good.address)
        metadata = (*((f"key{number}", "v" * 150) for number in range(60)), ("cache-control-bin", b"\0\xff"))
        assert (await proxy.gpu_info("good", metadata=metadata)).error == "good"
        assert not {name for name in good.requests[0].headers if name.startswith(("key", "cache"))}
        huge = tuple((f"key{number}", "v" * 1000) for number in range(60))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await proxy.gpu_info("good", metadata=huge)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await proxy.gpu_info("good")).error == "good"


async def test_a_selector_of_thousands_of_ids_has_an_entry_for_each(proxy: Proxy) -> None:
    ids = [f"n{number:05}" for number in range(5000)]
    request = fleet_pb2.CollectGpuInfoRequest(selector=fleet_pb2.GuestSelector(ids=ids))
    answers = await Entries(proxy.fleet.CollectGpuInfo(request, timeout=30)).all()
    assert [answer.guest_id for answer in answers] == ids
    assert {answer.status.code for answer in answers} == {grpc.StatusCode.NOT_FOUND.value[0]}


async def test_calls_of_one_guest_that_share_nothing_leave_its_places_to_be_taken_again(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "s"), silence) as silent:
        proxy.add("silent", silent.address)
        guest_id = guest_api_pb2.Id(id="silent")
        for _ in range(3):
            calls = [proxy.api.GpuInfo(guest_id, timeout=30, metadata=(("cache-control", f"max-age={n}"),)) for n in range(50)]
            await eventually(lambda: proxy.pool.upstream("silent").callers >= GUEST_CALLS)
            await eventually(lambda: sum(call.done() for call in calls) >= 50 - GUEST_CALLS)  # noqa: B023 -- called at once
            for call in calls:
                call.cancel()
            codes = Counter([await call.code() for call in calls])
            assert codes == {grpc.StatusCode.CANCELLED: GUEST_CALLS, grpc.StatusCode.RESOURCE_EXHAUSTED: 50 - GUEST_CALLS}
            await idle(proxy, "silent")
            async with asyncio.timeout(5):
                await asyncio.gather(*(stream.reset.wait() for stream in silent.requests))
