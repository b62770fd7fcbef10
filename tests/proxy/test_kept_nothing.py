"""A failed call leaves nothing that only a full collection of garbage would find: rare in a proxy, and a channel is a connection."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest

from guest_fleet.v1 import fleet_pb2
from tests.eventually import eventually
from tests.proxy.dstack_replies import CHUNKED_HEAD, body_of, sends
from tests.proxy.raw_guest import Behaviour, Stream, raw_guest
from tests.proxy.raw_http_guest import Behaviour as HttpBehaviour
from tests.proxy.raw_http_guest import Request, raw_http_guest
from tests.proxy.running import Proxy
from vmm_proxy.metrics.guest_answers import GuestAnswers
from vmm_proxy.upstream.channel import Channel
from vmm_proxy.upstream.http_channel import HttpChannel
from vmm_proxy.upstream.http_connection import HttpConnection

# More than HASTY_SECONDS, so that the miss counts.
CALL_SECONDS = 0.5


@pytest.fixture(autouse=True)
def no_collection_of_garbage() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def call(proxy: Proxy) -> None:
    assert (await proxy.failure("vm1", timeout=CALL_SECONDS)).code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def collect(proxy: Proxy) -> None:
    stream = proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=CALL_SECONDS)
    try:
        async for _ in stream:
            pass
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # noqa: PT017 - on a busy machine the stream's end comes too late


def only_channel() -> weakref.ref[Channel]:
    """The one channel that there is."""
    [channel] = [each for each in gc.get_objects() if isinstance(each, Channel)]
    return weakref.ref(channel)


@pytest.mark.parametrize("ask", [call, collect])
async def test_a_channel_that_was_given_up_is_gone_at_once(
    proxy: Proxy, sockets: Path, ask: Callable[[Proxy], Awaitable[None]]
) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        await ask(proxy)
        upstream = proxy.pool.upstream("vm1")
        given_up = only_channel()
        while upstream.channels.redials == 0:
            await ask(proxy)
        await eventually(lambda: given_up() is None)


async def test_neither_a_channel_over_http_that_was_given_up_nor_its_connection_is_kept(proxy: Proxy, sockets: Path) -> None:
    over = asyncio.Event()

    async def silent(_: Request) -> None:
        await over.wait()

    async with raw_http_guest(str(sockets / "g"), silent) as guest:
        proxy.add("vm1", guest.address)
        await call(proxy)
        [channel] = [each for each in gc.get_objects() if isinstance(each, HttpChannel)]
        given_up = weakref.ref(channel)
        del channel
        upstream = proxy.pool.upstream("vm1")
        while upstream.channels.redials == 0:
            await call(proxy)
        await eventually(lambda: given_up() is None)
        await eventually(lambda: not [each for each in gc.get_objects() if isinstance(each, HttpConnection)])
        over.set()


@pytest.mark.parametrize(
    "reply",
    [sends(body_of(9) + b"\x08", hang_up=True), sends(CHUNKED_HEAD + b"zz\r\n"), sends(b"SSH-2.0\r\n"), sends(body_of(2**30))],
)
async def test_a_reply_over_http_that_is_none_leaves_no_connection_behind(
    proxy: Proxy, sockets: Path, reply: HttpBehaviour
) -> None:
    async with raw_http_guest(str(sockets / "g"), reply) as guest:
        proxy.add("vm1", guest.address)
        await proxy.failure("vm1")
        await eventually(lambda: not [each for each in gc.get_objects() if isinstance(each, HttpConnection)])


@pytest.mark.parametrize("answer", [lambda stream: stream.answer(b"\xff"), lambda stream: stream.fail("9", "no")])
async def test_a_failure_that_is_kept_for_a_page_holds_neither_its_call_nor_its_channel(
    proxy: Proxy, sockets: Path, answer: Behaviour
) -> None:
    async with raw_guest(str(sockets / "g"), answer) as guest:
        proxy.add("vm1", guest.address)
        guest_answers = GuestAnswers(proxy.directory, proxy.pool, with_containers=False)
        known = guest_answers.get("vm1")
        assert known is not None
        await guest_answers.bring_up_to_date([known], 10)
        failure = known.gpus.failure
        assert failure is not None
        assert (failure.__traceback__, failure.__cause__, failure.__context__) == (None, None, None)
        channel = only_channel()
        proxy.directory.remove("vm1")
        await eventually(lambda: channel() is None)
        assert known.gpus.failure is failure
        await guest_answers.close()
