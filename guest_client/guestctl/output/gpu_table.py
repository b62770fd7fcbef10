"""The GPUs of guests: a line per guest (none, unknown, or how many cards, CC state and age), then the cards, then what could not be read.

Beside a card's values stands whether it is healthy. A card is one line where the terminal is wide enough, else two (its names stand below
its values), else a short paragraph: at every width nothing is left out but the end of a name longer than any of NVIDIA's, and no number is
broken in two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from google.rpc import status_pb2
from rich.console import Console, ConsoleOptions
from rich.text import Text

from guest_api import guest_api_pb2
from guest_client.guestctl.output import card_cells, columns, statuses
from guest_client.guestctl.output.card_cells import TEXT_CELLS, Card, cut, safe
from guest_client.guestctl.output.columns import Column
from guest_contract import card_values, words

# A guest's answer, or why there is none.
Outcome: TypeAlias = guest_api_pb2.GpuInfoResponse | status_pb2.Status

_GUEST = (Column("Guest"), Column("GPU"))
_NAMES = (Column("UUID"), Column("PCI address"))
_VALUES = (Column("Health"), *(Column(row.column, right=True) for row in card_cells.COLUMNS))
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class GpuTable:
    """The outcomes by guest, shown in that order, and how many cards the host gave to a guest where that is known."""

    outcomes: Mapping[str, Outcome]
    given: Mapping[str, int] = field(default_factory=dict)

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        for guest, outcome in self.outcomes.items():
            yield guest_line(guest, outcome, self.given.get(guest))
        found = list(self._cards())
        if found:
            yield from _card_lines(found, options.max_width)
        for guest, card in found:
            if more := card.in_words(card_cells.BESIDE):
                yield safe(f"{guest} GPU {card.index}: {', '.join(more)}")
            yield from (safe(f"{guest} GPU {card.index}: ", "red").append_text(text) for text in _trouble(card))

    def _cards(self) -> Iterator[tuple[str, Card]]:
        for guest, outcome in self.outcomes.items():
            if isinstance(outcome, guest_api_pb2.GpuInfoResponse):
                # The proxy refuses an answer of more; a guest that is asked directly may send half a million.
                yield from ((guest, card) for card in card_cells.read(outcome)[: card_values.CARDS_LIMIT])


def _trouble(card: Card) -> list[Text]:
    sickness = card.sickness()
    return [cut(said, TEXT_CELLS) for said in (*([sickness] if sickness else []), *words.first_errors(card.errors))]


def guest_line(guest: str, outcome: Outcome, given: int | None = None) -> Text:
    """`vm1: 8 GPUs, CC enabled true, CC ready true, sampled 0.3 s ago`, or what else is known of the guest."""
    if isinstance(outcome, status_pb2.Status):
        return safe(f"{guest}: ", "red").append_text(cut(statuses.in_words(outcome, guest), TEXT_CELLS))
    facts = guest_facts(outcome, given)
    if outcome.HasField("sample_age_ms"):
        facts.append(f"sampled {words.age(outcome.sample_age_ms)} ago")
    return safe(f"{guest}: ", "red" if outcome.error else "").append_text(cut(", ".join(facts), TEXT_CELLS))


def guest_facts(answer: guest_api_pb2.GpuInfoResponse, given: int | None = None) -> list[str]:
    """How many cards, whether one is missing, and the state of confidential computing; not escaped."""
    if answer.error:
        return [f"GPUs unknown: {answer.error}"]
    missing = [f"a card is missing ({words_of_it})"] if (words_of_it := card_values.missing(answer, given)) else []
    if not answer.gpus:
        return ["no NVIDIA GPU", *missing]
    enabled = answer.cc_enabled if answer.HasField("cc_enabled") else None
    ready = answer.cc_ready if answer.HasField("cc_ready") else None
    cards = card_values.count(answer.gpus)
    count = f"{cards} GPU{'' if cards == 1 else 's'}"
    if repeated := len(answer.gpus) - cards:
        missing.insert(0, f"{repeated} told again with another's UUID or PCI address")
    # Said only where it is on: everywhere else, and with an older agent that does not say, there is nothing to warn of.
    devtools = ["CC DevTools on"] if answer.cc_devtools else []
    return [count, *missing, f"CC enabled {words.yes_no(enabled)}", f"CC ready {words.yes_no(ready)}", *devtools]


def _card_lines(found: list[tuple[str, Card]], width: int) -> Iterator[Text]:
    rows = [
        (
            (safe(guest), Text(str(card.index))),
            (card_cells.uuid(card), card_cells.pci_address(card)),
            (card_cells.level(card.verdict.level), *(card.cell(row) for row in card_cells.COLUMNS)),
        )
        for guest, card in found
    ]
    one_line = _GUEST + _NAMES + _VALUES
    whole = [(*guest, *names, *values) for guest, names, values in rows]
    needed = columns.widths(one_line, whole)
    if columns.total(needed) <= width:
        yield columns.header(one_line, needed)
        for row in whole:
            yield columns.line(one_line, needed, row)
        return
    first_line = _GUEST + _VALUES
    needed = columns.widths(first_line, [(*guest, *values) for guest, _, values in rows])
    names_needed = columns.widths(_NAMES, [names for _, names, _ in rows])
    if max(columns.total(needed), len(_INDENT) + columns.total(names_needed)) > width:
        for guest, card in found:
            yield _paragraph(guest, card)
        return
    yield columns.header(first_line, needed)
    yield Text(_INDENT).append_text(columns.header(_NAMES, names_needed))
    for guest_cells, names, values in rows:
        yield columns.line(first_line, needed, (*guest_cells, *values))
        yield Text(_INDENT).append_text(columns.line(_NAMES, names_needed, names))


def _paragraph(guest: str, card: Card) -> Text:
    facts = [*card_cells.names(card), *map(safe, card.in_words(card_cells.COLUMNS))] or [Text("nothing is known")]
    return Text.assemble(safe(f"{guest} GPU {card.index}", "bold"), ": ", Text(", ").join(facts), overflow="fold")
