"""A guest that floods its connection with frames that answer nothing: it loses the connection, and with it the proxy's time.

The clock of the bound is the test's own; the connections, the frames and gRPC are real.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_transport.options import REPLY_LIMIT_BYTES
from tests.proxy.raw_guest import Stream, frame, raw_guest
from tests.proxy.running import Proxy
from vmm_proxy.upstream.unasked_bytes import (
    ANSWER_BYTES,
    BYTES_A_SECOND,
    FIRST_PAUSE_SECONDS,
    FORGIVEN_SECONDS,
    LONGEST_PAUSE_SECONDS,
    UNASKED_LIMIT_BYTES,
    FloodedError,
    UnaskedBytes,
)

AGE = 77
PATIENT_SECONDS = 30.0
REFUSED = "guest bad: unreachable: it sent more than it was asked for, and is dialled again"
# More than any guest may send without an answer, and less than it could send in a second.
ENDLESS_BYTES = 64 * 2**20


def http2(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


# PING and SETTINGS are missing: gRPC answers each, and reads no faster than its answers are read.
# Of the call's own stream where `own` is true, of the connection otherwise.
FLOODS: dict[str, tuple[bool, int, int, bytes]] = {
    "window updates by 1": (False, 8, 0, b"\0\0\0\1"),
    "answers to pings that nobody sent": (False, 6, 1, bytes(8)),
    "priorities": (True, 2, 0, bytes(5)),
    "empty data": (True, 0, 0, b""),
    "early hints": (True, 1, 4, b"\x08\x03103"),
    "resets of the call": (True, 3, 0, b"\0\0\0\x08"),
}


async def well(stream: Stream) -> None:
    await stream.answer(guest_api_pb2.GpuInfoResponse(sample_age_ms=AGE).SerializeToString())


class Flood:
    """Floods once it is called, until its connection is gone; counts what was taken of it."""

    def __init__(self, kind: str) -> None:
        self._frame = FLOODS[kind]
        self.sent_bytes = 0
        self.cut_off = asyncio.Event()

    async def __call__(self, stream: Stream) -> None:
        own, kind, flags, payload = self._frame
        burst = http2(kind, flags, stream.number if own else 0, payload) * 2000
        if kind == 0:
            await stream.head()
        try:
            while self.sent_bytes < ENDLESS_BYTES:
                stream.connection.writer.write(burst)
                await stream.connection.writer.drain()
                self.sent_bytes += len(burst)
        finally:
            self.cut_off.set()


@pytest.mark.parametrize("vmm_answer", [None, b"OK 1073741824\n"], ids=["unix", "hvsock"])
@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_is_cut_off_and_the_guest_beside_it_is_served(
    proxy: Proxy, sockets: Path, kind: str, vmm_answer: bytes | None
) -> None:
    flood = Flood(kind)
    async with (
        raw_guest(str(sockets / "bad"), flood, vmm_answer=vmm_answer) as guest,
        raw_guest(str(sockets / "good"), well) as good,
    ):
        proxy.add("bad", guest.address)
        proxy.add("good", good.address)
        call = asyncio.create_task(proxy.failure("bad", timeout=PATIENT_SECONDS))
        async with asyncio.timeout(PATIENT_SECONDS):
            await flood.cut_off.wait()
        assert (await proxy.gpu_info("good")).sample_age_ms == AGE
        assert flood.sent_bytes < 2 * UNASKED_LIMIT_BYTES, "what buffers hold is more than what is let through"
        await call
        # A slow machine may take as long as the first pause to come here; the next ones are longer.
        async with asyncio.timeout(PATIENT_SECONDS):
            while not ((error := await proxy.failure("bad")).details() or "").startswith(REFUSED):
                pass
        assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_large_answers_in_a_row_are_no_flood(proxy: Proxy, sockets: Path) -> None:
    text = "x" * 60_000
    containers = [guest_api_pb2.Container(id=str(number), image=text) for number in range(16)]
    wire = guest_api_pb2.ListContainersResponse(containers=containers).SerializeToString()
    assert REPLY_LIMIT_BYTES * 0.9 < len(wire) < REPLY_LIMIT_BYTES
    async with raw_guest(str(sockets / "g"), lambda stream: stream.answer(wire)) as guest:
        proxy.add("vm1", guest.address)
        for _ in range(20):
            await proxy.api.ListContainers(guest_api_pb2.Id(id="vm1"), timeout=PATIENT_SECONDS)
        assert guest.connections == 1


async def test_a_late_answer_that_nobody_waits_for_any_more_is_no_flood(proxy: Proxy, sockets: Path) -> None:
    async def late(stream: Stream) -> None:
        await stream.head()
        await stream.data(frame(bytes(100_000), length=200_000))
        await stream.reset.wait()

    async with raw_guest(str(sockets / "g"), late) as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1", timeout=0.5)
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        guest.behaviour = well
        assert (await proxy.gpu_info("vm1")).sample_age_ms == AGE
        assert guest.connections == 1


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pause(unasked: UnaskedBytes, clock: Clock) -> float:
    """Floods, and waits until the guest may be dialled again: how long that was."""
    assert not unasked.received(UNASKED_LIMIT_BYTES + 1)
    began = clock.now
    while True:
        try:
            unasked.require_dialable()
        except FloodedError:
            clock.now += 0.5
        else:
            return clock.now - began


def test_each_flood_costs_the_guest_twice_the_time_and_a_long_peace_is_rewarded(clock: Clock) -> None:
    unasked = UnaskedBytes("vm1", clock)
    unasked.require_dialable()
    assert [pause(unasked, clock) for _ in range(8)] == [2, 4, 8, 16, 32, 64, 64, LONGEST_PAUSE_SECONDS]
    clock.now += FORGIVEN_SECONDS + 1
    assert pause(unasked, clock) == FIRST_PAUSE_SECONDS


def test_what_answers_explain_is_no_flood_and_is_not_saved_up_for_one(clock: Clock) -> None:
    unasked = UnaskedBytes("vm1", clock)
    for _ in range(20):
        assert unasked.received(REPLY_LIMIT_BYTES + ANSWER_BYTES)
        unasked.answered(REPLY_LIMIT_BYTES)
    unasked.answered(REPLY_LIMIT_BYTES)
    assert unasked.received(UNASKED_LIMIT_BYTES)
    assert not unasked.received(1)


def test_what_an_idle_connection_brings_is_forgotten_with_time(clock: Clock) -> None:
    unasked = UnaskedBytes("vm1", clock)
    for _ in range(3):
        assert unasked.received(UNASKED_LIMIT_BYTES)
        clock.now += UNASKED_LIMIT_BYTES / BYTES_A_SECOND
    assert unasked.received(UNASKED_LIMIT_BYTES)
    assert not unasked.received(1)
