"""Callers at a steady beat meet a young sample; nobody causes more samples than requests, and silence causes none."""

from __future__ import annotations

import asyncio
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_service.telemetry.ahead import SPACING_SLACK_SECONDS, aim
from guest_service.telemetry.beat import REMEMBERED_CALLERS, Beat, BeatBook, beat_of
from tests.telemetry.rack import BACKOFF, TTL, Rig
from tests.telemetry.virtual_time import in_virtual_time, passes

# Requests until a beat is known (two gaps) and its first sample was met.
LEARNING = 3


async def scrape(rig: Rig, caller: str, gaps: list[float]) -> list[float]:
    """Ask after each gap; the ages that were served, in seconds."""
    ages = []
    for gap in gaps:
        await passes(gap)
        ages.append(rig.telemetry.last(caller).sample_age_ms / 1000)
    return ages


def at_percentile(values: list[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]


@in_virtual_time
async def test_a_15_second_scrape_sees_samples_younger_than_7_percent_of_its_beat_at_one_sample_per_beat() -> None:
    async with Rig() as rig:
        await scrape(rig, "prometheus", [15.0] * LEARNING)
        before = rig.samples
        ages = await scrape(rig, "prometheus", [15.0] * 40)
        assert max(ages) <= 0.07 * 15
        assert (rig.samples - before) / 40 <= 1.0


@in_virtual_time
async def test_lazy_refreshing_serves_the_same_scrape_about_one_beat_old_samples() -> None:
    async with Rig(ahead=False) as rig:
        ages = await scrape(rig, "prometheus", [15.0] * 20)
        assert at_percentile(ages[1:], 0.05) > 0.9 * 15
        assert rig.samples <= 21


@pytest.mark.parametrize("beat", [5.0, 6.0, 10.0, 20.0, 60.0, 300.0])
@pytest.mark.parametrize("duration", [0.1, 2.0])
def test_any_usual_beat_is_met(beat: float, duration: float) -> None:
    @in_virtual_time
    async def run() -> None:
        async with Rig(duration=duration) as rig:
            await scrape(rig, "prometheus", [beat] * (LEARNING + 2))
            ages = await scrape(rig, "prometheus", [beat] * 20)
            # Where the spacing forbids a sample per beat, every second request meets a new one.
            spacing_allows = beat > TTL + duration + 0.1 + 0.02 * beat
            met = [age for age in ages if age <= 0.07 * beat]
            assert len(met) == 20 if spacing_allows else len(met) >= 9
            assert rig.samples <= len(ages) + LEARNING + 2 + 1

    run()


@in_virtual_time
async def test_when_the_beat_stops_one_more_sample_is_taken_and_then_none() -> None:
    async with Rig() as rig:
        await scrape(rig, "prometheus", [15.0] * 10)
        before = rig.samples
        await passes(86400)
        assert rig.samples == before + 1


@in_virtual_time
async def test_samples_of_a_broken_driver_keep_the_back_off_whatever_the_beat() -> None:
    async with Rig() as rig:
        await scrape(rig, "prometheus", [15.0] * 5)
        rig.sampler.reason = "GPU is lost"
        before = rig.samples
        await scrape(rig, "prometheus", [15.0] * 40)
        starts, ends = rig.sampler.started[before + 1 :], rig.sampler.ended[before:]
        # Every third beat: a sample that meets the second one would start a hair before the 30 s are over.
        assert 13 <= len(starts) <= 20
        assert all(start - end >= BACKOFF for start, (end, _) in zip(starts, ends, strict=False))


@in_virtual_time
async def test_a_scraper_that_wavers_by_5_percent_still_meets_young_samples_mostly() -> None:
    wavering = random.Random(7)
    async with Rig() as rig:
        gaps = [15.0 * wavering.uniform(0.95, 1.05) for _ in range(200)]
        ages = await scrape(rig, "prometheus", gaps)
        assert at_percentile(ages[LEARNING:], 0.6) < 0.2 * 15
        # A request that comes before its sample sees the one before: a beat old, and the lead it was taken with.
        assert max(ages[LEARNING:]) < 1.05 * 15 + 1.5
        assert rig.samples <= len(gaps) + 1


@in_virtual_time
async def test_a_caller_without_a_beat_is_served_lazily() -> None:
    async with Rig() as rig:
        await scrape(rig, "person", [1.0, 9.0, 40.0, 7.0, 100.0, 30.0])
        await passes(1)
        before = rig.samples
        await passes(3600)
        assert rig.samples == before


@in_virtual_time
async def test_two_scrapers_each_meet_young_samples_without_more_samples_than_requests() -> None:
    async with Rig() as rig:
        one = asyncio.create_task(scrape(rig, "one", [15.0] * 30))
        await passes(7)
        two = asyncio.create_task(scrape(rig, "two", [15.0] * 30))
        ages = (await one)[LEARNING:] + (await two)[LEARNING:]
        assert max(ages) <= 0.07 * 15
        assert rig.samples <= 61


@in_virtual_time
async def test_two_scrapers_in_step_share_one_sample_per_beat() -> None:
    async with Rig() as rig:
        one = asyncio.create_task(scrape(rig, "one", [15.0] * 30))
        await passes(0.5)
        two = asyncio.create_task(scrape(rig, "two", [15.0] * 30))
        assert max((await one)[LEARNING:] + (await two)[LEARNING:]) <= 0.07 * 15 + 0.5
        assert rig.samples <= 33


@in_virtual_time
async def test_a_waiting_max_age_call_is_remembered_but_plans_no_second_sample() -> None:
    async with Rig() as rig:
        for _ in range(10):
            await passes(15)
            await rig.telemetry.gpu_info("strict", max_age_seconds=1)
        assert rig.samples <= 11
        await passes(3600)
        assert rig.samples <= 11


@in_virtual_time
async def test_a_crowd_of_callers_is_not_remembered_beyond_its_bound() -> None:
    async with Rig() as rig:
        for _ in range(3):
            for caller in range(REMEMBERED_CALLERS * 3):
                rig.telemetry.last(f"caller {caller}")
            await passes(15)
        assert rig.samples <= 4
        # Only callers that are still remembered could have a plan.
        await passes(3600)
        assert rig.samples <= 5


@in_virtual_time
async def test_a_beat_is_forgotten_with_its_caller_and_so_is_its_plan() -> None:
    async with Rig() as rig:
        await scrape(rig, "prometheus", [15.0] * 5)
        before = rig.samples
        for caller in range(REMEMBERED_CALLERS):
            rig.telemetry.last(f"caller {caller}")
        await passes(3600)
        assert rig.samples == before


@pytest.mark.parametrize(
    ("gap", "gap_before", "agree"),
    [
        (15, 15, True),
        (15, 12, True),
        (12, 15, True),
        (15, 11.9, False),
        (11.9, 15, False),
        (0, 0, False),
        (0, 15, False),
        (3600, 3600, True),
        (43200, 43200, False),
    ],
)
def test_two_gaps_agree_within_20_percent_of_the_longer(gap: float, gap_before: float, agree: bool) -> None:
    assert (beat_of(gap, gap_before) is not None) is agree


def test_the_book_needs_three_requests_of_one_caller() -> None:
    book = BeatBook()
    found = []
    for now in (0.0, 15.0, 30.0, 45.0):
        found.append(book.note("a", now) is not None)
        assert book.note(f"other {now}", now + 1) is None
    assert found == [False, False, True, True]


@given(
    now=st.floats(0, 1e7),
    period=st.floats(0.01, 1e5),
    jitter=st.floats(0, 1),
    expected=st.floats(0, 20),
    allowed_in=st.floats(-1e4, 1e4),
)
def test_a_plan_never_starts_before_now_or_before_the_spacing_allows_and_meets_the_first_beat_it_can(
    now: float, period: float, jitter: float, expected: float, allowed_in: float
) -> None:
    beat = Beat(period, jitter * 0.2 * period)
    start_at, meets_at = aim(now, beat, expected, now + allowed_in)
    earliest = max(now, now + allowed_in + SPACING_SLACK_SECONDS)
    tolerance = 1e-6
    assert start_at >= earliest - tolerance
    assert meets_at - start_at >= expected
    beats = (meets_at - now) / period
    assert beats == pytest.approx(round(beats), abs=1e-3)
    # The beat before could not have been met.
    assert round(beats) == 1 or start_at - period < earliest + tolerance
