"""A limit of events a minute. The events beyond it are only counted, so that a caller who is refused in a loop does not fill the disk."""

from __future__ import annotations

from collections.abc import Callable

# Enough to see what somebody tries; 60 lines of 300 bytes a minute are 25 MB a day.
EVENTS_PER_MINUTE = 60
_WINDOW_SECONDS = 60.0


class RateLimit:
    """Counts events by `clock` (monotonic seconds)."""

    def __init__(self, clock: Callable[[], float], limit: int = EVENTS_PER_MINUTE) -> None:
        self._clock = clock
        self._limit = limit
        self._began = float("-inf")
        self._passed = 0
        self._left_out = 0

    def take(self) -> int | None:
        """How many were left out since the last one that passed; None when this one is left out as well."""
        now = self._clock()
        if now - self._began >= _WINDOW_SECONDS:
            self._began, self._passed = now, 0
        if self._passed >= self._limit:
            self._left_out += 1
            return None
        self._passed += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
