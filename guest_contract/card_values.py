"""A card's message as values that were judged: None for what is unset, and for what is impossible.

A guest is the author of each number. The message passes through the product untouched; whoever shows, sums, sorts, graphs or exports a
number takes it from here, so that an impossible one is unknown everywhere. Rejected: judging where the proxy receives (the message would
no longer be the guest's, and an answer that a client gets without a proxy would be judged by nobody).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse, MigInstance
from guest_contract import card_fields, card_judging, card_row, words
from guest_contract.card_fields import CHECKS, FIELDS, IDENTITY, ROWS
from guest_contract.card_row import TEXT_VALUE, AtMost, Field, Value

# For each row, and after them for each of BESIDE, every card's value.
Columns: TypeAlias = Sequence[Sequence[Any]]  # Any: numbers and texts; which of them, the row says

# More cards than any machine has, as in the collector.
CARDS_LIMIT = 1024
_NAMES = tuple(FIELDS)
_VALUES = operator.attrgetter(*_NAMES)


class CardValues(NamedTuple):
    """The values by field's name, every row's, and why some were refused, in the form of the message's own `errors`."""

    values: Mapping[str, Value]
    refused: tuple[str, ...]

    def number(self, name: str) -> int | None:
        """The value of a field that is a number."""
        value = self.values[name]
        return value if isinstance(value, int) else None

    def fill(self, field: Field) -> int | None:
        """How full the bar of `field` is, 0 to 100: the value itself, or its share of the whole; None when that is unknown."""
        value = self.number(field.name)
        if value is None or not field.of:
            return value
        whole = self.number(field.of)
        return words.percent_of(value, whole) if whole else None

    def say(self, field: Field) -> str:
        """The value in words, with its whole where it has one: `1.00 GB / 140.40 GB`. A text is not escaped."""
        said = words.say(field, self.values[field.name])
        return words.part_of(said, words.say(FIELDS[field.of], self.values[field.of])) if field.of else said


# Any: the stubs of HasField take each of the field's names as a type of its own.
def _is_set(card: Any, name: str) -> bool:
    return bool(card.HasField(name))


def read(card: GpuDevice) -> CardValues:
    """The values of `card`, judged."""
    # A field that is unset reads as 0 or empty; only then is it looked at more closely.
    raw = {name: value if value or _is_set(card, name) else None for name, value in zip(_NAMES, _VALUES(card), strict=True)}
    stands, reasons = card_judging.judge(raw)
    return CardValues(stands, tuple(f"{question}: {reason}" for question, reason in reasons.items()))


def missing(reply: GpuInfoResponse, given: int | None = None) -> str:
    """The remark for a driver that shows fewer cards than the guest's bus has, or than `given`; empty without a difference, or when
    nothing is known of the cards. `given` is how many the host gave to the guest, if that is known."""
    return "" if reply.error else words.cards_missing(count(reply.gpus), pci_devices(reply), given)


def repeated(cards: Sequence[GpuDevice]) -> frozenset[int]:
    """The places of the cards that have an earlier one's UUID or PCI address: one card that was sent twice, or a lie."""
    found: set[int] = set()
    for names in ([card.uuid for card in cards], [card.pci_bus_id for card in cards]):
        if len(set(names)) < len(names):
            first: set[str] = set()
            for at, name in enumerate(names):
                # Empty is unknown, as of a lost card.
                if name in first:
                    found.add(at)
                elif name:
                    first.add(name)
    return frozenset(found)


def once(cards: Sequence[GpuDevice]) -> Sequence[GpuDevice]:
    """The cards without the repeated ones."""
    again = repeated(cards)
    return [card for at, card in enumerate(cards) if at not in again] if again else cards


def count(cards: Sequence[GpuDevice]) -> int:
    """How many cards they are; a repeated one counts once."""
    return len(cards) - len(repeated(cards))


def pci_devices(reply: GpuInfoResponse) -> int | None:
    """The cards on the guest's bus; None where that is unset, or more than any machine has."""
    return reply.pci_devices if reply.HasField("pci_devices") and reply.pci_devices <= CARDS_LIMIT else None


def instance_memory(instance: MigInstance) -> tuple[int | None, int | None]:
    """Memory in use and in all of a MIG instance, bytes; None for what is unset or impossible."""
    total = instance.memory_total_bytes if 0 < instance.memory_total_bytes <= card_fields.MEMORY_LIMIT_BYTES else None
    used = instance.memory_used_bytes if instance.HasField("memory_used_bytes") else None
    return (used if used is not None and used <= (total or 0) else None), total


def in_words(card: CardValues, fields: Iterable[Field]) -> list[str]:
    """The known values of `fields` for a sentence: `GPU 34 %`, `memory 1.00 GB of 140.40 GB`; not escaped."""
    found = []
    for field in fields:
        if field.shown == card_row.WITHIN:
            continue  # shown with its part
        said = card.say(field)
        if said != words.UNKNOWN:
            name = FIELDS[field.of].said if field.of else field.said
            found.append(f"{name} {said.replace(' / ', ' of ')}")
    return found


# --- Many cards at once: a fleet has 8000 of them, and nearly all are as they should be ---------------------------------------------------
_MOST = tuple((at, row.most) for at, row in enumerate(ROWS) if row.unit != TEXT_VALUE)
_LONGEST = tuple((at, row.most) for at, row in enumerate(ROWS) if row.unit == TEXT_VALUE)
# Rows whose range says more than "from 0, or unset, to most".
_UNUSUAL = tuple((at, row.least) for at, row in enumerate(ROWS) if row.unit != TEXT_VALUE and row.least not in (0, 1))
COLUMN_OF = {name: at for at, name in enumerate(_NAMES)}
# What is read of each card apart from its values, in the columns after theirs.
BESIDE = (*IDENTITY, "errors")
_COLUMNS = operator.attrgetter(*_NAMES, *BESIDE)


def judged_columns(devices: Sequence[GpuDevice]) -> Columns:
    """The devices' values: None for what is unset or impossible. The columns of BESIDE come after those of the rows."""
    columns = _possible_columns(devices)
    return _one_by_one(devices) if columns is None else columns


def read_all(devices: Sequence[GpuDevice]) -> list[CardValues]:
    """The values of each device, judged."""
    columns = _possible_columns(devices)
    if columns is None:
        return [read(device) for device in devices]
    return [CardValues(dict(zip(_NAMES, values, strict=True)), ()) for values in zip(*columns[: len(_NAMES)], strict=True)]


def _possible_columns(devices: Sequence[GpuDevice]) -> Columns | None:
    """The columns if every value that is set is possible; None where one may not be, so that each card must be judged for itself."""
    if not devices:
        return [()] * (len(_NAMES) + len(BESIDE))
    # Loops in C, a guest at a time: with a line of Python for each value a fleet's page took a sixth longer (measured).
    columns: list[Sequence[Any]] = list(zip(*map(_COLUMNS, devices), strict=True))
    if any([max(columns[at]) > most for at, most in _MOST]) or (_UNUSUAL and _is_unusual(columns)):  # noqa: C419 - a list is quicker
        return None
    if any([max(map(len, columns[at])) > most for at, most in _LONGEST]):  # noqa: C419 - the same
        return None
    for check in CHECKS:
        if _may_contradict(columns, check):
            return None
    for at, name in enumerate(_NAMES):
        if not all(columns[at]):
            # A field that is unset reads as 0 or empty; only then is it looked at more closely.
            columns[at] = [
                value or (value if _is_set(of, name) else None) for value, of in zip(columns[at], devices, strict=True)
            ]
            if ROWS[at].least > 0 and any(value is not None and not value for value in columns[at]):
                return None
    return columns


def _is_unusual(columns: Columns) -> bool:
    return any(value and value < least for at, least in _UNUSUAL for value in columns[at])


def _may_contradict(columns: Columns, check: AtMost) -> bool:
    """Whether some card's parts are more than their whole. One that is unset reads as 0, and bounds nothing."""
    together: Iterable[int] = columns[COLUMN_OF[check.parts[0]]]
    for part in check.parts[1:]:
        together = map(operator.add, together, columns[COLUMN_OF[part]])
    whole = columns[COLUMN_OF[check.whole]]
    limits = whole if check.times == 1 else [check.times * each for each in whole]
    parts = list(together)
    return any(map(operator.gt, parts, limits)) and any(part > limit for part, limit in zip(parts, limits, strict=True) if limit)


def _one_by_one(devices: Sequence[GpuDevice]) -> Columns:
    judged = [read(device).values for device in devices]
    beside = zip(*map(operator.attrgetter(*BESIDE), devices), strict=True)
    return [*([values[name] for values in judged] for name in _NAMES), *beside]
