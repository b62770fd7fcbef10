"""The fleet in one line: how many guests are in which state, and what their cards do together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from guest_transport.http import formats
from vmm_proxy.fleet_metrics.last_known import LastKnown


@dataclass(frozen=True, slots=True)
class Summary:
    """Chips: what, how much, and its kind (good, bad or nothing) for the colour."""

    chips: tuple[tuple[str, str, str], ...]


def summary(guests: Iterable[LastKnown], entries: int, now: float) -> Summary:
    """The summary of the running `guests` of `entries` in the directory."""
    states: Counter[bool | None] = Counter()
    running = cards = power = utilization = measured = 0
    for known in guests:
        running += 1
        states[known.up] += 1
        gpus = known.gpus.shown(now)
        for device in gpus.gpus if gpus else ():
            cards += 1
            power += device.power_usage_mw
            if device.HasField("utilization_gpu"):
                measured += 1
                utilization += min(device.utilization_gpu, 100)
    chips = [
        ("Guests", str(entries), ""),
        ("up", str(states[True]), "true" if states[True] else ""),
        ("down", str(states[False]), "false" if states[False] else ""),
    ]
    if states[None]:
        chips.append(("waiting", str(states[None]), ""))
    if entries > running:
        chips.append(("stopped", str(entries - running), ""))
    chips.append(("GPUs", str(cards), ""))
    if measured:
        chips.append(("Utilization", f"{utilization / measured:.0f} %", ""))
        chips.append(("Power", formats.power(power), ""))
    return Summary(tuple(chips))
