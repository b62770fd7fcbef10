"""What is different in a guest's new outcome, in words; silence when nothing is.

The ages of a sample and of an XID, and the moment of an answer, are no changes: they differ each time. A guest that is seen for the first
time is told in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from rich.text import Text

from guest_client.guestctl.output import card_cells
from guest_client.guestctl.output.card_cells import TEXT_CELLS, Card, cut, safe
from guest_client.guestctl.output.gpu_table import guest_facts
from guest_client.guestctl.output.statuses import in_words
from guest_contract import words
from guest_contract.card_row import Field
from guest_contract.words import UNKNOWN
from guest_fleet.v1 import fleet_pb2


def _cell(row: Field, card: Card) -> Text:
    return card.cell(row)


_READINGS: tuple[tuple[str, Callable[[Card], Text]], ...] = (
    *((row.said, partial(_cell, row)) for row in card_cells.SHOWN),
    ("health", lambda card: card_cells.level(card.verdict.level)),
    ("UUID", card_cells.uuid),
    ("PCI address", card_cells.pci_address),
)


class Changes:
    """The last outcome of each guest."""

    def __init__(self) -> None:
        self._last: dict[str, fleet_pb2.GuestGpuInfo] = {}

    def differs(self, outcome: fleet_pb2.GuestGpuInfo) -> bool:
        """Whether `outcome` says something new; it is the last one from now on."""
        last = self._last.get(outcome.guest_id)
        self._last[outcome.guest_id] = outcome
        return last is None or _lasting(last) != _lasting(outcome)

    def lines(self, outcome: fleet_pb2.GuestGpuInfo) -> list[Text]:
        """What is new in `outcome`, one line per guest and card; it is the last one from now on."""
        last = self._last.get(outcome.guest_id)
        self._last[outcome.guest_id] = outcome
        at = _time(outcome)
        return [Text(at, "dim").append(" ").append_text(line) for line in _lines(last, outcome)]


def _lasting(outcome: fleet_pb2.GuestGpuInfo) -> fleet_pb2.GuestGpuInfo:
    copy = fleet_pb2.GuestGpuInfo()
    copy.CopyFrom(outcome)
    copy.ClearField("received_at")
    copy.ClearField("took")
    if copy.WhichOneof("outcome") == "gpu_info":
        copy.gpu_info.ClearField("sample_age_ms")
        for xids in (copy.gpu_info.unplaced_xids, *(card.xids for card in copy.gpu_info.gpus)):
            for xid in xids:
                xid.ClearField("last_age_ms")
    return copy


def _time(outcome: fleet_pb2.GuestGpuInfo) -> str:
    moment = words.moment(outcome.received_at.seconds)
    return moment[-9:] if moment.endswith("Z") else moment or UNKNOWN


def _lines(last: fleet_pb2.GuestGpuInfo | None, outcome: fleet_pb2.GuestGpuInfo) -> Iterator[Text]:
    guest = outcome.guest_id
    said, failed = _of_guest(outcome)
    if last is None or _of_guest(last)[0] != said:
        yield safe(f"{guest}: ", "red" if failed else "").append_text(cut(said, TEXT_CELLS))
    before = _cards(last) if last is not None else {}
    now = _cards(outcome)
    for index, card in now.items():
        yield from _of_card(f"{guest} GPU {index}", before.get(index), card)
    if outcome.WhichOneof("outcome") == "gpu_info" and not outcome.gpu_info.error:
        for index in sorted(before.keys() - now.keys()):
            yield safe(f"{guest} GPU {index}: is no longer there", "red")


def _of_guest(outcome: fleet_pb2.GuestGpuInfo) -> tuple[str, bool]:
    if outcome.WhichOneof("outcome") == "gpu_info":
        given = outcome.gpus_given if outcome.HasField("gpus_given") else None
        return ", ".join(guest_facts(outcome.gpu_info, given)), bool(outcome.gpu_info.error)
    return in_words(outcome.status, outcome.guest_id), True


def _cards(outcome: fleet_pb2.GuestGpuInfo) -> dict[int, Card]:
    return {card.index: card for card in card_cells.read(outcome.gpu_info)}


def _of_card(name: str, before: Card | None, card: Card) -> Iterator[Text]:
    if before is None:
        facts = [*(text.plain for text in card_cells.names(card)), *card.in_words()]
    else:
        now = ((title, reading(before).plain, reading(card).plain) for title, reading in _READINGS)
        facts = [f"{title} {new} (was {old})" for title, old, new in now if new != old]
    if facts:
        # What the readings made safe stays as it is: their escapes are printable.
        yield safe(f"{name}: {', '.join(facts)}")
    if (sickness := card.sickness()) and (before is None or before.sickness() != sickness):
        yield safe(f"{name}: {sickness}", "red")
    known = set() if before is None else set(before.errors)
    for error in words.first_errors([error for error in card.errors if error not in known]):
        yield safe(f"{name}: ", "red").append_text(cut(error, TEXT_CELLS))
