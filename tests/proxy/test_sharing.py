"""Calls that share one, and the places that callers and calls take, against guests on real sockets."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_contract.methods import proxied_methods
from guest_fleet.v1 import fleet_pb2
from guest_transport.addresses import UnixAddress
from guest_transport.options import CONNECTION_CALLS
from tests.eventually import eventually, turns
from tests.proxy.raw_guest import Behaviour, Stream, raw_guest
from tests.proxy.running import Proxy
from vmm_proxy.errors import CallError
from vmm_proxy.fleet.outcome import GPU_INFO
from vmm_proxy.upstream.deadlines import LONGEST_SECONDS
from vmm_proxy.upstream.guest_channels import OLD_CHANNEL_GRACE_SECONDS
from vmm_proxy.upstream.limits import GUEST_CALLERS, GUEST_CALLS, PROXY_CALLS, ConcurrencyLimit

SYS_INFO = next(method for method in proxied_methods() if method.name == "SysInfo")


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


async def test_identical_calls_share_one_and_each_gets_the_answer(proxy: Proxy, sockets: Path) -> None:
    hold = asyncio.Event()
    reply = guest_api_pb2.GpuInfoResponse(sample_age_ms=7).SerializeToString()

    async def when_told(stream: Stream) -> None:
        await hold.wait()
        await stream.answer(reply, [("x-request-id", "r1")])

    async with raw_guest(str(sockets / "g"), when_told) as guest:
        proxy.add("vm1", guest.address)
        calls = [asyncio.create_task(proxy.gpu_info("vm1")) for _ in range(64)]
        await asyncio.wait_for(guest.called.wait(), 5)
        await eventually(lambda: proxy.pool.upstream("vm1").callers >= 64)
        hold.set()
        assert [answer.sample_age_ms for answer in await asyncio.gather(*calls)] == [7] * 64
        assert len(guest.requests) == 1
        await proxy.gpu_info("vm1")
        assert len(guest.requests) == 2, "an answer that was given is not given again"


async def test_one_callers_cancellation_leaves_the_shared_call_to_the_others(proxy: Proxy, sockets: Path) -> None:
    hold = asyncio.Event()

    async def when_told(stream: Stream) -> None:
        await hold.wait()
        await stream.answer(b"")

    async with raw_guest(str(sockets / "g"), when_told) as guest:
        proxy.add("vm1", guest.address)
        first = proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=10)
        await asyncio.wait_for(guest.called.wait(), 5)
        second = asyncio.create_task(proxy.gpu_info("vm1"))
        await eventually(lambda: proxy.pool.upstream("vm1").callers >= 2)
        first.cancel()
        await eventually(lambda: proxy.pool.upstream("vm1").callers <= 1)
        hold.set()
        assert await second == guest_api_pb2.GpuInfoResponse()
        assert len(guest.requests) <= 2, "who is left asks together"


async def test_the_caller_that_began_a_shared_call_leaves_and_all_others_share_the_next(proxy: Proxy, sockets: Path) -> None:
    hold = asyncio.Event()

    async def when_told(stream: Stream) -> None:
        await hold.wait()
        await stream.answer(b"")

    async with raw_guest(str(sockets / "g"), when_told) as guest:
        proxy.add("vm1", guest.address)
        first = proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=10)
        await asyncio.wait_for(guest.called.wait(), 5)
        others = [asyncio.create_task(proxy.gpu_info("vm1")) for _ in range(20)]
        await eventually(lambda: proxy.pool.upstream("vm1").callers >= 21)
        first.cancel()
        await asyncio.wait_for(guest.requests[0].reset.wait(), 5)
        await eventually(lambda: len(guest.requests) >= 2)
        hold.set()
        assert await asyncio.gather(*others) == [guest_api_pb2.GpuInfoResponse()] * 20
        assert len(guest.requests) == 2


async def test_a_caller_with_time_left_outlives_the_shared_call_of_a_hasty_one(proxy: Proxy, sockets: Path) -> None:
    async def silent_to_the_first(stream: Stream) -> None:
        await (silence(stream) if len(guest.requests) == 1 else no_gpu(stream))

    async with raw_guest(str(sockets / "g"), silent_to_the_first) as guest:
        proxy.add("vm1", guest.address)
        hasty = asyncio.create_task(proxy.failure("vm1", timeout=0.4))
        await asyncio.wait_for(guest.called.wait(), 5)
        assert await proxy.gpu_info("vm1", timeout=10) == guest_api_pb2.GpuInfoResponse()
        assert (await hasty).code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_hasty_caller_of_a_shared_call_is_not_held_beyond_its_deadline(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        patient = proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=30)
        await asyncio.wait_for(guest.called.wait(), 5)
        with pytest.raises(CallError) as caught:
            async with asyncio.timeout(10):
                await proxy.pool.upstream("vm1").call(GPU_INFO, (), asyncio.get_running_loop().time() + 0.3)
        assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert len(guest.requests) == 1
        patient.cancel()


async def test_calls_with_metadata_that_differs_and_shutdowns_are_not_shared(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        guest_id = guest_api_pb2.Id(id="vm1")
        calls: list[grpc.aio.Call] = [
            proxy.api.GpuInfo(guest_id, timeout=30),
            proxy.api.GpuInfo(guest_id, timeout=30, metadata=(("cache-control", "max-age=0"),)),
            proxy.api.Shutdown(guest_id, timeout=30),
            proxy.api.Shutdown(guest_id, timeout=30),
        ]
        await eventually(lambda: len(guest.requests) >= 4)
        for call in calls:
            call.cancel()


async def test_a_fifth_call_to_one_guest_is_refused_with_a_time_to_come_back_and_others_are_served(
    proxy: Proxy, sockets: Path
) -> None:
    async with (
        raw_guest(str(sockets / "g"), silence) as guest,
        raw_guest(str(sockets / "h"), no_gpu) as healthy,
    ):
        proxy.add("vm1", guest.address)
        proxy.add("vm2", healthy.address)
        calls = [proxy.api.Shutdown(guest_api_pb2.Id(id="vm1"), timeout=30) for _ in range(GUEST_CALLS)]
        await eventually(lambda: len(guest.requests) >= GUEST_CALLS)
        error = await proxy.failure("vm1", "Shutdown")
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert retry_delay_seconds(error) == 1
        assert await proxy.gpu_info("vm2") == guest_api_pb2.GpuInfoResponse()
        for call in calls:
            call.cancel()
        await asyncio.gather(*(stream.reset.wait() for stream in guest.requests))
        proxy.directory.remove("vm1")


async def test_what_the_proxy_asks_for_its_pages_and_lists_takes_no_place_of_a_guests_callers(
    proxy: Proxy, sockets: Path
) -> None:
    reading = [method for method in proxied_methods() if method.only_reads]
    guest_id = guest_api_pb2.Id(id="vm1")
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        upstream, ends = proxy.pool.upstream("vm1"), asyncio.get_running_loop().time() + 30
        questions = [upstream.ask(method, (), ends, lambda _: None, for_fleet=True) for method in reading]
        calls = [proxy.api.Shutdown(guest_id, timeout=30) for _ in range(GUEST_CALLS)]
        await eventually(lambda: len(guest.requests) >= len(reading) + GUEST_CALLS)
        assert (await proxy.failure("vm1", "Shutdown")).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        # With metadata of a caller's choice there could be any number, so those take places also where a fleet stream asks.
        with pytest.raises(CallError, match="4 calls are in progress"):
            upstream.ask(GPU_INFO, (("cache-control", "max-age=7"),), ends, lambda _: None, for_fleet=True)
        for question in questions:
            question.leave()
        for call in calls:
            call.cancel()
        await asyncio.gather(*(stream.reset.wait() for stream in guest.requests))
        # Every place is there again, and none that was never taken was given back.
        again = [proxy.api.Shutdown(guest_id, timeout=30) for _ in range(GUEST_CALLS)]
        await eventually(lambda: len(guest.requests) >= len(reading) + 2 * GUEST_CALLS)
        assert (await proxy.failure("vm1", "Shutdown")).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in again:
            call.cancel()


def retry_delay_seconds(error: grpc.aio.AioRpcError) -> float:
    from google.rpc import error_details_pb2, status_pb2

    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    status = status_pb2.Status.FromString(details)
    assert status.message == error.details()
    retry = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry)
    return float(retry.retry_delay.ToTimedelta().total_seconds())


async def test_callers_beyond_the_limit_of_one_guest_are_refused_at_once(proxy: Proxy, sockets: Path) -> None:
    address = proxy.parts.server.addresses[0]
    assert isinstance(address, UnixAddress)
    # On the first connection, which has no more than CONNECTION_CALLS, they would wait in the channel.
    other = Proxy(proxy.parts, address)
    half = GUEST_CALLERS // 2
    assert half < CONNECTION_CALLS
    async with raw_guest(str(sockets / "g"), silence) as guest, other.channel:
        proxy.add("vm1", guest.address)
        calls = [one.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=30) for one in (proxy, other) for _ in range(half)]
        await eventually(lambda: proxy.pool.upstream("vm1").callers >= GUEST_CALLERS)
        error = await other.failure("vm1")
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls:
            call.cancel()


@pytest.mark.parametrize("method", ["GpuInfo", "Shutdown"])
async def test_a_call_whose_connection_is_given_up_under_it_ends_with_a_status_and_gives_its_places_back(
    proxy: Proxy, sockets: Path, method: str
) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        upstream, told = proxy.pool.upstream("vm1"), asyncio.get_running_loop().create_future()
        upstream.ask(SYS_INFO, (), asyncio.get_running_loop().time() + 60, told.set_result)
        failing = asyncio.create_task(proxy.failure("vm1", method, timeout=60))
        async with asyncio.timeout(20):
            await eventually(lambda: len(guest.requests) >= 2)
            assert upstream.channels.current is not None
            await upstream.channels.current.close(0.01)
            error, outcome = await failing, await told
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert error.details() == "guest vm1: the connection was given up during the call"
        assert isinstance(outcome, CallError)
        assert upstream.callers == upstream.places.taken == 0


async def test_a_removed_guest_has_no_connection_left_on_a_channel_that_was_replaced_under_a_call(
    proxy: Proxy, sockets: Path
) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        failing = asyncio.create_task(proxy.failure("vm1", timeout=60))
        await asyncio.wait_for(guest.called.wait(), 10)
        upstream = proxy.pool.upstream("vm1")
        assert upstream.channels.current is not None
        upstream.channels.replace(upstream.channels.current)
        await turns(20)
        proxy.directory.remove("vm1")
        async with asyncio.timeout(20):
            assert (await failing).details() == "guest vm1: it was removed from the directory"
            await eventually(lambda: not guest.still_open)


def test_a_call_on_a_replaced_line_keeps_its_own_deadline_however_long() -> None:
    assert OLD_CHANNEL_GRACE_SECONDS >= LONGEST_SECONDS, "else the proxy breaks off what its caller still waits for"


async def breaks_off(stream: Stream) -> None:
    await stream.break_off()


@pytest.mark.parametrize("answer", [silence, breaks_off])
@pytest.mark.parametrize("for_fleet", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_removed_guest_has_no_connection_left_though_its_call_failed_and_no_garbage_was_collected(
    proxy: Proxy, sockets: Path, answer: Behaviour, for_fleet: bool, leaves: bool
) -> None:
    async with raw_guest(str(sockets / "g"), answer) as guest:
        proxy.add("vm1", guest.address)
        collects = proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=0.5)
        call = collects.read() if for_fleet else proxy.gpu_info("vm1", timeout=0.5)
        gc.disable()
        try:
            asking = asyncio.create_task(call)
            await asyncio.wait_for(guest.called.wait(), 10)
            if leaves:
                asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            proxy.directory.remove("vm1")
            await eventually(lambda: not guest.still_open)
        finally:
            gc.enable()


def test_places_are_refused_when_all_are_taken_and_free_when_given_back() -> None:
    places = ConcurrencyLimit(PROXY_CALLS, "the proxy")
    for _ in range(PROXY_CALLS):
        places.take()
    with pytest.raises(CallError) as caught:
        places.take()
    assert caught.value.retry_after_seconds is not None
    places.give_back()
    places.take()


async def test_callers_that_differ_in_tracing_only_share_a_call_and_each_gets_its_own_id_back(
    proxy: Proxy, sockets: Path
) -> None:
    hold = asyncio.Event()

    async def echo(stream: Stream) -> None:
        await hold.wait()
        await stream.answer(b"", [("x-request-id", stream.headers["x-request-id"]), ("x-request-id", "the guest's own")])

    async with raw_guest(str(sockets / "g"), echo) as guest:
        proxy.add("vm1", guest.address)
        calls = []
        for number in range(32):
            trace = ("traceparent", f"00-{number:032x}-{number:016x}-01")
            own = () if number % 4 == 3 else (("x-request-id", f"r{number}"),)
            calls.append(proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=30, metadata=(trace, ("tracestate", "a=b"), *own)))
            if not number:
                await asyncio.wait_for(guest.called.wait(), 10)
        await eventually(lambda: proxy.pool.upstream("vm1").callers >= len(calls))
        hold.set()
        assert await asyncio.gather(*calls) == [guest_api_pb2.GpuInfoResponse()] * len(calls), "tracing has nobody refused"
        (asked,) = guest.requests
        assert (asked.headers["traceparent"], asked.headers["x-request-id"]) == (f"00-{0:032x}-{0:016x}-01", "r0")
        for number, call in enumerate(calls):
            ids = [value for key, value in await call.trailing_metadata() if key == "x-request-id"]
            assert ids == ([] if number % 4 == 3 else [f"r{number}"]) + ["the guest's own"]


async def test_a_failure_that_is_shared_names_no_other_callers_id(proxy: Proxy, sockets: Path) -> None:
    hold = asyncio.Event()

    async def echo(stream: Stream) -> None:
        await hold.wait()
        await stream.fail("5", "no", [("x-request-id", stream.headers["x-request-id"])])

    async with raw_guest(str(sockets / "g"), echo) as guest:
        proxy.add("vm1", guest.address)
        first = proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=30, metadata=(("x-request-id", "mine"),))
        await asyncio.wait_for(guest.called.wait(), 10)
        others = [
            proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=30, metadata=own) for own in ((), (("x-request-id", "theirs"),))
        ]
        await eventually(lambda: proxy.pool.upstream("vm1").callers >= 3)
        hold.set()
        ids = []
        for call in (first, *others):
            assert await call.code() is grpc.StatusCode.NOT_FOUND
            ids.append([value for key, value in await call.trailing_metadata() if key == "x-request-id"])
        assert ids == [["mine"], [], ["theirs"]]
