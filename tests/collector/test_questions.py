"""Each question of the groups fails alone: what is not applicable is unset without an entry, all else has one, and no other value is lost.

A process samples 32 cards of which all but the first fail, each in a way of its own, so that the first also shows that no failure costs
another card anything. Rejected: a process for each way, which is 500 of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from guest_api import guest_api_pb2
from guest_contract.card_fields import FIELDS, QUESTIONS
from guest_contract.card_row import TEXT_VALUE
from tests.collector.group_answers import QUESTIONS_BY_CALLS, SENTINELS, TELLS_NOTHING, sample
from tests.nvml_library.fixture import NvmlBuild, ScriptedNvml

# What the library can have, less the first, which is well.
FAILING_CARDS = 31

# The calls that fail, and in which way.
Fault = tuple[tuple[str, ...], str]
# The values of a card that is well, and of the one with the fault. Any: JSON trees
CardsWith = Callable[[Fault], tuple[dict[str, Any], dict[str, Any]]]

NOT_APPLICABLE: list[Fault] = [(calls, f"return {code}") for calls in QUESTIONS_BY_CALLS for code in (3, 6, 13, 25, 26)]
FAILURES: list[Fault] = [
    (calls, row)
    for calls in QUESTIONS_BY_CALLS
    for row in ("return 4", "return 15", "return 27", "return 999", "keep")
    if row != "keep" or calls[0] not in (*TELLS_NOTHING, "nvmlDeviceGetMemoryInfo_v2")  # which a base value needs too
]


def _sentinel(calls: tuple[str, ...]) -> Fault:
    question = QUESTIONS_BY_CALLS[calls][0]
    wide = guest_api_pb2.GpuDevice.DESCRIPTOR.fields_by_name[QUESTIONS[question][0]].cpp_type == 4
    value = "0xFFFFFFFFFFFFFFFF" if wide and question != "pcie_replays" else "0xFFFFFFFF"
    return calls, f"set {SENTINELS.get(calls[0], f'value={value}')}"


SENTINEL_VALUES: list[Fault] = [
    _sentinel(calls) for calls in QUESTIONS_BY_CALLS if FIELDS[QUESTIONS[QUESTIONS_BY_CALLS[calls][0]][0]].unit != TEXT_VALUE
]
FAULTS = [*NOT_APPLICABLE, *FAILURES, *SENTINEL_VALUES]
PLACES = {fault: divmod(number, FAILING_CARDS) for number, fault in enumerate(FAULTS)}


def _script(faults: Sequence[Fault]) -> str:
    rows = [f"cards {1 + FAILING_CARDS}"]
    for card, (calls, row) in enumerate(faults, start=1):
        # An older name is asked where the newer one is not there, and not where it answered something.
        rows += [f"{call} {card} * {row}" for call in (calls if row.startswith("return") else calls[:1])]
    return "\n".join(rows)


@pytest.fixture(scope="module")
def cards_with(tmp_path_factory: pytest.TempPathFactory, nvml_build: NvmlBuild) -> CardsWith:
    """Samples a rack of cards when the first of its faults is asked for."""

    @functools.cache
    def rack(number: int) -> list[dict[str, Any]]:  # Any: JSON trees
        library = ScriptedNvml(tmp_path_factory.mktemp("rack"), nvml_build)
        library.write(_script(FAULTS[number * FAILING_CARDS : (number + 1) * FAILING_CARDS]))
        return list(sample(library)["gpus"])

    def found(fault: Fault) -> tuple[dict[str, Any], dict[str, Any]]:  # Any: as above
        number, place = PLACES[fault]
        cards = rack(number)
        return cards[0], cards[1 + place]

    return found


def _words(fault: Fault) -> str:
    return f"{'-'.join(fault[0])} {fault[1]}"


def _unset(calls: tuple[str, ...]) -> set[str]:
    return {name for question in QUESTIONS_BY_CALLS[calls] for name in QUESTIONS[question]}


def _without_a_value(card: dict[str, Any]) -> set[str]:  # Any: as above
    return {name for name, value in card.items() if value is None}


@pytest.mark.parametrize("fault", NOT_APPLICABLE, ids=_words)
def test_what_a_card_does_not_have_is_unset_without_an_entry(cards_with: CardsWith, fault: Fault) -> None:
    well, other = cards_with(fault)
    assert (well["errors"], other["errors"]) == ([], [])
    assert (_without_a_value(well), _without_a_value(other)) == (set(), _unset(fault[0]))


@pytest.mark.parametrize("calls", QUESTIONS_BY_CALLS, ids="-".join)
def test_a_function_that_the_driver_lacks_leaves_its_values_unset_without_an_entry(
    scripted_nvml: Callable[..., ScriptedNvml], calls: tuple[str, ...]
) -> None:
    (card,) = sample(scripted_nvml(hide=list(calls)))["gpus"]
    assert (card["errors"], _without_a_value(card)) == ([], _unset(calls))


@pytest.mark.parametrize("fault", FAILURES, ids=_words)
def test_any_other_failure_is_one_entry_for_each_question_and_costs_nothing_else(cards_with: CardsWith, fault: Fault) -> None:
    well, ill = cards_with(fault)
    assert (well["errors"], _without_a_value(well)) == ([], set())
    assert [entry.partition(":")[0] for entry in ill["errors"]] == QUESTIONS_BY_CALLS[fault[0]]
    assert _without_a_value(ill) == _unset(fault[0])


@pytest.mark.parametrize("fault", SENTINEL_VALUES, ids=_words)
def test_a_sentinel_is_refused_with_an_entry(cards_with: CardsWith, fault: Fault) -> None:
    questions = QUESTIONS_BY_CALLS[fault[0]]
    _, card = cards_with(fault)
    assert [entry.partition(":")[0] for entry in card["errors"]] == questions
    assert all(card[QUESTIONS[question][0]] is None for question in questions)
