"""A card's values as sample lines, by the rows of guest_contract.card_fields.

A row's number is a gauge or counter, scaled where the wire's unit is not Prometheus's, or a series of 0 and 1 for each of its words; a
row's text is a label of an info series. Written once for a page that is made line by line (write) and once for one whose forms are kept
(read): forms.py compares the two each time a form is learned, so they cannot drift apart unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from guest_api.guest_api_pb2 import GpuDevice
from guest_contract.card_row import FLAG, INFO, Field, Metric
from guest_contract.card_values import COLUMN_OF, Columns, judged_columns
from guest_metrics import table
from guest_metrics.exposition import LabelText, Lines, Number, NumberText, label_value
from guest_metrics.table import Family


class Series(NamedTuple):
    """Samples of one family from one row: what is added to a card's labels, and how the value becomes the number (None: as it is)."""

    family: Family
    field: str
    labels: str
    number: Callable[[int], Number] | None


class Info(NamedTuple):
    """The info series of a card: its fields in the order of its labels. There is a sample when one of the texts is known."""

    family: Family
    fields: tuple[str, ...]


def series_of(rows: Iterable[Field], families: Mapping[str, Family]) -> list[Series]:
    """The series of the rows' numbers, a family's together."""
    found: dict[str, list[Series]] = {}
    for row in rows:
        if row.metric is not None and row.metric.kind != INFO:
            found.setdefault(row.metric.name, []).extend(_series(row, row.metric, families[row.name]))
    return [each for family in found.values() for each in family]


def _series(row: Field, metric: Metric, family: Family) -> Iterable[Series]:
    added = "".join(f',{name}="{label_value(value)}"' for name, value in metric.labels)
    if not metric.each:
        yield Series(family, row.name, added, int if row.unit == FLAG else _scaled(metric.times, metric.per))
    else:
        for number, word in (row.names or {}).items():
            yield Series(family, row.name, f'{added},{metric.each}="{label_value(word)}"', partial(_is, number))
        for bit, word in (row.bits or {}).items():
            yield Series(family, row.name, f'{added},{metric.each}="{label_value(word)}"', partial(_has, bit))


def _is(number: int, value: int) -> int:
    return int(value == number)


def _has(bit: int, value: int) -> int:
    return int(value & bit != 0)


def _scaled(times: int, per: int) -> Callable[[int], Number] | None:
    """The number times `times` divided by `per`, a power of ten, with every digit; a flag as 0 or 1."""
    if per == 1:
        return None if times == 1 else lambda value: value * times
    digits = len(str(per)) - 1
    if times != 1 or per != 10**digits:
        raise ValueError(f"a metric is scaled by a whole number or divided by a power of ten, not by {times}/{per}")
    return lambda value: NumberText(f"{'-' if value < 0 else ''}{abs(value) // per}.{abs(value) % per:0{digits}d}")


def infos_of(rows: Iterable[Field], families: Mapping[str, Family]) -> list[Info]:
    """The info series that the rows' texts are labels of."""
    found: dict[Family, list[str]] = {}
    for row in rows:
        if row.metric is not None and row.metric.kind == INFO:
            found.setdefault(families[row.name], []).append(row.name)
    return [Info(family, tuple(fields)) for family, fields in found.items()]


class CardLines:
    """The lines of cards by the rows of a table; `column_of` says where in the columns a field is."""

    def __init__(self, rows: Sequence[Field], families: Mapping[str, Family], column_of: Mapping[str, int] = COLUMN_OF) -> None:
        self._series = [(*each, column_of[each.field]) for each in series_of(rows, families)]
        self._infos = [(info.family, [column_of[field] for field in info.fields]) for info in infos_of(rows, families)]

    def write(self, lines: Lines, cards: Mapping[LabelText, GpuDevice]) -> None:
        """The lines of these cards."""
        self.write_columns(lines, list(cards), judged_columns(list(cards.values())))

    def write_columns(self, lines: Lines, labels: Sequence[LabelText], columns: Columns) -> None:
        """The lines of cards with these labels and values."""
        for family, _, added, number, column in self._series:
            at = [LabelText(f"{each[:-1]}{added}}}") for each in labels] if added else labels
            lines.put_numbers(family, zip(at, _numbers(columns[column], number), strict=True))
        for family, fields in self._infos:
            names = family.labels[len(table.CARD_LABELS) :]
            for card, texts in zip(labels, zip(*(columns[field] for field in fields), strict=True), strict=True):
                if any(text is not None for text in texts):
                    words = ",".join(f'{name}="{label_value(text or "")}"' for name, text in zip(names, texts, strict=True))
                    lines.put(family, LabelText(f"{card[:-1]},{words}}}"), 1)

    def read(self, columns: Columns) -> tuple[tuple[object, ...], list[Number | None]]:
        """The texts that stand in labels, and the numbers, in the order of write()."""
        numbers: list[Number | None] = []
        for _, _, _, number, column in self._series:
            numbers += columns[column] if number is None else _numbers(columns[column], number)
        texts: list[object] = []
        for _, fields in self._infos:
            cards = list(zip(*(columns[field] for field in fields), strict=True))
            numbers += [1 if any(text is not None for text in of_card) else None for of_card in cards]
            texts += cards
        return tuple(texts), numbers


def _numbers(column: Sequence[Any], number: Callable[[int], Number] | None) -> Iterable[Number | None]:
    return column if number is None else [None if value is None else number(value) for value in column]
