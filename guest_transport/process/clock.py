"""The clock that ages are counted by: it also runs while the machine is suspended, and never jumps.

It refuses to tell the time of day: ages need none. Rejected: CLOCK_MONOTONIC, which stands still during suspend, so that a sample from
before it would look fresh; and the wall clock, which an operator or NTP may set.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Seconds since an arbitrary moment; never goes back.
Clock = Callable[[], float]


def boottime() -> float:
    """Seconds since boot, time asleep included (clock_gettime(2), CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
