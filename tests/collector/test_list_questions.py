"""Each call of the repeated messages fails alone, on one card of many: an entry or none, and every other value and card is complete.

As in test_questions.py each card of one sample fails in a way of its own, and the first is well.
"""

from __future__ import annotations

from typing import Any

import pytest

from guest_contract.card_fields import GROUPS
from tests.collector.group_answers import LIST_CALLS, sample
from tests.nvml_library.fixture import NvmlBuild, ScriptedNvml

NORMAL = tuple(f"return {code}" for code in (3, 6, 13, 25, 26))
WRONG = tuple(f"return {code}" for code in (4, 15, 27, 999))
MOST, HANDLE, INSTANCE, COMPUTE = LIST_CALLS["mig_instances"]
(PROCESSES,) = LIST_CALLS["process_list"]
# A call and how it fails; the words of the entries that the card has for it; how many instances and processes are left.
CASES: list[tuple[str, str, list[str], tuple[int, int]]] = [
    *((MOST, row, [], (0, 2)) for row in NORMAL[:3]),
    *((MOST, row, ["mig_instances"], (0, 2)) for row in WRONG),
    (MOST, "keep", ["mig_instances"], (2, 2)),
    *((HANDLE, row, [], (0, 2)) for row in NORMAL[:3]),
    *((HANDLE, row, ["mig_instances"], (0, 2)) for row in (*WRONG, "keep")),
    *((INSTANCE, row, ["mig_instances"], (0, 2)) for row in (*WRONG[:2], "keep", "set value=0xFFFFFFFF")),
    *((COMPUTE, row, [], (2, 2)) for row in ("return 999", "keep")),
    *((PROCESSES, row, [], (2, 0)) for row in NORMAL[:2]),
    *((PROCESSES, row, ["processes", "process_list"], (2, 0)) for row in WRONG[1:]),
    (PROCESSES, "keep", ["process_list"], (2, 0)),
    (PROCESSES, "set value=0xFFFFFFFF", ["processes", "process_list"], (2, 0)),
    (PROCESSES, "set pid=0xFFFFFFFF", ["process_list"], (2, 1)),
]


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory, nvml_build: NvmlBuild) -> list[dict[str, Any]]:  # Any: JSON trees
    """The well card, and one for each case."""
    library = ScriptedNvml(tmp_path_factory.mktemp("lists"), nvml_build)
    rows = [f"{call} {card} * {row}" for card, (call, row, *_) in enumerate(CASES, start=1)]
    library.write("\n".join([f"cards {1 + len(CASES)}", "nvmlDeviceGetMigMode * * set value=1", *rows]))
    return list(sample(library, GROUPS)["gpus"])


def without_a_value(card: dict[str, Any]) -> set[str]:  # Any: a JSON tree
    return {name for name, value in card.items() if value is None}


def test_a_card_among_those_that_fail_is_complete(cards: list[dict[str, Any]]) -> None:  # Any: JSON trees
    assert (cards[0]["errors"], without_a_value(cards[0])) == ([], set())
    assert (len(cards[0]["mig_instances"]), len(cards[0]["process_list"])) == (2, 2)


def test_every_call_of_a_list_has_its_cases_here() -> None:
    assert {call for call, *_ in CASES} == {call for calls in LIST_CALLS.values() for call in calls}


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda at: f"{CASES[at][0]} {CASES[at][1]}")
def test_a_list_that_fails_is_told_by_an_entry_or_is_normal_and_costs_nothing_else(
    cards: list[dict[str, Any]], case: int
) -> None:  # Any: JSON trees
    call, row, entries, left = CASES[case]
    card = cards[1 + case]
    assert [entry.partition(":")[0] for entry in card["errors"]] == entries
    assert (len(card["mig_instances"]), len(card["process_list"])) == left
    # The count of processes is a value of the group activity, of the same call.
    counted = call == PROCESSES and row not in ("keep", "set pid=0xFFFFFFFF")
    assert without_a_value(card) == ({"processes"} if counted else set())
