"""Holds the last outcome with its age, and takes the next one: one at a time, and never too soon after the last.

An outcome is kept until the next one replaces it, however old: an old sample with its age is worth more than none. The spacing is a promise
to the driver, not to callers, so no caller can shorten it: a caller that wants something newer waits. Rejected: a permanent ticker (about
2 % of a core on every GPU guest, watched or not) and expiry (a slow driver would turn into an outage of all its readers).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable

from guest_service.sampler import Outcome, OutcomeKind
from guest_service.sampler.outcome import failure
from guest_transport.process.clock import Clock

log = logging.getLogger(__name__)

# A sample of one H200 takes 0.1 s; while none was taken yet, the next is expected to take this long.
EXPECTED_SECONDS = 0.2
# The longest of this many counts as what the next will take: one slow start must not make every later sample too early.
REMEMBERED_DURATIONS = 3
# Shortest timer: a timer and the clock of ages may differ by less than a tick, and the loop must not spin on that.
SHORTEST_WAIT_SECONDS = 0.001


class Cell:
    """The last outcome. The next sample may start `ttl_seconds` after the end of a sample, `backoff_seconds` after one that failed or hung.

    `take` takes one sample; `on_outcome` is called with each outcome.
    """

    def __init__(
        self,
        take: Callable[[], Awaitable[Outcome]],
        *,
        ttl_seconds: float,
        backoff_seconds: float,
        clock: Clock,
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        self._take = take
        self._ttl_seconds = ttl_seconds
        self._backoff_seconds = backoff_seconds
        self._clock = clock
        self._on_outcome = on_outcome
        self._refresh: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._count = 0
        self._closed = False
        self._forgotten = False
        self._durations: deque[float] = deque(maxlen=REMEMBERED_DURATIONS)
        self._finished_at = -math.inf
        self._allowed_at = -math.inf
        self.outcome: Outcome | None = None

    @property
    def age_seconds(self) -> float:
        """Age of the outcome, counted from the last value of its sample: NVML is read at the end, after 90 % went into nvmlInit."""
        read_before = 0.0 if self.outcome is None else self.outcome.read_seconds_ago
        return max(0.0, self._clock() - self._finished_at + read_before)

    @property
    def refreshing(self) -> bool:
        """Whether a sample is being taken."""
        return self._refresh is not None

    @property
    def allowed_at(self) -> float:
        """When, by the clock, the next sample may start at the earliest; while one is being taken, an estimate."""
        if self.refreshing:
            return self._clock() + self.expected_seconds + self._ttl_seconds
        return self._allowed_at

    @property
    def expected_seconds(self) -> float:
        """What the next sample will probably take."""
        return max(self._durations, default=EXPECTED_SECONDS)

    def refresh(self) -> bool:
        """Start taking a sample behind the caller's back; False when one is being taken, or it would be too soon."""
        if self._closed or self.refreshing or self._clock() < self._allowed_at:
            return False
        self._refresh = asyncio.get_running_loop().create_task(self._run(), name="gpu sample")
        return True

    def renewable_before(self, until: float) -> bool:
        """Whether a new outcome may come before `until`, a time of the clock."""
        return not self._closed and (self.refreshing or self._allowed_at < until)

    async def renewed(self, until: float) -> bool:
        """Wait for an outcome that comes after this call, starting the sample as soon as it is allowed; False at `until`.

        Any number may wait; they share one sample, and none of them ends it by being cancelled.
        """
        count = self._count
        while self._count == count:
            self.refresh()
            now = self._clock()
            if self._closed or now >= until:
                return False
            wake = until if self.refreshing else min(until, self._allowed_at)
            changed = self._changed
            try:
                async with asyncio.timeout(max(wake - now, SHORTEST_WAIT_SECONDS)):
                    await changed.wait()
            except TimeoutError:
                continue
        return True

    def forget(self) -> None:
        """Drop the outcome, and that of a sample being taken: what they tell of is gone (the driver was unloaded).

        A back-off goes with it, the spacing stays.
        """
        self.outcome = None
        self._forgotten = self.refreshing
        self._allowed_at = self._finished_at + self._ttl_seconds

    async def close(self) -> None:
        """Take no more samples; callers that wait get an error, and a sample in progress is given up."""
        self._closed = True
        self._tell()
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.wait({self._refresh})

    async def _run(self) -> None:
        try:
            try:
                outcome = await self._take()
            except Exception:
                log.exception("taking a GPU sample failed for a reason that no one foresaw")
                outcome = failure(OutcomeKind.CRASH, "internal error while taking a GPU sample; the agent's log has it")
            self._keep(outcome)
        finally:
            self._refresh = None
            self._tell()

    def _keep(self, outcome: Outcome) -> None:
        self._finished_at = self._clock()
        backing_off = outcome.backs_off and not self._forgotten
        self._allowed_at = self._finished_at + (self._backoff_seconds if backing_off else self._ttl_seconds)
        if not outcome.backs_off:
            self._durations.append(outcome.took_seconds)
        self.outcome = None if self._forgotten else outcome
        self._forgotten = False
        self._count += 1
        self._on_outcome(outcome)

    def _tell(self) -> None:
        """Wake all who wait now; those who come later wait for the next event."""
        self._changed.set()
        self._changed = asyncio.Event()
