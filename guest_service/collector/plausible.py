"""Judges what the driver answered: a value outside what is physically possible is refused, and why is said.

Refused values become None; nothing is clamped or mended, because a driver that answers nonsense for one value is no source for a guess.
Each function returns the values that stand, with one reason for all that were refused ("" when none was).
"""

from __future__ import annotations

PERCENT_LIMIT = 100
# Half a million times a card of today fits; sentinels (0xFFFF…) do not.
MEMORY_LIMIT_BYTES = 1 << 56
# A GPU shuts itself off near 110 degrees; the margin is for future parts, the 32-bit sentinels are far above.
TEMPERATURE_LIMIT_C = 200
# From the design: no board takes 5 kW, and none takes ten times the limit that it enforces.
POWER_LIMIT_MW = 5_000_000
POWER_LIMIT_FACTOR = 10


def judge_utilization(gpu: int, memory: int) -> tuple[int | None, int | None, str]:
    """Percentages over 100 are refused, each for itself."""
    refused = [f"{name} {value} % is over 100" for name, value in (("gpu", gpu), ("memory", memory)) if value > PERCENT_LIMIT]
    return (gpu if gpu <= PERCENT_LIMIT else None), (memory if memory <= PERCENT_LIMIT else None), ", ".join(refused)


def judge_memory(total: int, used: int, free: int) -> tuple[int | None, int | None, int | None, str]:
    """Without a possible total nothing stands; used and free may not exceed it."""
    if not 0 < total <= MEMORY_LIMIT_BYTES:
        return None, None, None, f"total of {total} bytes is impossible"
    refused = [f"{name} {value} bytes is over the total" for name, value in (("used", used), ("free", free)) if value > total]
    return total, (used if used <= total else None), (free if free <= total else None), ", ".join(refused)


def judge_temperature(celsius: int) -> tuple[int | None, str]:
    """Below zero or over 200 degrees is refused."""
    if 0 <= celsius <= TEMPERATURE_LIMIT_C:
        return celsius, ""
    return None, f"{celsius} degrees Celsius is impossible"


def judge_power(milliwatts: int, limit_mw: int | None) -> tuple[int | None, str]:
    """Over 5 kW, or over ten times the enforced limit where that is known (a limit that is itself impossible is not)."""
    if milliwatts > POWER_LIMIT_MW:
        return None, f"{milliwatts} mW is over 5 kW"
    if limit_mw is not None and 0 < limit_mw <= POWER_LIMIT_MW and milliwatts > POWER_LIMIT_FACTOR * limit_mw:
        return None, f"{milliwatts} mW is over 10 times the limit of {limit_mw} mW"
    return milliwatts, ""
