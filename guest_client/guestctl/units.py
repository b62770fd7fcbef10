"""Numbers in base units as people read them; absent is a dash, never a zero.

The same forms as on the dashboard: sizes by 1024 with two decimals, power in watts, ages in seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime

ABSENT = "–"  # noqa: RUF001 - an en dash, as on the dashboard: a hyphen reads like a minus
_SIZES = ("B", "KB", "MB", "GB", "TB", "PB")


def size(count: int) -> str:
    """Bytes: `1023.00 B`, `1.00 KB`, `140.40 GB`."""
    amount = float(count)
    for unit in _SIZES[:-1]:
        if amount < 1024:
            return f"{amount:.2f} {unit}"
        amount /= 1024
    return f"{amount:.2f} {_SIZES[-1]}"


def duration(seconds: int) -> str:
    """Whole seconds: `1d 1h 1m 1s`."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{number}{unit}" for number, unit in parts)


def load(hundredths: int) -> str:
    """A load average that comes multiplied by 100: `12.34`."""
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def power(milliwatts: int) -> str:
    """`70.1 W`."""
    return f"{milliwatts / 1000:.1f} W"


def age(milliseconds: int) -> str:
    """`60.0 s`."""
    return f"{milliseconds / 1000:.1f} s"


def yes_no(value: bool | None) -> str:
    """`true`, `false`, or `unknown` when it is unset."""
    return "unknown" if value is None else str(value).lower()


def moment(unix_seconds: int) -> str:
    """`2026-11-30 12:00:00Z`; empty for 0, which nobody means."""
    try:
        return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if unix_seconds else ""
    except (ValueError, OverflowError, OSError):
        return f"{unix_seconds} s after 1970"  # a guest may send any 64-bit number
