"""The wall clock: sane, and kept by somebody?

Ages do not depend on it (they are measured by CLOCK_BOOTTIME), but certificates, log lines and whoever compares two machines do. What the
kernel knows is whether somebody steers it (adjtimex(2), read only); chrony, ntpd and systemd-timesyncd all tell it.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import time
from collections.abc import Sequence
from dataclasses import dataclass

from guest_transport.doctor.findings import Finding, note, ok, wrong

# The year this was written: a clock before it has lost its battery. 2100: one that counts milliseconds as seconds.
EARLIEST, LATEST = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
# linux/timex.h.
_STA_UNSYNC = 0x0040


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Epoch seconds of CLOCK_REALTIME, and whether the kernel's clock is synchronised; None where it does not say."""

    realtime_seconds: float
    synchronised: bool | None


class _Timex(ctypes.Structure):
    """`struct timex` up to `status`, and room for the rest (adjtimex(2); 208 bytes on 64-bit)."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 64),
    ]


def read_clock() -> ClockReading:
    """The clock now. `modes` is 0: nothing is set."""
    timex = _Timex()
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        state = -1
    return ClockReading(time.time(), None if state < 0 else not timex.status & _STA_UNSYNC)


def judge_clock(reading: ClockReading) -> list[Finding]:
    """Sane, and synchronised."""
    try:
        now = dt.datetime.fromtimestamp(reading.realtime_seconds, dt.UTC)
    except (OverflowError, ValueError, OSError):
        now = LATEST
    shown = now.strftime("%Y-%m-%d %H:%M:%S UTC")
    if not EARLIEST <= now < LATEST:
        return [wrong(f"the wall clock says {shown}", "set it (timedatectl set-time, or chronyd); certificates are judged by it")]
    match reading.synchronised:
        case True:
            return [ok(f"{shown}, synchronised")]
        case False:
            return [
                note(
                    f"{shown}, and nobody keeps it synchronised",
                    "run chrony or systemd-timesyncd; ages of samples do not need it",
                )
            ]
    return [note(f"{shown}; the kernel does not say whether it is synchronised")]


async def examine_clock(_machine: object) -> Sequence[Finding]:
    """The clock of any machine."""
    return judge_clock(read_clock())
