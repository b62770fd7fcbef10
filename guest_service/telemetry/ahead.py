"""For a caller that comes at regular intervals: takes a sample just before its next request.

With lazy refreshing such a caller always sees the sample that its previous request began, one beat old (on an H200 in a TDX VM, scraped
every 20 s, samples were 14.4 s and 20.0 s old). Each request leads to at most one sample, behind its answer or ahead of the next beat,
never both: so samples cannot outnumber requests by more than the one taken at start, and they stop when the beat stops. Rejected: a
ticker at the detected period (it would need a second rule to stop).
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from guest_service.telemetry.beat import Beat, BeatBook
from guest_service.telemetry.cell import Cell
from guest_transport.process.clock import Clock

# How much earlier than "just in time" a sample starts: timers and processes on a busy machine are late by this much. A late sample is a
# whole beat old, an early one only this much.
SLACK_SECONDS = 0.02
# Scrapers keep their beat to about a percent.
SLACK_SHARE = 0.02
# A plan that would start a hair before the spacing allows would be lost; it is laid this much after it.
SPACING_SLACK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class _Plan:
    timer: asyncio.TimerHandle
    meets_at: float
    period_seconds: float


def aim(now: float, beat: Beat, expected_seconds: float, allowed_at: float) -> tuple[float, float]:
    """When to start the sample and the request it is to meet: the first coming beat that the spacing allows to be met."""
    lead = expected_seconds + SLACK_SECONDS + SLACK_SHARE * beat.period_seconds + beat.jitter_seconds / 2
    earliest = max(now, allowed_at + SPACING_SLACK_SECONDS)
    beats = max(1, math.ceil((earliest + lead - now) / beat.period_seconds))
    meets_at = now + beats * beat.period_seconds
    return meets_at - lead, meets_at


class Ahead:
    """One plan per caller with a beat: a timer that starts a sample for its next request."""

    def __init__(self, cell: Cell, clock: Clock) -> None:
        self._cell = cell
        self._clock = clock
        self._book = BeatBook()
        self._plans: dict[str, _Plan] = {}

    def note(self, caller: str, *, may_plan: bool = True) -> bool:
        """Remember a request of `caller`; True when its sample is planned, so that none is to be started behind its answer.

        With `may_plan` False the request is only remembered: it has led to a sample already.
        """
        now = self._clock()
        beat = self._book.note(caller, now)
        self._settle(caller, now)
        self._drop_forgotten()
        if beat is None or not may_plan:
            return False
        start_at, meets_at = aim(now, beat, self._cell.expected_seconds, self._cell.allowed_at)
        timer = asyncio.get_running_loop().call_later(max(0.0, start_at - now), self._start, caller)
        self._plans[caller] = _Plan(timer, meets_at, beat.period_seconds)
        return True

    def close(self) -> None:
        """Drop all plans."""
        for plan in self._plans.values():
            plan.timer.cancel()
        self._plans.clear()

    def _settle(self, caller: str, now: float) -> None:
        """End the caller's plan. If this request is the one it was to meet, and came early, its sample starts now instead of never."""
        plan = self._plans.pop(caller, None)
        if plan is not None:
            plan.timer.cancel()
            if plan.meets_at - now < plan.period_seconds / 2:
                self._cell.refresh()

    def _start(self, caller: str) -> None:
        """Start the planned sample; when another came in between, what is there is fresh, and the plan is dropped."""
        del self._plans[caller]
        self._cell.refresh()

    def _drop_forgotten(self) -> None:
        """A caller that the book has dropped has no plan either, so plans are bounded as it is."""
        for caller in [caller for caller in self._plans if caller not in self._book]:
            self._plans.pop(caller).timer.cancel()
