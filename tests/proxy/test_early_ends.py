"""The moment in which a call ends early: its places come back, its caller is told or stays cancelled, and nobody joins what is ending.

A place that stays taken is taken for ever, and a few hundred of them stop the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from guest_transport.addresses import parse_address
from tests.proxy.raw_guest import RawGuest, Stream, raw_guest
from vmm_proxy.contact import Contact
from vmm_proxy.flight import Answer
from vmm_proxy.guest_outcome import GPU_INFO
from vmm_proxy.slots import GUEST_CALLS, Slots
from vmm_proxy.statuses import CallError
from vmm_proxy.upstream import Upstream


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


@contextlib.asynccontextmanager
async def upstream_of(guest: RawGuest, places: Slots) -> AsyncIterator[Upstream]:
    """The calls to `guest`, with `places` for those of the whole proxy."""
    upstream = Upstream("vm1", parse_address(guest.address), contact=Contact(), proxy_calls=places, wall_clock=time.time)
    try:
        yield upstream
    finally:
        await upstream.close("the test is over")


def soon() -> float:
    return asyncio.get_running_loop().time() + 10


async def test_a_call_that_ends_with_its_guest_gives_the_proxys_place_back(sockets: Path) -> None:
    places = Slots(1, "the proxy")
    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, places) as upstream:
        call = asyncio.create_task(upstream.call(GPU_INFO, (), soon()))
        await asyncio.wait_for(guest.called.wait(), 5)
        assert places.taken == 1
        await upstream.close("it was removed")
        with pytest.raises(CallError, match="it was removed"):
            await call
        assert places.taken == 0
        assert upstream.callers == 0


async def test_who_called_a_guest_that_went_is_not_left_half_cancelled(sockets: Path) -> None:
    async def call_and_look_back(upstream: Upstream) -> int:
        with pytest.raises(CallError, match="it was removed"):
            await upstream.call(GPU_INFO, (), soon())
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, Slots(1, "the proxy")) as upstream:
        caller = asyncio.create_task(call_and_look_back(upstream))
        await asyncio.wait_for(guest.called.wait(), 5)
        await upstream.close("it was removed")
        assert await caller == 0, "its task groups and timeouts would take their own ends for somebody else's cancellation"


async def test_calls_that_the_proxy_has_no_place_for_take_none_of_the_guests(sockets: Path) -> None:
    places = Slots(1, "the proxy")
    async with raw_guest(str(sockets / "g"), no_gpu) as guest, upstream_of(guest, places) as upstream:
        places.take()
        for _ in range(GUEST_CALLS + 1):
            with pytest.raises(CallError, match=r"^the proxy: 1 calls are in progress") as refused:
                await upstream.call(GPU_INFO, (), soon())
            assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert upstream.callers == 0
        places.give_back()
        assert isinstance(await upstream.call(GPU_INFO, (), soon()), Answer)
        assert not guest.requests[1:]
        assert places.taken == 0


async def test_a_caller_who_is_cancelled_as_its_guest_goes_stays_cancelled(sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, Slots(1, "the proxy")) as upstream:
        caller = asyncio.create_task(upstream.call(GPU_INFO, (), soon()))
        await asyncio.wait_for(guest.called.wait(), 5)
        caller.cancel()
        await upstream.close("it was removed")
        with pytest.raises(asyncio.CancelledError):
            await caller


async def test_who_asks_as_the_last_asker_leaves_gets_an_answer_of_its_own(sockets: Path) -> None:
    async def silent_to_the_first(stream: Stream) -> None:
        await (silence(stream) if len(guest.requests) == 1 else no_gpu(stream))

    async with raw_guest(str(sockets / "g"), silent_to_the_first) as guest, upstream_of(guest, Slots(2, "the proxy")) as upstream:
        first = upstream.ask(GPU_INFO, (), soon(), lambda _: None)
        await asyncio.wait_for(guest.called.wait(), 5)
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        first.leave()
        upstream.ask(GPU_INFO, (), soon(), told.set_result)
        assert isinstance(await asyncio.wait_for(told, 5), Answer)
        assert len(guest.requests) == 2
