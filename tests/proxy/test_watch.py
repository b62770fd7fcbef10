"""Watches over many guests, and what waits for a slow reader."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_fleet.v1 import fleet_pb2
from tests.eventually import eventually, turns
from tests.proxy.fleet_entries import Entries
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.running import Proxy, running_proxy
from vmm_proxy.errors import CallError
from vmm_proxy.fleet.outbox import MESSAGE_BYTES, MESSAGE_GUESTS, Outbox, OutboxClosedError
from vmm_proxy.fleet.outcome import GuestOutcome
from vmm_proxy.upstream.shared_call import Answer


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def healthy(stream: Stream) -> None:
    await stream.answer(guest_api_pb2.GpuInfoResponse(sample_age_ms=5).SerializeToString())


class Clock:
    """Lets a watch wait until the test says that the interval is over."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self._waiting: list[asyncio.Future[None]] = []

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def pass_(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def timed(sockets: Path, clock: Clock) -> AsyncIterator[Proxy]:
    async with running_proxy(sockets / "proxy", sleep=clock.sleep) as proxy:
        yield proxy


async def test_a_watch_brings_every_guest_again_each_interval(timed: Proxy, sockets: Path, clock: Clock) -> None:
    async with raw_guest(str(sockets / "g"), healthy) as guest:
        timed.add("vm1", guest.address)
        request = fleet_pb2.WatchGpuInfoRequest()
        request.interval.FromSeconds(7)
        stream = Entries(timed.fleet.WatchGpuInfo(request))
        assert (await stream.read()).guest_id == "vm1"
        timed.add("vm2", f"unix:{sockets}/nobody")
        clock.pass_()
        assert {(await stream.read()).guest_id, (await stream.read()).guest_id} == {"vm1", "vm2"}, (
            "a guest that came is watched too"
        )
        timed.directory.remove("vm1")
        clock.pass_()
        assert (await stream.read()).guest_id == "vm2"
        assert set(clock.asked) == {7.0}
        stream.cancel()


async def test_watchers_of_one_interval_share_one_question_and_a_late_one_is_served_at_once(
    timed: Proxy, sockets: Path, clock: Clock
) -> None:
    async with raw_guest(str(sockets / "g"), healthy) as guest:
        timed.add("vm1", guest.address)
        first = Entries(timed.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest()))
        await first.read()
        second = Entries(timed.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest()))
        await second.read()
        assert len(guest.requests) == 1
        clock.pass_()
        await first.read()
        await second.read()
        assert len(guest.requests) == 2
        first.cancel()
        second.cancel()


async def test_a_guest_that_has_not_answered_is_not_asked_again(timed: Proxy, sockets: Path, clock: Clock) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest, raw_guest(str(sockets / "h"), healthy) as good:
        timed.add("silent", guest.address)
        timed.add("good", good.address)
        stream = Entries(timed.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest()))
        for _ in range(5):
            assert (await stream.read()).guest_id == "good"
            clock.pass_()
        assert len(guest.requests) == 1
        stream.cancel()
        await asyncio.wait_for(guest.requests[0].reset.wait(), 2)


async def test_a_watch_ends_with_its_last_watcher(timed: Proxy, sockets: Path, clock: Clock) -> None:
    async with raw_guest(str(sockets / "g"), healthy) as guest:
        timed.add("vm1", guest.address)
        stream = Entries(timed.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest()))
        await stream.read()
        stream.cancel()
        await eventually(lambda: not timed.parts.watches.pollers)
        clock.pass_()
        await turns()
        assert len(guest.requests) == 1


@pytest.mark.parametrize(("seconds", "used"), [(0, 1.0), (0.2, 1.0), (3600, 3600.0)])
async def test_an_interval_below_a_second_is_a_second(
    timed: Proxy, sockets: Path, clock: Clock, seconds: float, used: float
) -> None:
    request = fleet_pb2.WatchGpuInfoRequest()
    request.interval.FromMilliseconds(round(seconds * 1000))
    timed.add("vm1", f"unix:{sockets}/nobody")
    stream = Entries(timed.fleet.WatchGpuInfo(request))
    await stream.read()
    assert clock.asked == [used]
    stream.cancel()


@pytest.mark.parametrize("seconds", [-1, 10**9])
async def test_an_interval_that_cannot_be_meant_is_refused(timed: Proxy, seconds: int) -> None:
    request = fleet_pb2.WatchGpuInfoRequest()
    request.interval.FromSeconds(seconds)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await timed.fleet.WatchGpuInfo(request).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def outcome(guest_id: str, age: int, size: int = 0) -> GuestOutcome:
    message = guest_api_pb2.GpuInfoResponse(sample_age_ms=age)
    return GuestOutcome(guest_id, Answer(message, (), size), 0.0, 0.0)


def answered(guest_id: str, error: str) -> GuestOutcome:
    message = guest_api_pb2.GpuInfoResponse(error=error)
    return GuestOutcome(guest_id, Answer(message, (), message.ByteSize()), 0.0, 0.0)


def written(outcome: GuestOutcome) -> fleet_pb2.GuestGpuInfo:
    entry = fleet_pb2.GuestGpuInfo()
    outcome.write_to(entry)
    return entry


async def test_a_slow_reader_loses_what_was_overtaken_and_never_the_newest() -> None:
    outbox = Outbox()
    for age in range(100):
        outbox.offer(outcome("vm1", age))
        outbox.offer(outcome("vm2", age))
    taken = await outbox.take()
    assert [(entry.guest_id, written(entry).gpu_info.sample_age_ms) for entry in taken] == [("vm1", 99), ("vm2", 99)]
    outbox.close()
    with pytest.raises(OutboxClosedError):
        await outbox.take()


async def test_a_reader_who_waits_is_told_at_once_that_nothing_more_comes() -> None:
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.take())
    await turns()
    outbox.close()
    with pytest.raises(OutboxClosedError):
        await asyncio.wait_for(waiting, 5)


async def test_what_waits_when_a_stream_is_to_end_is_still_taken() -> None:
    outbox = Outbox()
    outbox.offer(outcome("vm1", 7))
    outbox.close()
    assert [written(entry).gpu_info.sample_age_ms for entry in await outbox.take()] == [7]
    with pytest.raises(OutboxClosedError):
        await outbox.take()


async def test_an_outbox_over_its_limit_keeps_the_failure_in_place_of_the_answer() -> None:
    outbox = Outbox(limit_bytes=1000)
    outbox.offer(outcome("vm1", 1, 900))
    outbox.offer(outcome("vm2", 1, 900))
    outbox.offer(outcome("vm1", 2, 920))
    first, second = await outbox.take()
    assert written(first).gpu_info.sample_age_ms == 2
    assert isinstance(second.outcome, CallError)
    assert second.outcome.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    outbox.offer(outcome("vm2", 3, 900))
    (third,) = await outbox.take()
    assert written(third).gpu_info.sample_age_ms == 3


async def test_a_message_is_full_at_its_count_of_guests_or_at_its_size() -> None:
    outbox = Outbox()
    for number in range(MESSAGE_GUESTS + 1):
        outbox.offer(outcome(f"vm{number}", 1))
    assert [len(await outbox.take()), len(await outbox.take())] == [MESSAGE_GUESTS, 1]
    for number in range(5):
        outbox.offer(answered(f"vm{number}", "x" * (MESSAGE_BYTES // 2 - 1000)))
    assert [len(await outbox.take()) for _ in range(3)] == [2, 2, 1], "in its order, and none left behind"


async def test_no_message_passes_its_limit_and_an_answer_that_alone_would_fails_alone() -> None:
    outbox = Outbox()
    for number, more in enumerate([0, 300_000, 700_000, 800_000, MESSAGE_BYTES - 16, MESSAGE_BYTES, 500_000]):
        outbox.offer(answered("v" * 120 + str(number), "x" * more))
    outbox.close()
    messages = []
    with contextlib.suppress(OutboxClosedError):
        while True:
            message = fleet_pb2.WatchGpuInfoResponse()
            for taken in await outbox.take():
                taken.write_to(message.guests.add())
            messages.append(message)
    assert max(message.ByteSize() for message in messages) <= MESSAGE_BYTES
    failed = [entry.guest_id[-1] for message in messages for entry in message.guests if entry.HasField("status")]
    assert (sum(len(message.guests) for message in messages), failed) == (7, ["4", "5"])
