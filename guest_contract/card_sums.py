"""Sums over many cards, for the fleet's page and `guestctl top`, that say of how many cards they are.

A card whose value is unknown is in no sum; a sum of some says "7 of 8", and a sum of nothing is a dash, because a zero would be a measured
one. A part is summed with its whole, over the cards that know both. One value's absence hides no other. Sums are added up guest by guest,
so that a fleet of 8000 cards costs what its guests cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from guest_api.guest_api_pb2 import GpuDevice
from guest_contract import card_fields, card_row, words
from guest_contract.card_fields import FIELDS
from guest_contract.card_row import Field
from guest_contract.card_values import COLUMN_OF, CardValues, judged_columns, once

# The rows that are summed; a whole is shown with its part.
SUMMED = tuple(row for row in card_fields.ROWS if row.sums and row.shown != card_row.WITHIN)
_NAMES = tuple([name for name in (row.name, row.of) if name] for row in SUMMED)


@dataclass(frozen=True, slots=True)
class Sum:
    """One sum in words: the number, and of how many cards it is where that is not all of them."""

    field: Field
    number: str
    of: str

    @property
    def title(self) -> str:
        """What the sum is called on pages."""
        return card_fields.page_title(self.field)

    def __str__(self) -> str:
        return f"{self.number} ({self.of})" if self.of else self.number


@dataclass(frozen=True, slots=True)
class CardSums:
    """How many cards there are, and for each of SUMMED how many know it and what it adds up to, its whole after it."""

    cards: int = 0
    known: tuple[tuple[int, ...], ...] = ((0, 0, 0),) * len(SUMMED)

    def said(self) -> list[Sum]:
        """The sums in words, in the rows' order."""
        return [self._said(field, *numbers) for field, numbers in zip(SUMMED, self.known, strict=True)]

    def _said(self, field: Field, count: int, total: int, whole: int) -> Sum:
        if not count:
            return Sum(field, words.UNKNOWN, "")
        if field.sums == card_row.MEAN:
            total, whole = round(total / count), round(whole / count)
        number = words.say(field, total)
        if field.of:
            number = words.part_of(number, words.say(FIELDS[field.of], whole))
        return Sum(field, number, "" if count == self.cards else f"{count} of {self.cards}")


NO_CARDS = CardSums()


def of_cards(devices: Sequence[GpuDevice]) -> CardSums:
    """The sums of one guest's cards, each judged; a repeated one counts once."""
    devices = once(devices)
    columns = judged_columns(devices)
    return _sums(len(devices), lambda name: columns[COLUMN_OF[name]])


def of_values(cards: Sequence[CardValues]) -> CardSums:
    """The same of cards that were judged already, each once: judging them again costs as much as all else that is done with an answer."""
    return _sums(len(cards), lambda name: [card.values[name] for card in cards])


def _sums(cards: int, column: Callable[[str], Iterable[Any]]) -> CardSums:
    known = []
    for names in _NAMES:
        both = [numbers for numbers in zip(*map(column, names), strict=True) if None not in numbers]
        totals = [sum(numbers) for numbers in zip(*both, strict=True)]
        known.append((len(both), *totals, *[0] * (2 - len(totals))))
    return CardSums(cards, tuple(known))


def together(sums: Iterable[CardSums]) -> CardSums:
    """The sums of many guests as one."""
    found = list(sums)
    if not found:
        return NO_CARDS
    known = (tuple(map(sum, zip(*of_row, strict=True))) for of_row in zip(*(each.known for each in found), strict=True))
    return CardSums(sum(each.cards for each in found), tuple(known))
