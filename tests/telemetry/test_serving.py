"""What readers get from the cell: at once and with its age, or after a bounded wait that they asked for."""

from __future__ import annotations

import asyncio
import time

import pytest

from guest_api import guest_api_pb2
from guest_service.telemetry.gpu_telemetry import NO_SAMPLE_YET, STILL_NO_SAMPLE
from tests.eventually import turns
from tests.telemetry.rack import TIMEOUT, TTL, Machine, PacedSampler, Rig, temperature
from tests.telemetry.virtual_time import in_virtual_time, passes, virtual_loop

PENDING = guest_api_pb2.GpuInfoResponse(error=NO_SAMPLE_YET, first_sample_pending=True)


@in_virtual_time
async def test_start_begins_the_first_sample_and_does_not_wait_for_it() -> None:
    began = virtual_loop().time()
    async with Rig(duration=8.0) as rig:
        assert virtual_loop().time() == began
        readiness = [rig.telemetry.ready]
        await passes(8.1)
        readiness.append(rig.telemetry.ready)
        assert readiness == [False, True]
        assert temperature(rig.telemetry.last("scraper")) == 1


@in_virtual_time
async def test_the_page_is_answered_at_once_while_the_first_sample_takes_8_seconds() -> None:
    async with Rig(duration=8.0) as rig:
        await passes(4)
        assert rig.telemetry.last("scraper") == PENDING
        assert rig.telemetry.peek() == PENDING
        assert rig.samples == 1


@in_virtual_time
async def test_a_call_on_a_cold_cell_waits_for_the_sample_that_is_being_taken() -> None:
    async with Rig(duration=8.0) as rig:
        replies = await asyncio.gather(*(rig.telemetry.gpu_info(f"caller {n}") for n in range(50)))
        assert {temperature(reply) for reply in replies} == {1}
        assert rig.samples == 1


@in_virtual_time
async def test_a_call_on_a_cold_cell_is_answered_before_its_own_deadline() -> None:
    async with Rig(duration=8.0) as rig:
        began = virtual_loop().time()
        reply = await rig.telemetry.gpu_info("caller", timeout_seconds=2.0)
        assert virtual_loop().time() - began == pytest.approx(1.9)
        words = STILL_NO_SAMPLE.format(first=TIMEOUT, later=TIMEOUT)
        assert reply == guest_api_pb2.GpuInfoResponse(error=words, first_sample_pending=True)


@in_virtual_time
async def test_a_call_on_a_cold_cell_waits_no_longer_than_the_sample_timeout_and_gets_its_reason() -> None:
    async with Rig(duration=3600) as rig:
        began = virtual_loop().time()
        reply = await rig.telemetry.gpu_info("caller", timeout_seconds=600)
        assert virtual_loop().time() - began == pytest.approx(TIMEOUT)
        assert reply == guest_api_pb2.GpuInfoResponse(error="did not answer", sample_age_ms=0)


@in_virtual_time
async def test_a_first_sample_that_takes_minutes_is_told_with_both_keys_and_later_calls_wait_for_the_same_one() -> None:
    async with Rig(sampler=lambda clock: PacedSampler(clock, duration=120.0, first_timeout_seconds=180.0)) as rig:
        began = virtual_loop().time()
        reply = await rig.telemetry.gpu_info("impatient")
        assert virtual_loop().time() - began == pytest.approx(TIMEOUT, abs=1)
        assert reply.error.startswith(NO_SAMPLE_YET)
        assert "gpu.first_sample_timeout_seconds (180 s)" in reply.error
        assert "gpu.sample_timeout_seconds (10 s)" in reply.error
        assert "persistence mode" in reply.error
        assert rig.telemetry.last("page").error == NO_SAMPLE_YET
        await passes(115 - (virtual_loop().time() - began))
        assert temperature(await rig.telemetry.gpu_info("patient")) == 1
        assert rig.samples == 1


@in_virtual_time
async def test_a_driver_that_was_unloaded_may_take_its_time_to_start_again() -> None:
    async with Rig(sampler=lambda clock: PacedSampler(clock, first_timeout_seconds=180.0)) as rig:
        await passes(1)
        assert rig.sampler.starting is False
        rig.machine.driver_loaded = False
        rig.telemetry.last("page")
        assert rig.sampler.starting is True


@in_virtual_time
async def test_a_sample_that_was_cut_short_is_served_with_the_age_of_its_values_and_backed_off_from() -> None:
    async with Rig(ahead=False, sampler=lambda clock: PacedSampler(clock, duration=10.5, hangs=True)) as rig:
        await passes(10.1)
        reply = rig.telemetry.last("page")
        assert (temperature(reply), list(reply.gpus[0].errors)) == (1, ["memory: did not answer"])
        assert reply.sample_age_ms == pytest.approx(9_600, abs=1)
        for _ in range(29):
            await passes(1)
            rig.telemetry.last("page")
        assert rig.samples == 1
        await passes(1)
        rig.telemetry.last("page")
        await turns()
        assert rig.samples == 2


@in_virtual_time
async def test_a_call_whose_time_is_already_up_is_answered_at_once_and_still_begins_a_sample() -> None:
    async with Rig() as rig:
        rig.machine.driver_loaded = False
        await rig.telemetry.gpu_info("caller")
        rig.machine.driver_loaded = True
        await passes(TTL + 1)
        began, samples = virtual_loop().time(), rig.samples
        assert (await rig.telemetry.gpu_info("caller", timeout_seconds=0)).error == NO_SAMPLE_YET
        assert (virtual_loop().time(), rig.samples) == (began, samples)
        await passes(1)
        assert rig.samples == samples + 1


@in_virtual_time
async def test_an_outcome_is_served_at_any_age_with_that_age() -> None:
    async with Rig() as rig:
        await passes(86400.1)
        reply = rig.telemetry.last("scraper")
        assert temperature(reply) == 1
        assert reply.sample_age_ms == pytest.approx(86_400_000, abs=1)


@in_virtual_time
async def test_a_stale_outcome_is_served_first_and_refreshed_behind_the_answer() -> None:
    async with Rig() as rig:
        await passes(60)
        assert temperature(await rig.telemetry.gpu_info("caller")) == 1
        await passes(0.2)
        reply = await rig.telemetry.gpu_info("caller")
        assert temperature(reply) == 2
        assert reply.sample_age_ms == pytest.approx(100, abs=1)


@in_virtual_time
async def test_no_sample_is_taken_while_the_last_one_is_fresh() -> None:
    async with Rig(ahead=False) as rig:
        await passes(0.2)
        for _ in range(48):
            rig.telemetry.last("impatient")
            await passes(0.1)
        assert rig.samples == 1
        for _ in range(3):
            rig.telemetry.last("impatient")
            await passes(0.1)
        assert rig.samples == 2


@in_virtual_time
async def test_a_failure_replaces_the_sample_is_served_with_its_age_and_is_backed_off_from() -> None:
    async with Rig(ahead=False) as rig:
        await passes(6)
        rig.sampler.reason = "GPU is lost"
        rig.telemetry.last("scraper")
        await passes(1.1)
        assert rig.telemetry.last("scraper") == guest_api_pb2.GpuInfoResponse(error="GPU is lost", sample_age_ms=1000)
        for _ in range(28):
            await passes(1)
            rig.telemetry.last("scraper")
        assert rig.samples == 2
        rig.sampler.reason = ""
        await passes(1)
        assert rig.telemetry.last("scraper").error == "GPU is lost"
        await passes(0.2)
        assert temperature(rig.telemetry.last("scraper")) == 3


@in_virtual_time
async def test_peeking_begins_nothing_however_old_the_outcome_is() -> None:
    async with Rig() as rig:
        await passes(3600)
        assert temperature(rig.telemetry.peek()) == 1
        await passes(3600)
        assert rig.samples == 1


@in_virtual_time
async def test_a_caller_that_gives_up_ends_no_sample() -> None:
    async with Rig(duration=4.0) as rig:
        gone, stays = (asyncio.create_task(rig.telemetry.gpu_info(name)) for name in ("gone", "stays"))
        await passes(1)
        gone.cancel()
        assert temperature(await stays) == 1
        assert gone.cancelled()
        assert rig.samples == 1


@in_virtual_time
async def test_closing_answers_those_who_wait_and_takes_no_more_samples() -> None:
    rig = Rig(duration=8.0)
    await rig.telemetry.start()
    waiting = asyncio.create_task(rig.telemetry.gpu_info("caller"))
    await passes(1)
    began = virtual_loop().time()
    await rig.telemetry.close()
    assert (await waiting).error == NO_SAMPLE_YET
    assert virtual_loop().time() == began
    assert not rig.sampler.running
    await passes(100)
    rig.telemetry.last("late")
    assert rig.samples == 1


@in_virtual_time
async def test_time_asleep_counts_as_age() -> None:
    async with Rig() as rig:
        await passes(1.1)
        virtual_loop().suspend(3600)
        assert rig.telemetry.last("scraper").sample_age_ms == pytest.approx(3_601_000, abs=1)
        await passes(0.2)
        assert temperature(rig.telemetry.last("scraper")) == 2


@in_virtual_time
async def test_a_wall_clock_that_jumps_changes_no_age(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Rig() as rig:
        await passes(1.1)
        monkeypatch.setattr(time, "time", lambda: -1e9)
        assert rig.telemetry.last("scraper").sample_age_ms == pytest.approx(1000, abs=1)
        monkeypatch.setattr(time, "time", lambda: 1e12)
        assert rig.telemetry.last("scraper").sample_age_ms == pytest.approx(1000, abs=1)
        assert rig.samples == 1


@in_virtual_time
async def test_a_reply_belongs_to_its_caller() -> None:
    async with Rig() as rig:
        await passes(1)
        mine = rig.telemetry.last("a")
        mine.gpus[0].temperature_c = 999
        mine.error = "spoiled"
        assert temperature(rig.telemetry.last("b")) == 1
        assert rig.telemetry.last("b").error == ""


@in_virtual_time
async def test_a_driver_that_lists_no_gpu_though_the_bus_has_two_is_unknown_and_not_none() -> None:
    async with Rig(machine=Machine(cards=2)) as rig:
        rig.sampler.cards = 0
        await passes(1)
        reply = rig.telemetry.last("scraper")
        assert reply.error == "the NVIDIA driver lists no GPU; the PCI bus has 2"
        assert not reply.HasField("cc_enabled")
        assert rig.telemetry.stats.samples["driver_error"] == 1
