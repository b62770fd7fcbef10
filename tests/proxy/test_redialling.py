"""A line on which the guest misses its deadlines is replaced, and nobody loses a call to that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from guest_api import guest_api_pb2
from tests.proxy.raw_guest import Stream, raw_guest
from tests.proxy.running import Proxy
from vmm_proxy.fleet.outcome import GPU_INFO
from vmm_proxy.upstream.guest_channels import MISSES_BEFORE_REDIAL, REDIAL_PAUSE_SECONDS
from vmm_proxy.upstream.limits import GUEST_CALLS
from vmm_proxy.upstream.upstream import HASTY_SECONDS

# Long enough to say something about the guest, also where a busy machine takes some of it.
MISSED_SECONDS = 3 * HASTY_SECONDS


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


async def test_after_three_missed_deadlines_in_a_row_the_line_is_dialled_anew(proxy: Proxy, sockets: Path) -> None:
    async def silent_on_the_first_connection(stream: Stream) -> None:
        await (silence(stream) if guest.connections == 1 else no_gpu(stream))

    async with raw_guest(str(sockets / "g"), silent_on_the_first_connection) as guest:
        proxy.add("vm1", guest.address)
        for _ in range(MISSES_BEFORE_REDIAL):
            assert (await proxy.failure("vm1", timeout=MISSED_SECONDS)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await proxy.gpu_info("vm1", timeout=5) == guest_api_pb2.GpuInfoResponse()
        assert guest.connections == 2


async def test_an_answer_between_misses_keeps_the_line(proxy: Proxy, sockets: Path) -> None:
    async def silent_for_odd_calls(stream: Stream) -> None:
        await (silence(stream) if len(guest.requests) % 2 else no_gpu(stream))

    async with raw_guest(str(sockets / "g"), silent_for_odd_calls) as guest:
        proxy.add("vm1", guest.address)
        for _ in range(MISSES_BEFORE_REDIAL + 1):
            assert (await proxy.failure("vm1", timeout=MISSED_SECONDS)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await proxy.gpu_info("vm1")
        assert guest.connections == 1


async def test_a_call_on_the_replaced_line_still_gets_its_answer(proxy: Proxy, sockets: Path) -> None:
    hold = asyncio.Event()

    async def slow_with_info(stream: Stream) -> None:
        if stream.path.endswith("/Info"):
            await hold.wait()
            await stream.answer(guest_api_pb2.GuestInfo(version="7").SerializeToString())
        elif guest.connections == 1:
            await silence(stream)
        else:
            await no_gpu(stream)

    async with raw_guest(str(sockets / "g"), slow_with_info) as guest:
        proxy.add("vm1", guest.address)
        slow = asyncio.ensure_future(proxy.api.Info(guest_api_pb2.Id(id="vm1"), timeout=15))
        await asyncio.wait_for(guest.called.wait(), 5)
        for _ in range(MISSES_BEFORE_REDIAL):
            await proxy.failure("vm1", timeout=MISSED_SECONDS)
        assert await proxy.gpu_info("vm1") == guest_api_pb2.GpuInfoResponse()
        assert guest.connections == 2
        hold.set()
        assert (await slow).version == "7"


async def test_a_guest_that_misses_many_deadlines_at_a_time_is_not_dialled_anew_for_every_few(
    proxy: Proxy, sockets: Path
) -> None:
    loop = asyncio.get_running_loop()
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        upstream, started = proxy.pool.upstream("vm1"), loop.time()
        for _ in range(4):
            deadline = loop.time() + MISSED_SECONDS / 2
            differing = [(("cache-control", f"max-age={number}"),) for number in range(GUEST_CALLS)]
            await asyncio.gather(*(upstream.call(GPU_INFO, each, deadline) for each in differing), return_exceptions=True)
        assert 1 <= upstream.channels.redials <= 1 + (loop.time() - started) / REDIAL_PAUSE_SECONDS
