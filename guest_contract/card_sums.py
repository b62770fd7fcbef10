"""Sums over many cards, for the fleet's page and `guestctl top`, that say of how many cards they are.

A card whose value is unknown is in no sum; a sum of some says "7 of 8", and a sum of nothing is a dash, because a zero would be a measured
one. A value that is part of a whole is summed with it, over the cards that know both. One value's absence hides no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from guest_contract import card_fields, words
from guest_contract.card_fields import FIELDS, Field
from guest_contract.card_values import CardValues

# Rows that are summed; a whole is said with its part.
SUMMED = tuple(row for row in card_fields.ROWS if row.sums and row.shown != card_fields.WITHIN)


class Sum(NamedTuple):
    """One sum: `words` has the number alone, `of` how many cards it is of, empty when it is of all."""

    field: Field
    words: str
    of: str

    @property
    def title(self) -> str:
        """The field's, or its whole's."""
        return FIELDS[self.field.of].title if self.field.of else self.field.title

    def __str__(self) -> str:
        return f"{self.words} ({self.of})" if self.of else self.words


def sums(cards: Iterable[CardValues]) -> list[Sum]:
    """A sum for each row that is summed; none at all without cards."""
    found = list(cards)
    return [_sum(field, found) for field in SUMMED] if found else []


def _sum(field: Field, cards: list[CardValues]) -> Sum:
    names = (field.name, field.of) if field.of else (field.name,)
    known = [numbers for card in cards if None not in (numbers := tuple(card.number(name) for name in names))]
    if not known:
        return Sum(field, words.UNKNOWN, "")
    totals = [sum(number or 0 for number in column) for column in zip(*known, strict=True)]
    if field.sums == card_fields.MEAN:
        totals = [round(total / len(known)) for total in totals]
    said = " / ".join(words.say(FIELDS[name], total) for name, total in zip(names, totals, strict=True))
    return Sum(field, said, "" if len(known) == len(cards) else f"{len(known)} of {len(cards)}")
