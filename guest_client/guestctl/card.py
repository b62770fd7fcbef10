"""`guestctl card`: everything that is known of one card, which is named by its index, its UUID or its PCI address.

One card, and not several: whoever asks for so much has found the card by `health`, `top` or an alert.
"""

from __future__ import annotations

from rich.console import Group

from guest_api import guest_api_pb2
from guest_client.guestctl.output import card_cells, card_view, csv_view, json_view, tables
from guest_client.guestctl.output.card_cells import Card
from guest_client.guestctl.output.card_view import WholeCard
from guest_client.guestctl.request import Output, Question

# More names than that help nobody to find the one that was meant.
_NAMED_LIMIT = 16
# A guest that is asked directly may send four megabytes, and this is one line.
_REASON_LIMIT_CHARACTERS = 400


class NoSuchCardError(Exception):
    """The guest answers and has no such card; the message says which cards it has."""


class CardsUnknownError(Exception):
    """The guest answers that it does not know its cards; the message says why."""


def text(question: Question, answer: guest_api_pb2.GpuInfoResponse) -> str:
    """The card that the question names, as it is to be shown; raises NoSuchCardError, CardsUnknownError."""
    guest = question.vm_id or "guest"
    found = WholeCard(guest, answer, _find(question.card, guest, answer))
    match question.output:
        case Output.JSON:
            return json_view.to_text(card_view.as_json(found))
        case Output.CSV:
            return csv_view.to_text([card_view.CSV_COLUMNS, *card_view.as_rows(found)])
    return tables.render(Group(*card_view.lines(found)))


def _find(name: str, guest: str, answer: guest_api_pb2.GpuInfoResponse) -> Card:
    if answer.error:
        raise CardsUnknownError(f"{guest}: GPUs unknown: {answer.error[:_REASON_LIMIT_CHARACTERS]}")
    cards = card_cells.read(answer)
    for card in cards:
        # Drivers and tools differ in the case of hexadecimal digits.
        if name == str(card.index) or name.lower() in {card.message.uuid.lower(), card.message.pci_bus_id.lower()} - {""}:
            return card
    if not cards:
        raise NoSuchCardError(f"{guest} has no NVIDIA GPU")
    known = ", ".join(str(card.index) for card in cards[:_NAMED_LIMIT])
    more = f" and {len(cards) - _NAMED_LIMIT} more" if len(cards) > _NAMED_LIMIT else ""
    raise NoSuchCardError(f"{guest} has no card {name}: its cards are {known}{more} (`guestctl gpu` shows their UUIDs)")
