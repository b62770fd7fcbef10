"""Judges growth: by its slope over many measurements, so that neither one high reading nor one low one decides.

Theil-Sen: the median of the slopes between all pairs of measurements. Up to 29 % of them may be anything (a garbage collection that is
due, a sample in flight) without moving it. Rejected: the last number less the first, and least squares (one outlier at an end tilts both).
It only calculates.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Pairs grow with the square of the measurements: of so many at most, evenly chosen, there are 20,000.
MEASUREMENTS_LIMIT = 200
# Fewer measurements say nothing of a slope.
LEAST_MEASUREMENTS = 5


@dataclass(frozen=True, slots=True)
class Bound:
    """How much something may grow: `once` however long it was watched, and `per_minute` of the watch besides."""

    once: float
    per_minute: float

    def over(self, seconds: float) -> float:
        """What it may have grown in so many seconds."""
        return self.once + self.per_minute * seconds / 60


def growth(measured: Sequence[tuple[float, float]]) -> float:
    """By how much the values grew from the first time to the last, as the slope says; `measured` are times and values in order."""
    if len(measured) < LEAST_MEASUREMENTS:
        return 0.0
    step = -(-len(measured) // MEASUREMENTS_LIMIT)
    chosen = measured[::step]
    slopes = [
        (later_value - value) / (later - time)
        for place, (time, value) in enumerate(chosen)
        for later, later_value in chosen[place + 1 :]
        if later > time
    ]
    return statistics.median(slopes) * (measured[-1][0] - measured[0][0]) if slopes else 0.0
