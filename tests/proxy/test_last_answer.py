"""Callers who say how old an answer may be: the proxy gives them its last one, with its true age, and nobody else's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse, XidCount
from guest_contract.methods import proxied_methods
from guest_fleet.v1 import fleet_pb2
from tests.eventually import eventually, turns
from tests.proxy.raw_guest import Behaviour, RawGuest, Stream, raw_guest
from tests.proxy.running import Proxy
from vmm_proxy.upstream.last_answer import KEPT_BYTES, LastAnswer
from vmm_proxy.upstream.shared_call import Answer

HOUR = (("cache-control", "max-age=3600"),)


def answers(reply: GpuInfoResponse) -> Behaviour:
    async def answer(stream: Stream) -> None:
        await stream.answer(reply.SerializeToString())

    return answer


def of_gpu_info(guest: RawGuest) -> int:
    return sum(stream.path.endswith("/GpuInfo") for stream in guest.requests)


async def test_a_caller_who_takes_an_old_answer_has_the_last_one_and_its_age(proxy: Proxy, sockets: Path) -> None:
    reply = GpuInfoResponse(gpus=[GpuDevice(index=3, uuid="GPU-1")], sample_age_ms=1500)
    async with raw_guest(str(sockets / "g"), answers(reply)) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1")
        call = proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=10, metadata=HOUR)
        kept = await call
        age = next(int(value) for key, value in await call.trailing_metadata() if key == "age")
        assert of_gpu_info(guest) == 1
        assert kept.gpus == reply.gpus
        assert 1500 <= kept.sample_age_ms <= 1500 + 10_000
        assert age * 1000 - 1000 < kept.sample_age_ms <= age * 1000


@pytest.mark.parametrize("cache_control", ["max-age=1", "max-age=0", "no-cache", "max-age=one", "private"])
async def test_an_answer_that_is_older_than_the_caller_takes_is_asked_for(
    proxy: Proxy, sockets: Path, cache_control: str
) -> None:
    async with raw_guest(str(sockets / "g"), answers(GpuInfoResponse(sample_age_ms=1500))) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1")
        call = proxy.api.GpuInfo(guest_api_pb2.Id(id="vm1"), timeout=10, metadata=(("cache-control", cache_control),))
        await call
        assert of_gpu_info(guest) == 2
        assert ("cache-control", cache_control) in guest.requests[-1].headers.items()
        assert "age" not in dict(await call.trailing_metadata() or ())


async def test_no_other_method_is_answered_from_the_proxy(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), answers(GpuInfoResponse())) as guest:
        proxy.add("vm1", guest.address)
        for method in proxied_methods():
            for _ in range(2):
                before = len(guest.requests)
                await getattr(proxy.api, method.name)(guest_api_pb2.Id(id="vm1"), timeout=10, metadata=HOUR)
                assert len(guest.requests) - before == (0 if method.name == "GpuInfo" and _ else 1), method.name


async def test_collections_and_watches_take_old_answers_too_and_say_when_they_came(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), answers(GpuInfoResponse(sample_age_ms=100))) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1")
        came = time.time()
        await eventually(lambda: time.time() >= came + 0.05)
        async for message in proxy.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=10, metadata=HOUR):
            collected = message.guests[0]
        assert collected.gpu_info.sample_age_ms >= 150
        assert collected.received_at.ToMicroseconds() / 1e6 <= came + 0.001
        watch = proxy.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest(), timeout=10, metadata=HOUR)
        watched = (await watch.read()).guests[0]  # type: ignore[attr-defined] # the stream has not ended
        watch.cancel()
        assert watched.received_at == collected.received_at
        assert of_gpu_info(guest) == 1
        other = proxy.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest(), timeout=10)
        await other.read()
        other.cancel()
        assert of_gpu_info(guest) == 2, "a watcher without max-age has a question of its own"


async def restarted(proxy: Proxy, guest: RawGuest) -> None:
    await guest.stop()
    await guest.start()
    # The channel has seen the end of its connection.
    await turns()
    guest.behaviour = fails
    with pytest.raises(grpc.aio.AioRpcError):
        await proxy.gpu_info("vm1")


async def fails(stream: Stream) -> None:
    await stream.fail("13", "broken")


async def moved(proxy: Proxy, guest: RawGuest) -> None:
    entry = proxy.directory.get("vm1")
    assert entry is not None
    proxy.directory.remove("vm1")
    proxy.add("vm1", guest.address)


@pytest.mark.parametrize("change", [restarted, moved])
async def test_an_answer_of_a_connection_or_an_entry_that_has_ended_is_not_given(
    proxy: Proxy, sockets: Path, change: Callable[[Proxy, RawGuest], object]
) -> None:
    async with raw_guest(str(sockets / "g"), answers(GpuInfoResponse(gpus=[GpuDevice(uuid="GPU-before")]))) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1")
        await change(proxy, guest)  # type: ignore[misc] # both are coroutines
        guest.behaviour = answers(GpuInfoResponse(gpus=[GpuDevice(uuid="GPU-after")]))
        seen = await proxy.gpu_info("vm1", metadata=HOUR)
        assert [gpu.uuid for gpu in seen.gpus] == ["GPU-after"]


async def test_a_guest_that_is_gone_is_unreachable_whatever_age_is_taken(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), answers(GpuInfoResponse())) as guest:
        proxy.add("vm1", guest.address)
        await proxy.gpu_info("vm1")

    async def ask_on() -> None:
        # A channel learns of the end of its connection a moment later.
        while True:
            await proxy.gpu_info("vm1", metadata=HOUR)

    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await ask_on()
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


@dataclass(eq=False)
class Channel:
    """Its connection stands as long as the test wants."""

    dials: int = 1
    spent: bool = False
    connected: bool = True


class Kept:
    """A last answer on a clock that the test turns."""

    def __init__(self, message: GpuInfoResponse, wire_bytes: int = 10) -> None:
        self.now = 100.0
        channel = Channel()
        self.channel: Channel | None = channel
        self._last = LastAnswer(lambda: 1.7e9, lambda: self.now)
        self._last.keep(Answer(message, (("x-request-id", "other"),), wire_bytes), channel)

    def at(self, seconds: float, max_age: int = 3600) -> Answer | None:
        self.now = 100.0 + seconds
        return self._last.young_enough((("cache-control", f"max-age={max_age}"),), self.channel)

    def message(self, seconds: float) -> GpuInfoResponse:
        answer = self.at(seconds)
        assert answer is not None
        assert isinstance(answer.message, GpuInfoResponse)
        return answer.message


def test_every_age_inside_grows_by_the_time_that_it_was_kept_and_nothing_else_changes() -> None:
    message = GpuInfoResponse(
        gpus=[GpuDevice(uuid="GPU-1", xids=[XidCount(xid=79, count=2, last_age_ms=10), XidCount(xid=13)])],
        sample_age_ms=1000,
        unplaced_xids=[XidCount(xid=48, last_age_ms=2**64 - 1)],
    )
    # A field that this proxy does not know.
    message.MergeFromString(b"\xf8\x7f\x07")
    seen = Kept(message).message(2.5)
    assert (seen.sample_age_ms, seen.gpus[0].xids[0].last_age_ms, seen.unplaced_xids[0].last_age_ms) == (3500, 2510, 2**64 - 1)
    assert not seen.gpus[0].xids[1].HasField("last_age_ms")
    seen.sample_age_ms, seen.gpus[0].xids[0].last_age_ms = 1000, 10
    assert seen.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)


def test_an_answer_without_an_age_counts_from_its_receipt_and_has_none() -> None:
    kept = Kept(GpuInfoResponse(gpus=[]))
    assert not kept.message(4.0).HasField("sample_age_ms")
    assert kept.at(5.0, max_age=5) is not None
    assert kept.at(5.001, max_age=5) is None


def test_the_age_is_that_of_the_sample_and_is_rounded_up() -> None:
    kept = Kept(GpuInfoResponse(sample_age_ms=1200))
    answer = kept.at(0.9)
    assert answer is not None
    assert answer.trailers == (("age", "3"),), "and the id of the caller who asked is nobody else's"
    assert kept.at(0.8, max_age=2) is not None
    assert kept.at(0.801, max_age=2) is None


@pytest.mark.parametrize("channel", [None, Channel()])
def test_only_over_the_channel_that_it_came_by(channel: Channel | None) -> None:
    kept = Kept(GpuInfoResponse())
    kept.channel = channel
    assert kept.at(0.0) is None


@pytest.mark.parametrize(("name", "value"), [("spent", True), ("connected", False), ("dials", 2)])
def test_only_while_the_connection_that_it_came_by_stands(name: str, value: object) -> None:
    kept = Kept(GpuInfoResponse())
    setattr(kept.channel, name, value)
    assert kept.at(0.0) is None


@pytest.mark.parametrize(
    ("message", "wire_bytes"), [(GpuInfoResponse(first_sample_pending=True), 10), (GpuInfoResponse(), KEPT_BYTES + 1)]
)
def test_an_answer_before_the_first_sample_and_a_large_one_are_asked_for_again(message: GpuInfoResponse, wire_bytes: int) -> None:
    assert Kept(message, wire_bytes).at(0.0) is None
