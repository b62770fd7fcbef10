"""The fleet in one line: how many guests are in which state, and what their cards do together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from guest_contract.card_sums import CardSums, together
from vmm_proxy.metrics.last_answers import LastKnown


@dataclass(frozen=True, slots=True)
class Summary:
    """Chips: what, how much, and its kind (good, bad or nothing) for the colour."""

    chips: tuple[tuple[str, str, str], ...]


def summary(guests: Iterable[LastKnown], entries: int, now: float) -> Summary:
    """The summary of the running `guests` of `entries` in the directory."""
    states: Counter[bool | None] = Counter()
    running = 0
    of_guests: list[CardSums] = []
    for known in guests:
        running += 1
        states[known.up] += 1
        of_guests.append(known.card_sums(now))
    sums = together(of_guests)
    chips = [
        ("Guests", str(entries), ""),
        ("up", str(states[True]), "true" if states[True] else ""),
        ("down", str(states[False]), "false" if states[False] else ""),
    ]
    if states[None]:
        chips.append(("waiting", str(states[None]), ""))
    if entries > running:
        chips.append(("stopped", str(entries - running), ""))
    chips.append(("GPUs", str(sums.cards), ""))
    if sums.cards:
        chips += [(each.title, str(each), "") for each in sums.said()]
    return Summary(tuple(chips))
