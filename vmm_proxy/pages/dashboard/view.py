"""What stands in a guest's rows, as words and bar lengths.

Judging happens here, so that templates only place words: unknown is a dash and never a zero, and a guest that does not answer says why and
since when in the place of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse
from guest_contract import card_values, health, words
from guest_contract.card_fields import ROWS, page_title
from guest_contract.card_row import SUM, Field
from guest_contract.card_values import CardValues
from guest_contract.words import UNKNOWN
from guest_transport.http import formats
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.metrics.last_answers import LastKnown
from vmm_proxy.pages.dashboard.history import CARDS_LIMIT, GRAPHED, SLOTS, History

# From here on nobody reads tenths of a second.
SECONDS_SHOWN_TO = 600


# The columns of values, in their order.
COLUMNS = tuple(row for row in ROWS if row.on_fleet_page)
# What guests can be sorted by beside state and age, each with its words in the choice.
SORTS = tuple((row.sort, f"{row.sort}, {'fullest' if row.of else 'highest'} first") for row in COLUMNS if row.sort)


@dataclass(frozen=True, slots=True)
class Cell:
    """A value: its words, whether it is a bar and how full (None: unknown), and the graph beside it, which is None where there is none.

    A graph holds the corners of its line in SVG's words, empty when there is nothing to draw.
    """

    field: Field
    words: str
    fill: int | None
    graph: str | None

    @property
    def title(self) -> str:
        """The column's."""
        return page_title(self.field)


@dataclass(frozen=True, slots=True)
class CardRow:
    """One GPU; a cell for each of COLUMNS. `health` is the verdict's word, `why` its reasons with what to do."""

    index: int
    uuid: str
    pci: str
    cells: tuple[Cell, ...]
    errors: tuple[str, ...]
    health: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GuestHead:
    """What is said of a guest beside its cards: a `note` where there are none, or why it is down. `age_seconds` grows on the page by
    itself."""

    id: str
    state: str
    labels: tuple[tuple[str, str], ...]
    cc: str
    age_label: str
    age_seconds: float | None
    age_words: str
    note: str
    bad: bool
    more_cards: int
    missing: str


@dataclass(frozen=True, slots=True)
class GuestRows:
    """One guest: its own cell and its cards', or the head's note in their place."""

    head: GuestHead
    cards: tuple[CardRow, ...]
    search: str
    # What rows are sorted by; empty text stands for unknown and goes last.
    keys: Mapping[str, str]


# In the order in which somebody on call wants to see them.
_STATES = ("down", "waiting", "up", "stopped")


def guest_rows(entry: GuestEntry, known: LastKnown | None, history: History, now: float) -> GuestRows:
    """The rows of one guest; `known` is None for one that is stopped."""
    gpus = known.gpus.shown(now) if known else None
    devices = gpus.gpus[:CARDS_LIMIT] if gpus else ()
    judged = card_values.read_all(devices)
    verdicts = health.judge_cards(gpus)[:CARDS_LIMIT] if gpus else ()
    cards = tuple(
        _card_row(device, card, verdict, history.of(entry.id, device))
        for device, card, verdict in zip(devices, judged, verdicts, strict=True)
    )
    head = guest_head(entry, known, now)
    return GuestRows(
        head=head,
        cards=cards,
        search=_search(entry, head.state, head.labels, cards),
        keys=_keys(head.state, judged, head.age_seconds),
    )


def guest_head(entry: GuestEntry, known: LastKnown | None, now: float) -> GuestHead:
    """What is said of the guest itself; `known` is None for one that is stopped."""
    gpus = known.gpus.shown(now) if known else None
    state = _state(known)
    note = "" if gpus and gpus.gpus else _note(known, gpus)
    age_label, age = _age(known, gpus, now)
    return GuestHead(
        id=entry.id,
        state=state,
        labels=tuple((formats.text(key), formats.text(value)) for key, value in sorted(entry.labels.items())),
        cc=_cc(gpus),
        age_label=age_label,
        age_seconds=age,
        age_words=UNKNOWN if age is None else _age_words(age),
        note=note or (_why_down(known) if known and state == "down" else ""),
        bad=state == "down" or bool(gpus and gpus.error),
        more_cards=max(0, len(gpus.gpus) - CARDS_LIMIT) if gpus else 0,
        missing=card_values.missing(gpus, entry.gpus_given) if gpus else "",
    )


def _state(known: LastKnown | None) -> str:
    if known is None:
        return "stopped"
    return {True: "up", False: "down", None: "waiting"}[known.up]


def _note(known: LastKnown | None, gpus: GpuInfoResponse | None) -> str:
    if known is None:
        return "Stopped"
    if gpus is None:
        return _why_down(known) or "No answer yet"
    return formats.text(gpus.error) if gpus.error else "No NVIDIA GPUs"


def _why_down(known: LastKnown) -> str:
    text = known.gpus.failure.text if known.gpus.failure else known.reachability.reason
    return formats.text(text.removeprefix(f"guest {known.id}: "))


def _age(known: LastKnown | None, gpus: GpuInfoResponse | None, now: float) -> tuple[str, float | None]:
    """The age of the sample that is shown; without one, the time since the guest last answered."""
    if known and gpus and gpus.HasField("sample_age_ms"):
        return "sample", gpus.sample_age_ms / 1000 + max(0.0, now - known.gpus.received_at)
    if known and known.answered_at is not None:
        return "last answer", max(0.0, now - known.answered_at)
    return "", None


def _age_words(seconds: float) -> str:
    """`60.0 s`, from ten minutes on `2h 5m`."""
    if seconds < SECONDS_SHOWN_TO:
        return words.age(round(seconds * 1000))
    return words.duration(int(seconds)).rpartition(" ")[0]


def _cc(gpus: GpuInfoResponse | None) -> str:
    if gpus is None or not gpus.gpus:
        return ""
    if not gpus.HasField("cc_enabled"):
        return "CC unknown"
    said = {True: "CC ready", False: "CC not ready", None: "CC on"}[gpus.cc_ready if gpus.HasField("cc_ready") else None]
    if not gpus.cc_enabled:
        said = "CC off"
    return f"{said}, DevTools on" if gpus.cc_devtools else said


def _card_row(device: GpuDevice, card: CardValues, verdict: health.Verdict, past: Sequence[int | None]) -> CardRow:
    return CardRow(
        index=device.index,
        uuid=formats.text(device.uuid) or UNKNOWN,
        pci=formats.pci(device.pci_bus_id) or UNKNOWN,
        cells=tuple(
            Cell(row, formats.text(card.say(row)), card.fill(row), graph_line(past) if row.name == GRAPHED[0].name else None)
            for row in COLUMNS
        ),
        errors=tuple(map(formats.text, words.first_errors((*device.errors, *card.refused)))),
        health=verdict.level.word,
        why=health.in_words(verdict),
    )


def graph_line(past: Sequence[int | None], top: int = 100) -> str:
    """An SVG path of SLOTS steps, in a height of 100 that means `top`, broken where nothing is known; a value alone is a short stroke."""
    corners: list[str] = []
    drawing = False
    for at, value in enumerate(past):
        if value is None:
            drawing = False
            continue
        alone = not drawing and (at + 1 == len(past) or past[at + 1] is None)
        corners.append(
            f"{'L' if drawing else 'M'}{at} {100 - words.percent_of(min(value, top), top)}"
            + (f"h{min(1, SLOTS - at)}" if alone else "")
        )
        drawing = True
    return "".join(corners)


def _search(entry: GuestEntry, state: str, labels: Sequence[tuple[str, str]], cards: Sequence[CardRow]) -> str:
    """What the filter looks in, in lower case."""
    found = [entry.id, state, *(f"{key}={value}" for key, value in labels), *(f"{card.uuid} {card.pci}" for card in cards)]
    return " ".join(found).lower()


def _keys(state: str, cards: Sequence[CardValues], age: float | None) -> dict[str, str]:
    keys = {row.sort: _key(row, cards) for row in COLUMNS if row.sort}
    return {"state": str(_STATES.index(state)), **keys, "age": "" if age is None else f"{age:.1f}"}


def _key(row: Field, cards: Sequence[CardValues]) -> str:
    """A guest's by this value: the fullest or highest of its cards, and of what is summed the sum."""
    known = [number for card in cards if (number := card.fill(row) if row.of else card.number(row.name)) is not None]
    if not known:
        return ""
    return str(sum(known) if row.sums == SUM and not row.of else max(known))
