"""A card's verdict from its values: ok, unknown, degraded or failed, with the reasons and what to do about each.

Agent, proxy and client call the same functions on the same message, so that a new proxy judges an old agent by
the new rules, and no verdict is part of the protocol. The rules are the rows of health_rules.RULES. Equal facts are judged once, so that a
fleet of 8000 cards costs what reading them costs (figures: judge_cards).

It refuses to guess: a value that is unset counts neither for nor against a card. A card is unknown, never ok, if none of its health
values was asked or read. `errors` are counted here and not parsed. Rejected: a verdict in the message (a guest would choose its own).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from guest_api import guest_api_pb2
from guest_contract import card_values
from guest_contract.card_fields import BASE, FIELDS, HEALTH, IDENTITY_QUESTIONS, QUESTIONS, QUESTIONS_OF, ROWS
from guest_contract.health_rules import (
    ALL_XIDS,
    REBOOT_XIDS,
    RESET,
    RESET_XIDS,
    RESTART,
    RULES,
    Facts,
    Level,
    Reason,
    recent,
    xids_in_words,
)

__all__ = ["Level", "Reason", "Verdict", "beside_cards", "in_words", "judge_card", "judge_cards", "judge_guest"]

Card = guest_api_pb2.GpuDevice
Response = guest_api_pb2.GpuInfoResponse


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a card or a guest: the worst level of its reasons, and the reasons, worst first."""

    level: Level
    reasons: tuple[Reason, ...] = ()


def judge_card(card: Card, response: Response) -> Verdict:
    """The verdict on one of the cards of `response`; for all of them judge_cards is the cheaper one."""
    return _judge(_facts(card, response, _most_of(response.gpus)))


def judge_cards(response: Response) -> list[Verdict]:
    """The verdict on each card of `response`, in order: 4 to 7 microseconds a card (8000 cards in 30 to 55 ms on a busy core, measured)."""
    cards = list(response.gpus)
    most = _most_of(cards)
    return [_judge(_facts(card, response, most)) for card in cards]


def judge_guest(response: Response, cards_given: int | None = None) -> Verdict:
    """The verdict on a guest: the worst of its cards, and what is true of no card that it shows.

    `cards_given` is how many cards the host gave to the guest, where somebody knows.
    """
    reasons = [
        Reason(reason.code, reason.level, f"GPU {card.index}: {reason.words}", reason.action)
        for card, verdict in zip(response.gpus, judge_cards(response), strict=True)
        for reason in verdict.reasons
    ]
    reasons.extend(beside_cards(response, cards_given))
    return _verdict(reasons)


def in_words(verdict: Verdict) -> tuple[str, ...]:
    """For each reason why, and what to do, in a sentence each. Sentences about a card contain no text of its guest."""
    return tuple(f"{reason.words}. {reason.action}" for reason in verdict.reasons)


def beside_cards(response: Response, cards_given: int | None = None) -> Iterator[Reason]:
    """The reasons against a guest that are about none of the cards that it shows."""
    for numbers, words, action in ((REBOOT_XIDS, "needs a new start", RESTART), (RESET_XIDS, "needs a reset of a card", RESET)):
        if found := xids_in_words(recent(response.unplaced_xids, numbers), words):
            yield Reason("xid_unplaced", Level.FAILED, found, action)
    if response.error:
        yield Reason("unknown", Level.UNKNOWN, response.error, "guest-service doctor, run in the VM, says what to do.")
        return
    shown = card_values.count(response.gpus)
    for code, there, whence in (
        ("cards_missing_on_bus", cards_given, "the host gave {}"),
        ("cards_missing", response.pci_devices, "{} are on the PCI bus"),
    ):
        if there is not None and shown < there:
            yield Reason(code, Level.FAILED, f"{shown} cards are seen, {whence.format(there)}", RESTART)


# Equal facts give equal verdicts. Only a hostile guest has more different ones than this.
@functools.lru_cache(maxsize=4096)
def _judge(facts: Facts) -> Verdict:
    reasons = [Reason(rule.code, rule.level, words, rule.action) for rule in RULES if (words := rule.find(facts)) is not None]
    if not facts.asked:
        ask = "Let guest-service ask the group health (gpu.groups); dstack's own agent knows none."
        reasons.append(Reason("not_asked", Level.UNKNOWN, "its health was not asked", ask))
    elif facts.unread:
        reasons.append(Reason("unread", Level.UNKNOWN, "some values could not be read", "The card's errors say which, and why."))
    return _verdict(reasons)


_PLAIN_NAMES = Facts._fields[:8]
_PLAIN = operator.attrgetter(*_PLAIN_NAMES)
# A value over its range is unknown, as on every surface, and counts against no card.
_MOST = tuple(FIELDS[name].most for name in _PLAIN_NAMES)
_WIDTH_MOST, _LINKS_MOST = FIELDS["pcie_width"].most, FIELDS["nvlinks_active"].most


def _most_of(cards: Iterable[Card]) -> tuple[int, int]:
    """The widest PCIe link and the most NVLinks of a guest's cards."""
    found = [(card.pcie_width, card.nvlinks_active) for card in cards]
    widths = (width for width, _ in found if width <= _WIDTH_MOST)
    return max(widths, default=0), max((links for _, links in found if links <= _LINKS_MOST), default=0)


def _facts(card: Card, response: Response, most: tuple[int, int]) -> Facts:
    errors = bool(card.errors)
    # In the order of Facts.
    return Facts._make(
        (
            *(value if value <= most_possible else 0 for value, most_possible in zip(_PLAIN(card), _MOST, strict=True)),
            errors and not any(_is_set(card, name) for name in _BASE_NUMBERS),
            errors and any(entry.partition(":")[0] not in _BESIDE_HEALTH for entry in card.errors),
            "health" in response.groups,
            tuple(recent(card.xids, ALL_XIDS)) if card.xids else (),
            card.pcie_width if card.HasField("pcie_width") and card.pcie_width <= _WIDTH_MOST else None,
            card.nvlinks_active if card.HasField("nvlinks_active") and card.nvlinks_active <= _LINKS_MOST else None,
            most[0],
            most[1],
            not card.persistence_mode and card.HasField("persistence_mode"),
            response.cc_enabled,
        )
    )


# Any: the stubs of HasField take each of the field's names as a type of its own.
def _is_set(card: Any, name: str) -> bool:
    return bool(card.HasField(name))


# The words of entries that say nothing of health: questions, and groups that were not asked in time. A newer agent's word may.
_BESIDE_HEALTH = frozenset((*IDENTITY_QUESTIONS, *QUESTIONS, *QUESTIONS_OF)) - {HEALTH, *QUESTIONS_OF[HEALTH]}
_BASE_NUMBERS = tuple(row.name for row in ROWS if row.group == BASE)


def _verdict(reasons: list[Reason]) -> Verdict:
    worst_first = tuple(sorted(reasons, key=lambda reason: -reason.level))
    return Verdict(worst_first[0].level if worst_first else Level.OK, worst_first)
