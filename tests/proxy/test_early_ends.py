"""The moment in which a call ends early: its places come back, its caller is told or stays cancelled, and nobody joins what is ending.

A place that stays taken is taken for ever, and a few hundred of them stop the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from guest_transport.addresses import parse_address
from tests.eventually import eventually
from tests.proxy.raw_guest import RawGuest, Stream, raw_guest
from vmm_proxy.errors import CallError
from vmm_proxy.fleet.outcome import GPU_INFO
from vmm_proxy.upstream.limits import GUEST_CALLS, ConcurrencyLimit
from vmm_proxy.upstream.question import Question
from vmm_proxy.upstream.reachability import Reachability, ReachabilityState
from vmm_proxy.upstream.shared_call import Answer
from vmm_proxy.upstream.upstream import HASTY_SECONDS, Upstream


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


@contextlib.asynccontextmanager
async def upstream_of(guest: RawGuest, places: ConcurrencyLimit) -> AsyncIterator[Upstream]:
    """The calls to `guest`, with `places` for those of the whole proxy."""
    upstream = Upstream(
        "vm1", parse_address(guest.address), reachability=Reachability(), proxy_calls=places, wall_clock=time.time
    )
    try:
        yield upstream
    finally:
        await upstream.close("the test is over")


def soon() -> float:
    return asyncio.get_running_loop().time() + 10


async def test_a_call_that_ends_with_its_guest_gives_the_proxys_place_back(sockets: Path) -> None:
    places = ConcurrencyLimit(1, "the proxy")
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

    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream:
        caller = asyncio.create_task(call_and_look_back(upstream))
        await asyncio.wait_for(guest.called.wait(), 5)
        # The proxy may stop while its guest goes; only one cancellation is taken back.
        await asyncio.gather(upstream.close("it was removed"), upstream.close("it was removed"))
        assert await caller == 0, "its task groups and timeouts would take their own ends for somebody else's cancellation"


async def test_calls_that_the_proxy_has_no_place_for_take_none_of_the_guests(sockets: Path) -> None:
    places = ConcurrencyLimit(1, "the proxy")
    async with raw_guest(str(sockets / "g"), no_gpu) as guest, upstream_of(guest, places) as upstream:
        places.take()
        for _ in range(GUEST_CALLS + 1):
            with pytest.raises(CallError, match=r"^the proxy: 1 calls are in progress") as refused:
                await upstream.call(GPU_INFO, (), soon())
            assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            with pytest.raises(CallError, match=r"^the proxy: 1 calls are in progress"):
                upstream.ask(GPU_INFO, (), soon(), lambda _: None)
        assert upstream.callers == 0
        places.give_back()
        assert isinstance(await upstream.call(GPU_INFO, (), soon()), Answer)
        assert not guest.requests[1:]
        assert places.taken == 0


async def test_a_caller_who_is_cancelled_as_its_guest_goes_stays_cancelled(sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream:
        caller = asyncio.create_task(upstream.call(GPU_INFO, (), soon()))
        await asyncio.wait_for(guest.called.wait(), 5)
        caller.cancel()
        await upstream.close("it was removed")
        with pytest.raises(asyncio.CancelledError):
            await caller


async def test_who_asks_as_the_last_asker_leaves_gets_an_answer_of_its_own(sockets: Path) -> None:
    async def silent_to_the_first(stream: Stream) -> None:
        await (silence(stream) if len(guest.requests) == 1 else no_gpu(stream))

    async with (
        raw_guest(str(sockets / "g"), silent_to_the_first) as guest,
        upstream_of(guest, ConcurrencyLimit(2, "the proxy")) as upstream,
    ):
        first = upstream.ask(GPU_INFO, (), soon(), lambda _: None)
        await asyncio.wait_for(guest.called.wait(), 5)
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        first.leave()
        upstream.ask(GPU_INFO, (), soon(), told.set_result)
        assert isinstance(await asyncio.wait_for(told, 5), Answer)
        assert len(guest.requests) == 2


async def test_who_shares_a_call_and_leaves_is_no_caller_any_more_and_the_last_one_ends_it(sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream:
        question = upstream.ask(GPU_INFO, (), soon(), lambda _: None)
        await asyncio.wait_for(guest.called.wait(), 5)
        sharing = asyncio.create_task(upstream.call(GPU_INFO, (), soon()))
        await eventually(lambda: upstream.callers >= 2)
        question.leave()
        assert upstream.callers == 1
        sharing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sharing
        assert upstream.callers == 0
        await asyncio.wait_for(guest.requests[0].reset.wait(), 5)


async def test_a_guest_that_is_gone_is_not_dialled_for_who_still_holds_on_to_it(sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), no_gpu) as guest, upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream:
        await upstream.close("it was removed")
        with pytest.raises(CallError, match="it was removed"):
            await upstream.call(GPU_INFO, (), soon())
        with pytest.raises(CallError, match="it was removed"):
            upstream.ask(GPU_INFO, (), soon(), lambda _: None)
        assert guest.connections == 0
        assert upstream.callers == 0


async def test_a_caller_whose_own_clock_is_first_at_the_deadline_has_seen_the_guest_miss_it(sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream:
        deadline = asyncio.get_running_loop().time() + 5 * HASTY_SECONDS
        caller = asyncio.create_task(upstream.call(GPU_INFO, (), deadline))
        asyncio.get_running_loop().call_at(deadline, caller.cancel)
        # Also where gRPC's clock was first after all.
        await asyncio.gather(caller, return_exceptions=True)
        assert upstream.reachability.state is ReachabilityState.UNREACHABLE


@pytest.mark.parametrize("began", ["a call", "a fleet"])
async def test_everybody_who_shares_a_call_is_told_at_once_that_the_guest_went(sockets: Path, began: str) -> None:
    told: list[object] = []
    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream:
        calls = []
        if began == "a call":
            calls.append(asyncio.create_task(upstream.call(GPU_INFO, (), soon())))
        else:
            upstream.ask(GPU_INFO, (), soon(), told.append)
        await asyncio.wait_for(guest.called.wait(), 5)
        upstream.ask(GPU_INFO, (), soon(), told.append)
        calls.append(asyncio.create_task(upstream.call(GPU_INFO, (), soon())))
        await eventually(lambda: upstream.callers >= 3)
        await asyncio.wait_for(upstream.close("it was removed"), 5)
        outcomes = [*told, *await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5)]
        assert [str(outcome) for outcome in outcomes] == ["guest vm1: it was removed"] * 3
        assert upstream.callers == 0
        assert len(guest.requests) == 1


async def test_who_began_a_call_gets_its_answer_though_all_who_joined_have_left(sockets: Path) -> None:
    hold = asyncio.Event()

    async def when_told(stream: Stream) -> None:
        await hold.wait()
        await stream.answer(b"")

    async with (
        raw_guest(str(sockets / "g"), when_told) as guest,
        upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream,
    ):
        call = asyncio.create_task(upstream.call(GPU_INFO, (), soon()))
        await asyncio.wait_for(guest.called.wait(), 5)
        upstream.ask(GPU_INFO, (), soon(), lambda _: None).leave()
        hold.set()
        assert isinstance(await call, Answer)
        assert len(guest.requests) == 1


async def test_who_leaves_as_the_answer_is_being_told_is_not_told_and_counts_once(sockets: Path) -> None:
    told: list[int] = []
    questions: list[Question] = []

    def told_first(number: int, _: object) -> None:
        told.append(number)
        for question in questions:
            question.leave()

    async with raw_guest(str(sockets / "g"), no_gpu) as guest, upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream:
        for number in range(3):
            questions.append(upstream.ask(GPU_INFO, (), soon(), functools.partial(told_first, number)))
        await eventually(lambda: not upstream.callers)
        assert len(told) == 1


async def test_who_joined_a_call_of_the_proxys_own_is_told_when_there_is_no_place_to_ask_anew(sockets: Path) -> None:
    places, told = ConcurrencyLimit(1, "the proxy"), list[object]()
    places.take()
    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, places) as upstream:
        of_the_proxy = asyncio.create_task(upstream.call(GPU_INFO, (), soon(), for_fleet=True))
        await asyncio.wait_for(guest.called.wait(), 5)
        upstream.ask(GPU_INFO, (), soon(), told.append)
        of_the_proxy.cancel()
        await asyncio.wait([of_the_proxy])
        assert [str(outcome) for outcome in told] == ["the proxy: 1 calls are in progress already, try again later"]
        assert upstream.callers == 0


async def test_a_failure_of_a_shared_call_is_told_to_all_and_none_of_them_asks_again(sockets: Path) -> None:
    told: list[object] = []

    async def close(stream: Stream) -> None:
        await asyncio.wait_for(joined.wait(), 5)
        stream.connection.writer.close()

    async with raw_guest(str(sockets / "g"), close) as guest, upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream:
        joined = asyncio.Event()
        for later in range(3):
            upstream.ask(GPU_INFO, (), soon() + later, told.append)
        joined.set()
        await eventually(lambda: not upstream.callers)
        assert [str(outcome) for outcome in told] == ["guest vm1: the connection was lost during the call"] * 3
        assert len(guest.requests) == 2, "the shared call alone is made once more, for its lost connection"


async def test_all_who_have_one_deadline_are_told_at_it_and_nobody_asks_again(sockets: Path) -> None:
    told: list[object] = []
    async with raw_guest(str(sockets / "g"), silence) as guest, upstream_of(guest, ConcurrencyLimit(1, "the proxy")) as upstream:
        deadline = asyncio.get_running_loop().time() + 5 * HASTY_SECONDS
        for _ in range(3):
            upstream.ask(GPU_INFO, (), deadline, told.append)
        await eventually(lambda: not upstream.callers)
        assert [isinstance(outcome, CallError) and outcome.code for outcome in told] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 3
        assert len(guest.requests) == 1
