"""A reader that demands a sample of some age gets one or is told why not, and asks the driver no more often than it may be asked."""

from __future__ import annotations

import asyncio

import pytest

from guest_api import guest_api_pb2
from tests.telemetry.rack import BACKOFF, TTL, Rig, temperature
from tests.telemetry.virtual_time import in_virtual_time, passes, virtual_loop


@in_virtual_time
async def test_max_age_is_met_by_a_sample_that_is_young_enough() -> None:
    async with Rig() as rig:
        await passes(2.1)
        assert temperature(await rig.telemetry.gpu_info("caller", max_age_seconds=2.5)) == 1
        assert rig.samples == 1


@in_virtual_time
async def test_max_age_waits_for_a_new_sample_when_one_is_due() -> None:
    async with Rig() as rig:
        await passes(20)
        began = virtual_loop().time()
        reply = await rig.telemetry.gpu_info("caller", max_age_seconds=10)
        assert (temperature(reply), reply.sample_age_ms) == (2, 0)
        assert virtual_loop().time() - began == pytest.approx(0.1)


@in_virtual_time
async def test_max_age_below_the_spacing_waits_until_the_spacing_allows_a_sample() -> None:
    async with Rig() as rig:
        await passes(1.1)
        replies = await asyncio.gather(*(rig.telemetry.gpu_info(f"{n}", max_age_seconds=0) for n in range(20)))
        assert {(temperature(reply), reply.sample_age_ms) for reply in replies} == {(2, 0)}
        assert rig.sampler.started[1] - rig.sampler.ended[0][0] == pytest.approx(TTL, abs=0.01)


@in_virtual_time
async def test_max_age_that_cannot_be_met_in_time_is_told_so_at_once() -> None:
    async with Rig() as rig:
        await passes(1.1)
        began = virtual_loop().time()
        reply = await rig.telemetry.gpu_info("caller", max_age_seconds=0, timeout_seconds=3)
        assert virtual_loop().time() == began
        assert reply == guest_api_pb2.GpuInfoResponse(
            error="no GPU sample that is at most 0 s old within 2.9 s; the last one is 1.0 s old"
        )


@in_virtual_time
async def test_max_age_never_gets_an_older_sample_when_the_new_one_is_late() -> None:
    async with Rig() as rig:
        await passes(60.1)
        rig.sampler.duration = 8
        reply = await rig.telemetry.gpu_info("caller", max_age_seconds=5, timeout_seconds=2)
        assert reply.error == "no GPU sample that is at most 5 s old within 1.9 s; the last one is 61.9 s old"
        assert not reply.HasField("cc_enabled")


@in_virtual_time
async def test_max_age_cannot_shorten_the_back_off_of_a_driver_that_failed() -> None:
    async with Rig() as rig:
        rig.sampler.reason = "GPU is lost"
        await passes(TTL + 1)
        for _ in range(10):
            began = virtual_loop().time()
            reply = await rig.telemetry.gpu_info("caller", max_age_seconds=0, timeout_seconds=15)
            # The back-off ends behind the caller's bound: the failure itself is the answer, with its age.
            assert virtual_loop().time() == began
            assert reply.error == "GPU is lost"
            assert reply.HasField("sample_age_ms")
            await passes(1)
        assert rig.samples == 1


@in_virtual_time
async def test_max_age_waits_for_the_end_of_a_back_off_that_its_bound_allows() -> None:
    async with Rig() as rig:
        rig.sampler.reason = "GPU is lost"
        await passes(BACKOFF - 5)
        rig.sampler.reason = ""
        reply = await rig.telemetry.gpu_info("caller", max_age_seconds=1, timeout_seconds=15)
        assert temperature(reply) == 2
        assert rig.sampler.started[1] - rig.sampler.ended[0][0] == pytest.approx(BACKOFF, abs=0.01)
