"""The last half hour of each card's utilization, for the small graph beside it.

A slot holds the highest value of its 30 seconds, so that a burst is not averaged away; a slot in which nobody looked is empty, because
guests are not asked for the graph's sake. One byte a slot, so that 8000 cards take 2 MB. A card keeps its history by UUID and PCI address,
not by its index, which moves. Rejected: a time-series store (Prometheus is one).
"""

from __future__ import annotations

from collections.abc import Sequence

from guest_api.guest_api_pb2 import GpuDevice
from guest_contract.card_values import COLUMN_OF, judged_columns
from guest_transport.process.clock import Clock

SLOT_SECONDS = 30
SLOTS = 60
# As many cards of one guest as the page shows; a hostile one lists a thousand.
CARDS_LIMIT = 64
# A UUID takes 40; what a guest makes longer is no reason to keep more.
_KEY_LIMIT = 64
_EMPTY = 255
# The value that is remembered: it changes quickly, and its history is what one asks for.
GRAPHED = "utilization_gpu"
_GRAPHED = COLUMN_OF[GRAPHED]


class _Series:
    """One card's slots; the last one is `newest`, counted from the clock's zero."""

    __slots__ = ("newest", "slots")

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.slots = bytearray([_EMPTY]) * SLOTS

    def move_to(self, slot: int) -> None:
        passed = min(max(0, slot - self.newest), SLOTS)
        if passed:
            self.slots = self.slots[passed:] + bytearray([_EMPTY]) * passed
            self.newest = slot

    def put(self, value: int) -> None:
        last = self.slots[-1]
        self.slots[-1] = value if last == _EMPTY else max(last, value)


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
        for card, value in zip(cards, judged_columns(cards)[_GRAPHED], strict=True):
            if len(after) >= CARDS_LIMIT:
                break
            key = card_key(card)
            series = after.setdefault(key, before.get(key) or _Series(slot))
            series.move_to(slot)
            if value is not None:
                series.put(value)
        self._guests[guest_id] = after

    def forget(self, guest_id: str) -> None:
        """Forget a guest that left."""
        self._guests.pop(guest_id, None)

    def of(self, guest_id: str, card: GpuDevice) -> Sequence[int | None]:
        """The card's slots, oldest first, the last one being now; empty for a card that is not known."""
        series = self._guests.get(guest_id, {}).get(card_key(card))
        if series is None:
            return ()
        series.move_to(int(self.clock() // SLOT_SECONDS))
        return [None if value == _EMPTY else value for value in series.slots]


def card_key(card: GpuDevice) -> str:
    """What a card is known by."""
    name = f"{card.uuid[:_KEY_LIMIT]} {card.pci_bus_id[:_KEY_LIMIT]}"
    return name if len(name) > 1 else f"#{card.index}"
