"""One card as cells and words: the same in every table, a dash for what is unknown, and every text of a guest made safe.

Which values are columns, and what a value is called, is written in guest_contract.card_fields. A card is read and judged once, when its
answer comes: a frame of 8000 cards took 0.4 s from messages and takes 30 ms from these (one busy core).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from guest_api import guest_api_pb2
from guest_contract import card_values, health, words
from guest_contract.card_fields import FIELDS, ROWS
from guest_contract.card_row import GUESTCTL, TEXT_VALUE, Field
from guest_contract.card_values import CardValues
from guest_contract.health import Level, Verdict
from guest_contract.words import UNKNOWN
from guest_transport.process.logs import escape

SHOWN = tuple(row for row in ROWS if GUESTCTL not in row.not_on)
# A part stands before its whole.
COLUMNS = tuple(
    sorted((row for row in SHOWN if row.column), key=lambda row: ROWS.index(FIELDS[row.of]) - 0.5 if row.of else ROWS.index(row))
)
# What is no column stands below, in a sentence.
BESIDE = tuple(row for row in SHOWN if not row.column)
LEVEL_STYLES = {Level.OK: "green", Level.UNKNOWN: "yellow", Level.DEGRADED: "yellow", Level.FAILED: "red"}
# The longest honest text is an image's name with its digest. A guest may send 1 MiB; JSON has it whole.
TEXT_CELLS = 400


@dataclass(frozen=True, slots=True)
class Card:
    """A card's message, its judged values, and whether it is healthy."""

    message: guest_api_pb2.GpuDevice
    judged: CardValues
    verdict: Verdict

    @property
    def index(self) -> int:
        """NVML's index."""
        return self.message.index

    @property
    def errors(self) -> list[str]:
        """Why values are unknown: in the guest's words, and for what is impossible in ours."""
        return [*self.message.errors, *self.judged.refused]

    def cell(self, row: Field) -> Text:
        """`34 %`, `79.7 W`, or a dash."""
        said = words.say(row, self.judged.values[row.name])
        return safe(said) if row.unit == TEXT_VALUE else Text(said)

    def number(self, row: Field) -> int | None:
        """The value as a number."""
        return self.judged.number(row.name)

    def in_words(self, rows: Iterable[Field] = SHOWN) -> list[str]:
        """Its known values for a sentence, names included, not escaped."""
        return card_values.in_words(self.judged, rows)

    def sickness(self) -> str:
        """Why it is degraded or failed, in one sentence; empty else."""
        why = "; ".join(reason.words for reason in self.verdict.reasons if reason.level is not Level.UNKNOWN)
        return f"{self.verdict.level.word}: {why}" if why else ""


def read(answer: guest_api_pb2.GpuInfoResponse) -> list[Card]:
    """The cards of an answer, judged; one that the guest told twice is there once."""
    again = card_values.repeated(answer.gpus)
    verdicts = [verdict for at, verdict in enumerate(health.judge_cards(answer)) if at not in again]
    cards = card_values.once(answer.gpus)
    return list(map(Card, cards, card_values.read_all(cards), verdicts))


def level(found: Level) -> Text:
    """How healthy a card or a guest is, in one word; a dash when nobody knows."""
    return Text(UNKNOWN) if found is Level.UNKNOWN else Text(found.word, LEVEL_STYLES[found])


# NVIDIA's own have 40 and 16 cells. A guest may send thousands, and every other guest's figures would leave the window; JSON and CSV have
# them whole.
UUID_CELLS = 48
PCI_ADDRESS_CELLS = 24


def cut(text: str, cells: int) -> Text:
    """`text` of a server in at most `cells`, wide letters and letters without a width counted as a terminal shows them."""
    # Letters without a width (combining marks) have no end in cells.
    shown = safe(text if len(text) <= cells else text[:cells] + "…")
    shown.truncate(cells, overflow="ellipsis")
    return shown


def safe(text: str, style: str = "") -> Text:
    """`text` of a server for a terminal: control characters and direction marks as escapes, no markup read from it."""
    return Text(escape(text), style)


def uuid(card: Card) -> Text:
    """As the driver gave it; a dash when it did not."""
    return cut(card.message.uuid or UNKNOWN, UUID_CELLS)


def pci_address(card: Card) -> Text:
    """The same."""
    return cut(card.message.pci_bus_id or UNKNOWN, PCI_ADDRESS_CELLS)


def names(card: Card) -> list[Text]:
    """Those of the two that are known, for a sentence."""
    known = ((card.message.uuid, UUID_CELLS), (card.message.pci_bus_id, PCI_ADDRESS_CELLS))
    return [cut(name, cells) for name, cells in known if name]
