"""The last half hour of each card, for the small graphs: utilization, memory, temperature and power.

A slot holds the highest value of its 30 seconds, so that a burst is not averaged away; a slot in which nobody looked is empty, because
guests are not asked for the graph's sake. Two bytes a slot and value, so that 8000 cards take 8 MB. A card keeps its history by UUID and
PCI address, not by its index, which moves. Rejected: a time-series store (Prometheus is one).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guest_api.guest_api_pb2 import GpuDevice
from guest_contract import words
from guest_contract.card_values import COLUMN_OF, Columns, judged_columns
from guest_transport.process.clock import Clock

SLOT_SECONDS = 30
SLOTS = 60
# As many cards of one guest as the page shows; a hostile one lists a thousand.
CARDS_LIMIT = 64
# A UUID takes 40; what a guest makes longer is no reason to keep more.
_KEY_LIMIT = 64
_EMPTY = 0xFFFF


@dataclass(frozen=True, slots=True)
class Graphed:
    """A value that is remembered in whole `unit`s: its number divided by `per`, or its share of `of` in percent. `top`: what its graph
    reaches to; None for one whose highest value is not known beforehand."""

    name: str
    title: str
    unit: str
    top: int | None = None
    per: int = 1
    of: str = ""


# The first one stands on the fleet's page: it changes quickly, and its history is what one asks for.
GRAPHED = (
    Graphed("utilization_gpu", "Utilization", "%", 100),
    Graphed("memory_used_bytes", "Memory used", "%", 100, of="memory_total_bytes"),
    Graphed("temperature_c", "Temperature", "°C", 100),
    Graphed("power_usage_mw", "Power", "W", per=1000),
)


class _Series:
    """One card's slots of each value; the last one is `newest`, counted from the clock's zero."""

    __slots__ = ("newest", "values")

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.values = [array("H", [_EMPTY]) * SLOTS for _ in GRAPHED]

    def move_to(self, slot: int) -> None:
        passed = min(max(0, slot - self.newest), SLOTS)
        if passed:
            self.values = [slots[passed:] + array("H", [_EMPTY]) * passed for slots in self.values]
            self.newest = slot

    def put(self, values: Sequence[int | None]) -> None:
        for slots, value in zip(self.values, values, strict=True):
            if value is not None:
                slots[-1] = value if slots[-1] == _EMPTY else max(slots[-1], value)


class History:
    """The histories of all guests' cards."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._guests: dict[str, dict[str, _Series]] = {}

    def note(self, guest_id: str, cards: Sequence[GpuDevice]) -> None:
        """Take in what the guest just answered; cards that are not in it any more are forgotten."""
        slot = int(self.clock() // SLOT_SECONDS)
        before = self._guests.get(guest_id, {})
        after: dict[str, _Series] = {}
        for card, values in zip(cards, _numbers(judged_columns(cards)), strict=True):
            if len(after) >= CARDS_LIMIT:
                break
            key = card_key(card)
            series = after.setdefault(key, before.get(key) or _Series(slot))
            series.move_to(slot)
            series.put(values)
        self._guests[guest_id] = after

    def forget(self, guest_id: str) -> None:
        """Forget a guest that left."""
        self._guests.pop(guest_id, None)

    def of(self, guest_id: str, card: GpuDevice, name: str = GRAPHED[0].name) -> Sequence[int | None]:
        """The card's slots of one value, oldest first, the last one being now; empty for a card that is not known."""
        series = self._guests.get(guest_id, {}).get(card_key(card))
        if series is None:
            return ()
        series.move_to(int(self.clock() // SLOT_SECONDS))
        at = next(number for number, graphed in enumerate(GRAPHED) if graphed.name == name)
        return [None if value == _EMPTY else value for value in series.values[at]]


def _numbers(columns: Columns) -> Iterator[tuple[int | None, ...]]:
    """For each card its GRAPHED values as they are kept."""
    kept = []
    for graphed in GRAPHED:
        column = columns[COLUMN_OF[graphed.name]]
        if graphed.of:
            wholes = columns[COLUMN_OF[graphed.of]]
            kept.append(
                [
                    words.percent_of(part, whole) if part is not None and whole else None
                    for part, whole in zip(column, wholes, strict=True)
                ]
            )
        else:
            kept.append([None if value is None else min(value // graphed.per, _EMPTY - 1) for value in column])
    return zip(*kept, strict=True)


def card_key(card: GpuDevice) -> str:
    """What a card is known by."""
    name = f"{card.uuid[:_KEY_LIMIT]} {card.pci_bus_id[:_KEY_LIMIT]}"
    return name if len(name) > 1 else f"#{card.index}"
