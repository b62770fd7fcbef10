"""What `guestctl health` says of guests: a line for each card that is not ok and for what is true of no single card, JSON, and CSV.

The verdict is made here from the guest's own answer (guest_contract.health), so that an older agent or proxy is judged by today's rules.
Cards that are ok are counted and have no line: somebody on call reads what is wrong. Texts of a guest are made safe by whoever shows them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from google.rpc import code_pb2, status_pb2
from rich.text import Text

from guest_client.guestctl.output import card_cells
from guest_client.guestctl.output.card_cells import LEVEL_STYLES, TEXT_CELLS, Card, cut, safe
from guest_client.guestctl.output.csv_view import Row
from guest_client.guestctl.output.gpu_table import Outcome
from guest_client.guestctl.output.json_view import Json
from guest_client.guestctl.output.statuses import code_name, in_words
from guest_contract import health
from guest_contract.card_values import CARDS_LIMIT
from guest_contract.health import Level, Reason, Verdict

CSV_COLUMNS = ["guest_id", "index", "uuid", "pci_bus_id", "health", "reason", "words", "action"]


@dataclass(frozen=True, slots=True)
class GuestHealth:
    """One guest's cards with their verdicts, and what is true of none of them. `stopped`: there is nothing to judge.

    Of several hosts `host` is the guest's, and `guest` is empty for one that gave no answer.
    """

    guest: str
    cards: tuple[Card, ...] = ()
    beside: tuple[Reason, ...] = ()
    stopped: bool = False
    host: str = ""

    @property
    def name(self) -> str:
        """What it is called."""
        return "/".join(filter(None, (self.host, self.guest)))

    @property
    def level(self) -> Level:
        """The worst of it."""
        return max([Level.OK, *(card.verdict.level for card in self.cards), *(reason.level for reason in self.beside)])


def judge(guest: str, outcome: Outcome, cards_given: int | None = None) -> GuestHealth:
    """The health of a guest that gave this outcome, and to which the host gave `cards_given`; without an answer it is unknown."""
    if isinstance(outcome, status_pb2.Status):
        if outcome.code == code_pb2.FAILED_PRECONDITION:
            return GuestHealth(guest, stopped=True)
        action = "See whether the guest runs and its agent answers: guestctl list."
        return GuestHealth(guest, beside=(Reason(code_name(outcome.code), Level.UNKNOWN, in_words(outcome, guest), action),))
    return GuestHealth(guest, tuple(card_cells.read(outcome)), tuple(health.beside_cards(outcome, cards_given)))


def without_answer(host: str, status: status_pb2.Status) -> GuestHealth:
    """What is known of the guests of a host that gave no answer."""
    action = "See whether the host runs and its proxy answers."
    return GuestHealth("", beside=(Reason(code_name(status.code), Level.UNKNOWN, in_words(status, host), action),), host=host)


def lines(found: Iterable[GuestHealth]) -> Iterator[Text]:
    """A line for whatever is not ok, then one that counts."""
    counts: Counter[Level] = Counter()
    guests = cards = 0
    for guest in found:
        guests += bool(guest.guest)
        cards += len(guest.cards)
        if guest.stopped:
            yield safe(f"{guest.name}: stopped")
        for reason in guest.beside:
            yield _line(guest.name, Verdict(reason.level, (reason,)))
        sick = [card for card in guest.cards if card.verdict.level is not Level.OK]
        counts.update(card.verdict.level for card in guest.cards)
        for card in sick[:CARDS_LIMIT]:
            name = "".join(f" {name.plain}" for name in card_cells.names(card)[:1])
            yield _line(f"{guest.name} GPU {card.index}{name}", card.verdict)
        if len(sick) > CARDS_LIMIT:
            yield safe(f"{guest.name}: and {len(sick) - CARDS_LIMIT} more")
    parts = [
        f"{counts[level]} {level.word}" for level in (Level.OK, Level.DEGRADED, Level.FAILED, Level.UNKNOWN) if counts[level]
    ]
    said = f"{cards} card{'' if cards == 1 else 's'} of {guests} guest{'' if guests == 1 else 's'}"
    yield Text(f"{said}: {', '.join(parts)}" if parts else f"no cards in {guests} guest{'' if guests == 1 else 's'}")


def _line(whose: str, verdict: Verdict) -> Text:
    why = "; ".join(reason.words for reason in verdict.reasons)
    what = " ".join(dict.fromkeys(reason.action for reason in verdict.reasons))
    said = cut(why, TEXT_CELLS).append(". ").append_text(safe(what))
    return Text.assemble(safe(whose), ": ", (verdict.level.word, LEVEL_STYLES[verdict.level]), ": ", said)


def as_json(guest: GuestHealth) -> Json:
    """One guest for a script."""
    cards: list[Json] = [
        {
            "index": card.index,
            "uuid": card.message.uuid,
            "pci_bus_id": card.message.pci_bus_id,
            "health": card.verdict.level.word,
            "reasons": [reason_json(reason) for reason in card.verdict.reasons],
        }
        for card in guest.cards
    ]
    return {
        "guest_id": guest.guest,
        "health": "stopped" if guest.stopped else guest.level.word,
        "reasons": [reason_json(reason) for reason in guest.beside],
        "cards": cards,
    }


def reason_json(reason: Reason) -> Json:
    """A reason for a script."""
    return {"code": reason.code, "health": reason.level.word, "words": reason.words, "action": reason.action}


def as_rows(guest: GuestHealth) -> Iterator[Row]:
    """A row for each reason; one without a reason for a card that is ok, and for a guest without cards."""
    for reason in guest.beside:
        yield [guest.guest, None, None, None, reason.level.word, reason.code, reason.words, reason.action]
    for card in guest.cards:
        whose: Row = [guest.guest, card.index, card.message.uuid, card.message.pci_bus_id]
        for reason in card.verdict.reasons:
            yield [*whose, reason.level.word, reason.code, reason.words, reason.action]
        if not card.verdict.reasons:
            yield [*whose, card.verdict.level.word, None, None, None]
    if not guest.beside and not guest.cards:
        yield [guest.guest, None, None, None, "stopped" if guest.stopped else guest.level.word, None, None, None]
