"""How a guest may end a reply, and that it makes no difference whether it answered a call well before."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from tests.proxy.raw_guest import Behaviour, Stream, frame, raw_guest
from tests.proxy.running import Proxy

# Of a caller who is told nothing else before; a guest that is told apart ends its call long before it.
DEADLINE_SECONDS = 1.0
PATIENT_SECONDS = 30.0


async def well(stream: Stream) -> None:
    await stream.answer(b"")


async def after_the_trailers(stream: Stream) -> None:
    await stream.answer(b"")
    # A DATA frame on the stream that has ended.
    message = frame(b"")
    head = len(message).to_bytes(3, "big") + b"\x00\x00" + stream.number.to_bytes(4, "big")
    stream.connection.writer.write(head + message)


async def half(stream: Stream) -> None:
    await stream.head()
    await stream.data(frame(bytes(10), length=100))
    await stream.reset.wait()


async def without_status(stream: Stream) -> None:
    await stream.head()
    await stream.data(frame(b""))
    await stream.send_headers([("x-request-id", "r7")], end=True)


def with_status(status: str) -> Behaviour:
    return lambda stream: stream.fail(status, "its own words")


@pytest.mark.parametrize("known", [False, True], ids=["first call", "after a good one"])
async def test_a_message_behind_the_trailers_changes_nothing(proxy: Proxy, sockets: Path, known: bool) -> None:
    async with raw_guest(str(sockets / "g"), well) as guest:
        proxy.add("vm1", guest.address)
        if known:
            await proxy.gpu_info("vm1")
        guest.behaviour = after_the_trailers
        for _ in range(3):
            assert await proxy.gpu_info("vm1") == guest_api_pb2.GpuInfoResponse()
        assert guest.connections == 1


@pytest.mark.parametrize("known", [False, True], ids=["first call", "after a good one"])
@pytest.mark.parametrize(
    ("reply", "code", "text"),
    [
        (half, grpc.StatusCode.DEADLINE_EXCEEDED, ""),
        (without_status, grpc.StatusCode.INTERNAL, "guest vm1: its reply is not valid gRPC"),
        (with_status("1"), grpc.StatusCode.UNAVAILABLE, "guest vm1: its own words"),
        (with_status("17"), grpc.StatusCode.UNKNOWN, "guest vm1: its own words"),
        (with_status("99999"), grpc.StatusCode.UNKNOWN, "guest vm1: its own words"),
        (with_status("-1"), grpc.StatusCode.INTERNAL, "guest vm1: its reply is not valid gRPC"),
        (with_status("one"), grpc.StatusCode.INTERNAL, "guest vm1: its reply is not valid gRPC"),
    ],
)
async def test_how_a_call_ends_does_not_depend_on_the_calls_before(
    proxy: Proxy, sockets: Path, known: bool, reply: Behaviour, code: grpc.StatusCode, text: str
) -> None:
    async with raw_guest(str(sockets / "g"), well) as guest:
        proxy.add("vm1", guest.address)
        if known:
            await proxy.gpu_info("vm1")
        guest.behaviour = reply
        error = await proxy.failure("vm1", timeout=DEADLINE_SECONDS if reply is half else PATIENT_SECONDS)
        assert error.code() is code
        assert not text or error.details() == text
