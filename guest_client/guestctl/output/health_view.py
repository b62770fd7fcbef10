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

from guest_api import guest_api_pb2
from guest_client.guestctl.output.card_cells import safe
from guest_client.guestctl.output.csv_view import Row
from guest_client.guestctl.output.gpu_table import Outcome
from guest_client.guestctl.output.json_view import Json
from guest_client.guestctl.output.statuses import code_name, in_words
from guest_contract import health
from guest_contract.health import Level, Reason, Verdict

CSV_COLUMNS = ["guest_id", "index", "uuid", "pci_bus_id", "health", "reason", "words", "action"]
STYLES = {Level.OK: "green", Level.UNKNOWN: "yellow", Level.DEGRADED: "yellow", Level.FAILED: "red"}


@dataclass(frozen=True, slots=True)
class GuestHealth:
    """One guest's cards with their verdicts, and what is true of none of them. `stopped`: there is nothing to judge."""

    guest: str
    cards: tuple[tuple[guest_api_pb2.GpuDevice, Verdict], ...] = ()
    beside: tuple[Reason, ...] = ()
    stopped: bool = False

    @property
    def level(self) -> Level:
        """The worst of it."""
        return max([Level.OK, *(verdict.level for _, verdict in self.cards), *(reason.level for reason in self.beside)])


def judge(guest: str, outcome: Outcome, cards_given: int | None = None) -> GuestHealth:
    """The health of a guest that gave this outcome, and to which the host gave `cards_given`; without an answer it is unknown."""
    if isinstance(outcome, status_pb2.Status):
        if outcome.code == code_pb2.FAILED_PRECONDITION:
            return GuestHealth(guest, stopped=True)
        action = "See whether the guest runs and its agent answers: guestctl list."
        return GuestHealth(guest, beside=(Reason(code_name(outcome.code), Level.UNKNOWN, in_words(outcome, guest), action),))
    cards = tuple(zip(outcome.gpus, health.judge_cards(outcome), strict=True))
    return GuestHealth(guest, cards, tuple(health.beside_cards(outcome, cards_given)))


def lines(found: Iterable[GuestHealth]) -> Iterator[Text]:
    """A line for whatever is not ok, then one that counts."""
    counts: Counter[Level] = Counter()
    guests = cards = 0
    for guest in found:
        guests += 1
        cards += len(guest.cards)
        if guest.stopped:
            yield safe(f"{guest.guest}: stopped")
        for reason in guest.beside:
            yield _line(guest.guest, Verdict(reason.level, (reason,)))
        for card, verdict in guest.cards:
            counts[verdict.level] += 1
            if verdict.level is not Level.OK:
                name = f" {card.uuid or card.pci_bus_id}".rstrip()
                yield _line(f"{guest.guest} GPU {card.index}{name}", verdict)
    parts = [
        f"{counts[level]} {level.word}" for level in (Level.OK, Level.DEGRADED, Level.FAILED, Level.UNKNOWN) if counts[level]
    ]
    said = f"{cards} card{'' if cards == 1 else 's'} of {guests} guest{'' if guests == 1 else 's'}"
    yield Text(f"{said}: {', '.join(parts)}" if parts else f"no cards in {guests} guest{'' if guests == 1 else 's'}")


def _line(whose: str, verdict: Verdict) -> Text:
    why = "; ".join(reason.words for reason in verdict.reasons)
    what = " ".join(dict.fromkeys(reason.action for reason in verdict.reasons))
    return Text.assemble(safe(whose), ": ", (verdict.level.word, STYLES[verdict.level]), ": ", safe(f"{why}. {what}"))


def as_json(guest: GuestHealth) -> Json:
    """One guest for a script."""
    cards: list[Json] = [
        {
            "index": card.index,
            "uuid": card.uuid,
            "pci_bus_id": card.pci_bus_id,
            "health": verdict.level.word,
            "reasons": [_reason(reason) for reason in verdict.reasons],
        }
        for card, verdict in guest.cards
    ]
    return {
        "guest_id": guest.guest,
        "health": "stopped" if guest.stopped else guest.level.word,
        "reasons": [_reason(reason) for reason in guest.beside],
        "cards": cards,
    }


def _reason(reason: Reason) -> Json:
    return {"code": reason.code, "health": reason.level.word, "words": reason.words, "action": reason.action}


def as_rows(guest: GuestHealth) -> Iterator[Row]:
    """A row for each reason; one without a reason for a card that is ok, and for a guest without cards."""
    for reason in guest.beside:
        yield [guest.guest, None, None, None, reason.level.word, reason.code, reason.words, reason.action]
    for card, verdict in guest.cards:
        whose: Row = [guest.guest, card.index, card.uuid, card.pci_bus_id]
        for reason in verdict.reasons:
            yield [*whose, reason.level.word, reason.code, reason.words, reason.action]
        if not verdict.reasons:
            yield [*whose, verdict.level.word, None, None, None]
    if not guest.beside and not guest.cards:
        yield [guest.guest, None, None, None, "stopped" if guest.stopped else guest.level.word, None, None, None]
