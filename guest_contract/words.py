"""Numbers as people read them, the same on pages, in guestctl and in remarks. Data keeps base units; this is the screen.

Fixed by what operators compare with other tools: sizes are 1024-based with two decimals, as the kernel counts memory. What is unknown is a
dash and never a zero. It refuses to make text of a guest safe: a page and a terminal need different escapes. Rejected: one set of forms for
pages and one for guestctl (they said "1.00 MB" and "1024.00 KB" of the same number).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from guest_contract import card_row
from guest_contract.card_row import Field, Value

# In place of an unknown value: absent is not zero.
UNKNOWN = "\N{EN DASH}"
# Why values of one card are unknown: seven of them are read, and a guest may send thousands.
ERRORS_SHOWN = 7
_SIZES = ("B", "KB", "MB", "GB", "TB", "PB", "EB")


def first_errors(errors: Sequence[str]) -> list[str]:
    """The first ERRORS_SHOWN of `errors`, and how many more there are."""
    more = len(errors) - ERRORS_SHOWN
    return [*errors[:ERRORS_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def size(count: float | None) -> str:
    """`1023.00 B`, `1.00 KB`, … `16.00 EB`, or a dash. The unit is chosen after rounding, so that 1024.00 of one is never shown."""
    if count is None:
        return UNKNOWN
    amount, unit = float(count), 0
    while unit < len(_SIZES) - 1 and round(amount, 2) >= 1024:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.2f} {_SIZES[unit]}"


def duration(seconds: int) -> str:
    """Whole seconds: `1d 1h 1m 1s`, without leading parts that are zero."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    parts = [(days, "d"), (hour, "h"), (minute, "m"), (second, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{number}{unit}" for number, unit in parts)


def age(milliseconds: int) -> str:
    """`60.0 s`."""
    return f"{milliseconds / 1000:.1f} s"


def watts(milliwatts: int) -> str:
    """`70.1 W`."""
    return f"{milliwatts / 1000:.1f} W"


def load(one: int, five: int, fifteen: int) -> str:
    """`1min: 0.40, 5min: 1.00, 15min: 12.34` from hundredths."""
    spans = (("1min", one), ("5min", five), ("15min", fifteen))
    return ", ".join(f"{span}: {value // 100}.{value % 100:02d}" for span, value in spans)


def cpu_time(seconds: Mapping[str, float]) -> str:
    """`12 % busy: user 1h 2m, system 3m`: the modes in which processors worked, longest first; a dash where nothing is known."""
    whole = sum(seconds.values())
    if not whole:
        return UNKNOWN
    busy = {mode: spent for mode, spent in seconds.items() if mode not in ("idle", "iowait") and spent >= 1}
    longest = sorted(busy, key=lambda mode: -busy[mode])
    share = f"{100 * sum(busy.values()) / whole:.0f} % busy"
    return f"{share}: {', '.join(f'{mode} {duration(int(busy[mode]))}' for mode in longest)}" if longest else share


def traffic(received: int, sent: int, receive_errors: int, send_errors: int) -> str:
    """`1.00 MB in, 2.00 KB out`, and errors where there are any."""
    said = f"{size(received)} in, {size(sent)} out"
    return f"{said}, {receive_errors} errors in, {send_errors} out" if receive_errors or send_errors else said


def yes_no(value: bool | None) -> str:
    """Three answers: `true`, `false`, `unknown`."""
    return "unknown" if value is None else str(bool(value)).lower()


def moment(unix_seconds: int) -> str:
    """`2026-11-30 12:00:00Z`; empty for 0, which means unknown."""
    try:
        return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if unix_seconds else ""
    except (ValueError, OverflowError, OSError):
        return f"{unix_seconds} s after 1970"  # a guest may send any 64-bit number


def cards_missing(seen: int, on_bus: int | None, given: int | None = None) -> str:
    """The remark for a driver that shows fewer cards than the bus has, or than the host gave to the guest; empty without a difference.

    None: not known. `4 given by the host, 3 on the PCI bus, 3 seen by the driver`.
    """
    lacks_given = given is not None and seen < given
    lacks_on_bus = on_bus is not None and seen < on_bus
    parts = (
        (lacks_given, given, "given by the host"),
        (on_bus is not None and (lacks_given or lacks_on_bus), on_bus, "on the PCI bus"),
        (lacks_given or lacks_on_bus, seen, "seen by the driver"),
    )
    return ", ".join(f"{count} {where}" for said, count, where in parts if said)


_UNITS: Mapping[str, Callable[[int], str]] = {
    card_row.PERCENT: lambda value: f"{value} %",
    card_row.BYTES: size,
    card_row.CELSIUS: lambda value: f"{value} °C",
    card_row.MILLIWATTS: watts,
    card_row.MEGAHERTZ: lambda value: f"{value} MHz",
    card_row.MILLIJOULES: lambda value: f"{value / 1000:.1f} J",
    card_row.NANOSECONDS: lambda value: f"{value / 1e9:.1f} s",
    card_row.BYTES_PER_SECOND: lambda value: f"{size(value)}/s",
    card_row.COUNT: str,
    card_row.FLAG: lambda value: yes_no(bool(value)),
}


def say(field: Field, value: Value) -> str:
    """A card's value in words; a dash when it is unknown. A text is as it came, not escaped."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str):
        return value or UNKNOWN
    if field.names is not None:
        return field.names.get(value, str(value))
    if field.bits is not None:
        return ", ".join(word for bit, word in field.bits.items() if value & bit) or "none"
    return _UNITS[field.unit](value)


def part_of(part: str, whole: str) -> str:
    """Two values in words as one: `1.00 GB / 140.40 GB`, with a dash for the one that is unknown, and one dash when both are."""
    return UNKNOWN if part == whole == UNKNOWN else f"{part} / {whole}"


def percent_of(part: int, whole: int) -> int:
    """How full a bar is, 0 to 100."""
    return 0 if whole <= 0 else min(100, max(0, round(100 * part / whole)))
