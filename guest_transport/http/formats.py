"""How numbers stand on the page. Data keeps base units; this is the screen.

Fixed by what operators compare with other tools: sizes are 1024-based with two decimals, as the kernel counts memory.
"""

from __future__ import annotations

import re

from guest_transport.logs import escape

# What stands where a value is unknown: absent is not zero.
UNKNOWN = "\N{EN DASH}"
_UNITS = ("B", "KB", "MB", "GB", "TB", "PB", "EB")
# A name longer than this is cut on the page; the longest legitimate one is an image reference of 255 bytes with its digest.
TEXT_LIMIT = 400


def size(count: int) -> str:
    """`1023.00 B`, `1.00 KB`, … `16.00 EB`. The unit is chosen after rounding, so that 1024.00 of one is never shown."""
    value, unit = float(count), 0
    while unit < len(_UNITS) - 1 and round(value, 2) >= 1024:
        value, unit = value / 1024, unit + 1
    return f"{value:.2f} {_UNITS[unit]}"


def uptime(seconds: int) -> str:
    """`1d 1h 1m 1s`, without leading parts that are zero."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    parts = [(day, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{count}{unit}" for count, unit in parts)


def load(one: int, five: int, fifteen: int) -> str:
    """`1min: 0.40, 5min: 1.00, 15min: 12.34` from hundredths."""
    words = (f"{span}min: {value // 100}.{value % 100:02d}" for span, value in ((1, one), (5, five), (15, fifteen)))
    return ", ".join(words)


def power(milliwatts: int) -> str:
    """`70.1 W`."""
    return f"{milliwatts / 1000:.1f} W"


def age(milliseconds: int) -> str:
    """`60.0 s`."""
    return f"{milliseconds / 1000:.1f} s"


def pci(address: str) -> str:
    """The address without its domain when that is zero: `01:00.0`, but `00010000:02:00.0`."""
    short = re.fullmatch(r"0+:([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])", address)
    return short[1] if short else text(address)


def state(value: bool | None) -> str:
    """Three answers: true, false, unknown."""
    return "unknown" if value is None else "true" if value else "false"


def text(words: str) -> str:
    """A driver's or container's own words, cut to a bound, on one line: control characters and direction marks stand as escapes."""
    return escape(words if len(words) <= TEXT_LIMIT else words[:TEXT_LIMIT] + "…")


def percent_of(part: int, whole: int) -> int:
    """How full a bar is, 0 to 100."""
    return 0 if whole <= 0 else min(100, max(0, round(100 * part / whole)))
