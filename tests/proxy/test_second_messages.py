"""A guest that sends a second message where the method has one: gRPC says nothing of it, the proxy names it after one missed deadline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from tests.proxy.hostile_guests import after, answers_twice, silence
from tests.proxy.raw_guest import Behaviour, Stream, frame, raw_guest
from tests.proxy.running import METHODS, Proxy

AGE = 77
# Passes once, at the call that nothing was known before of.
SHORT_SECONDS = 1.0
# Must not pass.
PATIENT_SECONDS = 60.0
NAMED = "guest vm1: it sent a second message where the method has one"


async def well(stream: Stream) -> None:
    await stream.answer(guest_api_pb2.GpuInfoResponse(sample_age_ms=AGE).SerializeToString())


TWICE: dict[str, Behaviour] = {"and an end": answers_twice, "and no end": after(silence, reply=frame(b"") * 2)}


@pytest.mark.parametrize("how", TWICE)
@pytest.mark.parametrize("method", METHODS)
async def test_after_one_missed_deadline_a_second_message_ends_the_call(
    proxy: Proxy, sockets: Path, method: str, how: str
) -> None:
    async with raw_guest(str(sockets / "g"), TWICE[how]) as guest:
        proxy.add("vm1", guest.address)
        assert (await proxy.failure("vm1", method, SHORT_SECONDS)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        for _ in range(3):
            error = await proxy.failure("vm1", method, PATIENT_SECONDS)
            assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, NAMED)
        assert len(guest.requests) == 4, "nothing is asked twice"
        assert guest.connections == 1


async def test_the_guest_is_served_again_when_it_sends_one_message_again(proxy: Proxy, sockets: Path) -> None:
    async with raw_guest(str(sockets / "g"), answers_twice) as guest:
        proxy.add("vm1", guest.address)
        await proxy.failure("vm1", timeout=SHORT_SECONDS)
        await proxy.failure("vm1", timeout=PATIENT_SECONDS)
        guest.behaviour = well
        for _ in range(3):
            assert (await proxy.gpu_info("vm1", PATIENT_SECONDS)).sample_age_ms == AGE
        assert guest.connections == 1


async def test_a_method_that_answers_well_does_not_hide_another_that_does_not(proxy: Proxy, sockets: Path) -> None:
    async def answer(stream: Stream) -> None:
        await (answers_twice if stream.path.endswith("/GpuInfo") else well)(stream)

    async with raw_guest(str(sockets / "g"), answer) as guest:
        proxy.add("vm1", guest.address)
        await proxy.failure("vm1", timeout=SHORT_SECONDS)
        await proxy.api.NetworkInfo(guest_api_pb2.Id(id="vm1"), timeout=PATIENT_SECONDS)
        assert (await proxy.failure("vm1", timeout=PATIENT_SECONDS)).details() == NAMED


async def test_a_caller_who_leaves_a_slow_guest_ends_the_call_there_also_when_it_is_read_to_its_end(
    proxy: Proxy, sockets: Path
) -> None:
    async with raw_guest(str(sockets / "g"), silence) as guest:
        proxy.add("vm1", guest.address)
        await proxy.failure("vm1", timeout=SHORT_SECONDS)
        guest.called.clear()
        call = asyncio.create_task(proxy.gpu_info("vm1", PATIENT_SECONDS))
        async with asyncio.timeout(PATIENT_SECONDS):
            await guest.called.wait()
            call.cancel()
            await guest.requests[1].reset.wait()
