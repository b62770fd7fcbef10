"""What becomes of a sample is counted by its kind and said in the log, each change once."""

from __future__ import annotations

import logging

import pytest

from tests.eventually import turns
from tests.telemetry.rack import BACKOFF, TIMEOUT, PacedSampler, Rig
from tests.telemetry.virtual_time import in_virtual_time, passes


@in_virtual_time
async def test_outcomes_are_counted_by_kind_from_zero() -> None:
    async with Rig(ahead=False) as rig:
        assert set(rig.telemetry.stats.samples.values()) == {0}
        assert rig.telemetry.stats.last_duration_seconds is None
        await passes(10)
        rig.sampler.reason = "GPU is lost"
        rig.telemetry.last("scraper")
        await passes(40)
        rig.sampler.duration = 3600
        rig.telemetry.last("scraper")
        await passes(40)
        counted = {kind: count for kind, count in rig.telemetry.stats.samples.items() if count}
        assert counted == {"sample": 1, "driver_error": 1, "timeout": 1}
        assert rig.telemetry.stats.last_duration_seconds == pytest.approx(TIMEOUT)


@in_virtual_time
async def test_a_failure_is_logged_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "guest_service.telemetry.gpu_telemetry"):
        async with Rig(ahead=False, backoff=1.0, ttl=1.0) as rig:
            for reason in ("", "lost", "lost", "lost", "", ""):
                rig.sampler.reason = reason
                await passes(2)
                rig.telemetry.last("scraper")
            await passes(2)
    told = [record.getMessage() for record in caplog.records if record.name.endswith(".gpu_telemetry")]
    assert told == ["no GPU sample: lost", "GPU samples are there again: 1 devices"]


@in_virtual_time
async def test_a_sampler_with_a_bug_is_an_outcome_too_and_is_backed_off_from(caplog: pytest.LogCaptureFixture) -> None:
    class Buggy(PacedSampler):
        async def sample(self) -> None:  # type: ignore[override] # the bug
            self.started.append(0)
            raise ZeroDivisionError

    async with Rig(sampler=Buggy) as rig:
        reply = await rig.telemetry.gpu_info("caller")
        assert reply.error == "internal error while taking a GPU sample; the agent's log has it"
        assert "ZeroDivisionError" in caplog.text
        await passes(BACKOFF - 1)
        rig.telemetry.last("scraper")
        await turns()
        assert rig.samples == 1
