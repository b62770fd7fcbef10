"""Finds out whether a caller comes at regular intervals, from the times of its last three requests.

Pure arithmetic on times that are passed in: it knows neither samples nor timers. Rejected: a configured scrape interval (nobody keeps it
equal to the scraper's) and longer statistics (three requests of a 60 s scrape already take two minutes).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

# Two gaps agree when they differ by at most this share of the longer one.
AGREEMENT = 0.2

# An hourly cron job is worth a plan. A person who looks twice a day is not, and a plan must not outlive the memory of its caller.
LONGEST_BEAT_SECONDS = 2 * 3600.0

# Callers that are remembered, the least recently seen is dropped: a host, a few scrapers and some dashboards, not a crowd.
REMEMBERED_CALLERS = 32


@dataclass(frozen=True, slots=True)
class Beat:
    """A caller's beat: the mean of its last two gaps, and how far they were apart."""

    period_seconds: float
    jitter_seconds: float


def beat_of(gap: float, gap_before: float) -> Beat | None:
    """The beat that two gaps make, None when they do not agree or are too long for one."""
    longer, apart = max(gap, gap_before), abs(gap - gap_before)
    if not 0 < longer <= LONGEST_BEAT_SECONDS or apart > AGREEMENT * longer:
        return None
    return Beat((gap + gap_before) / 2, apart)


class BeatBook:
    """The last requests of each of the REMEMBERED_CALLERS that came last."""

    def __init__(self) -> None:
        # Per caller: the time of its last request, and the gap before it.
        self._seen: OrderedDict[str, tuple[float, float | None]] = OrderedDict()

    def note(self, caller: str, now: float) -> Beat | None:
        """Remember a request of `caller` at `now`; its beat, when the last two gaps make one."""
        last, gap_before = self._seen.pop(caller, (None, None))
        gap = None if last is None else now - last
        self._seen[caller] = (now, gap)
        if len(self._seen) > REMEMBERED_CALLERS:
            self._seen.popitem(last=False)
        return None if gap is None or gap_before is None else beat_of(gap, gap_before)

    def __contains__(self, caller: object) -> bool:
        return caller in self._seen

    def __len__(self) -> int:
        return len(self._seen)
