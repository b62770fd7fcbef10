"""The frame that `top` shows: totals, guests in trouble, cards, guests without cards; made of a Board and a size, and of nothing else.

Guests in trouble stand first and take at most a quarter of the lines, so that they are neither overlooked nor all there is. Where a
terminal is narrow, columns are left out, the least needed first, and a long guest id is cut; `guestctl gpu` is there for all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from guest_client.errors import ClientError
from guest_client.guestctl.fleet.several import status_of
from guest_client.guestctl.output import card_cells, columns, statuses
from guest_client.guestctl.output.card_cells import TEXT_CELLS, Card, cut, safe
from guest_client.guestctl.output.columns import Column
from guest_client.guestctl.output.stdout import Size
from guest_client.guestctl.request import SORTS
from guest_client.guestctl.top.fleet_state import Board, Entry
from guest_contract import card_sums, words
from guest_contract.card_fields import FIELDS
from guest_contract.card_row import Field
from guest_contract.health import Level
from guest_contract.words import UNKNOWN

_BAR_CELLS = 10
# A longer guest id is cut before a column is left out for it; to fewer cells when nothing is left to leave out.
_GUEST_CELLS = 24
_LEAST_GUEST_CELLS = 8
_TROUBLE_SHARE = 4
# Totals, titles of the columns, and the line of keys.
_OWN_LINES = 3
KEYS = "  ".join(["q quit", *(f"{sort[0]} {sort}" for sort in SORTS), "arrows scroll"])
# What the bar of a card and the first of the totals show.
_LOAD = FIELDS["utilization_gpu"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A column: its cell for one card, and its turn in being left out, 0 for never."""

    column: Column
    cell: Callable[[Board, Entry, Card], Text]
    left_out: int = 0


def _value(row: Field) -> Shown:
    return Shown(Column(row.column, right=True), lambda _board, _entry, card: card.cell(row), row.left_out)


_COLUMNS = (
    Shown(Column("Guest"), lambda _board, entry, _card: safe(entry.guest_id)),
    Shown(Column("GPU", right=True), lambda _board, _entry, card: Text(str(card.index))),
    Shown(Column("Health"), lambda _board, _entry, card: card_cells.level(card.verdict.level), 11),
    Shown(Column("Load"), lambda _board, _entry, card: _bar(card), 2),
    *map(_value, card_cells.COLUMNS),
    Shown(Column("Age", right=True), lambda board, entry, _card: Text(_age(board, entry)), 7),
    Shown(Column("PCI address"), lambda _board, _entry, card: card_cells.pci_address(card), 3),
    Shown(Column("UUID"), lambda _board, _entry, card: card_cells.uuid(card), 1),
    Shown(Column("Errors", right=True), lambda _board, _entry, card: _errors(card), 10),
)


@dataclass(frozen=True, slots=True)
class Frame:
    """Lines for a terminal, and how far it can be scrolled."""

    lines: list[Text]
    last_offset: int


def frame(board: Board, sort: str, offset: int, size: Size, notice: str) -> Frame:
    """What a terminal of `size` shows when `offset` cards are scrolled past; `notice` is trouble with the proxy itself."""
    trouble = _trouble(board, max((size.lines - _OWN_LINES) // _TROUBLE_SHARE, 2))
    quiet = [_quiet_line(entry) for entry in board.entries() if entry.quiet]
    found = board.cards(sort)
    head = [totals(board), *([safe(notice, "bold red")] if notice else []), *trouble]
    room = max(size.lines - len(head) - (_OWN_LINES - 1), 1)
    last_offset = max(len(found) + len(quiet) - room, 0)
    offset = min(offset, last_offset)
    rows = card_lines(board, found[offset : offset + room], size.columns)
    below = quiet[max(offset - len(found), 0) :][: room - len(found[offset : offset + room])]
    body = [*rows, *below]
    body += [Text()] * (room + 1 - len(body))
    shown = f"{offset + 1}-{min(offset + room, len(found) + len(quiet))} of {len(found) + len(quiet)}" if last_offset else ""
    keys = Text(f"by {sort}  {shown}{'  ' if shown else ''}{KEYS}", "reverse", no_wrap=True, overflow="ellipsis")
    return Frame([*head, *body, keys], last_offset)


def snapshot(board: Board, sort: str, width: int) -> list[Text]:
    """The same for something that is no terminal: everything, once."""
    quiet = [_quiet_line(entry) for entry in board.entries() if entry.quiet]
    return [
        totals(board),
        *_trouble(board, len(board.entries()) + len(board.away)),
        *card_lines(board, board.cards(sort), width),
        *quiet,
    ]


def totals(board: Board) -> Text:
    """One line about the whole fleet."""
    entries = board.entries()
    failing = sum(entry.failed for entry in entries)
    sums = card_sums.together(entry.sums for entry in entries)
    text = Text(_count(len(entries), "guest"), no_wrap=True, overflow="ellipsis")
    if board.away:
        text.append(f", {_count(len(board.away), 'host')} away", "red")
    if failing:
        text.append(f", {failing} failing", "red")
    if sick := sum(card.verdict.level > Level.UNKNOWN for entry in entries for card in entry.cards):
        text.append(f", {_count(sick, 'card')} not ok", "red")
    text.append(f"; {_count(sums.cards, 'GPU')}")
    for each in sums.said() if sums.cards else ():
        name = "at " if each.field is _LOAD else "" if each.number != UNKNOWN else f"{each.title.lower()} "
        text.append(f", {name}{str(each).replace(' / ', ' of ')}")
    return text


def card_lines(board: Board, found: Sequence[tuple[Entry, Card]], width: int) -> list[Text]:
    """Titles and one line per card, of as many columns as fit."""
    shown = list(_COLUMNS)
    rows = [[each.cell(board, entry, card) for each in shown] for entry, card in found]
    if not rows:
        return []
    if not any(card.errors for _, card in found):
        rows = [row[:-1] for row in rows]
        shown.pop()
    needed = columns.widths([each.column for each in shown], rows)
    while columns.total(needed) - max(needed[0] - _GUEST_CELLS, 0) > width and any(each.left_out for each in shown):
        at = min((at for at, each in enumerate(shown) if each.left_out), key=lambda at: shown[at].left_out)
        del shown[at], needed[at]
        for row in rows:
            del row[at]
    guest_cells = max(needed[0] - max(columns.total(needed) - width, 0), _LEAST_GUEST_CELLS)
    for row in rows:
        row[0].truncate(guest_cells, overflow="ellipsis")
    needed[0] = min(needed[0], guest_cells)
    of = [each.column for each in shown]
    return [columns.header(of, needed), *(columns.line(of, needed, row) for row in rows)]


def _trouble(board: Board, limit: int) -> list[Text]:
    hosts = [_host_line(host, error) for host, error in sorted(board.away.items())]
    failing = [entry for entry in board.entries() if entry.failed or entry.missing]
    in_trouble = len(hosts) + len(failing)
    room = in_trouble if in_trouble <= limit else limit - 1
    lines = [*hosts[:room], *(_trouble_line(board, entry) for entry in failing[: max(room - len(hosts), 0)])]
    if in_trouble > len(lines):
        what = "more guest" if len(hosts) <= room else "more host or guest"
        lines.append(Text(f"and {_count(in_trouble - len(lines), what)} in trouble", "red", no_wrap=True))
    return lines


def _host_line(host: str, error: ClientError) -> Text:
    reason = cut(statuses.in_words(status_of(error), host), TEXT_CELLS)
    line = safe(f"{host}: no answer, trying again: ", "bold red").append_text(reason)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _trouble_line(board: Board, entry: Entry) -> Text:
    answer = entry.answer
    if answer is not None:
        reason = f"GPUs unknown: {answer.error}" if answer.error else f"a card is missing ({entry.missing})"
    else:
        reason = statuses.in_words(entry.outcome.status, entry.guest_id) if entry.outcome is not None else ""
    age = board.age_seconds(entry) if answer is None else None
    ago = "" if age is None else f" (last sample {words.duration(int(age))} old)"
    line = safe(f"{entry.guest_id}: ", "red").append_text(cut(reason, TEXT_CELLS)).append(ago)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _quiet_line(entry: Entry) -> Text:
    if entry.stopped:
        text = safe(f"{entry.guest_id}: stopped", "yellow")
    elif entry.outcome is not None:
        text = safe(f"{entry.guest_id}: no NVIDIA GPU")
    else:
        text = safe(f"{entry.guest_id}: no answer yet", "yellow")
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _bar(card: Card) -> Text:
    load = card.number(_LOAD)
    if load is None:
        return Text(" " * _BAR_CELLS)
    full = round(load * _BAR_CELLS / 100)
    return Text.assemble(("|" * full, "green"), "." * (_BAR_CELLS - full))


def _errors(card: Card) -> Text:
    return Text(str(len(card.errors)), "red") if card.errors else Text(UNKNOWN)


def _age(board: Board, entry: Entry) -> str:
    age = board.age_seconds(entry)
    return UNKNOWN if age is None else words.duration(int(age))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
