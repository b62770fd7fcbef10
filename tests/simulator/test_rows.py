"""Every value of a card can be simulated, and is in the rack of eight cards."""

from __future__ import annotations

import pytest

from guest_contract.card_fields import GROUPS, QUESTIONS, ROWS
from guest_contract.card_row import FLAG, SIMULATOR, TEXT_VALUE, Field, Value
from guest_service.collector.parts import Whole
from guest_service.collector.sample import take_sample
from guest_service.simulator.driver import SimulatedDriver
from guest_service.simulator.rack import load_rack, parse_rack


def possible(row: Field) -> Value:
    if row.unit == TEXT_VALUE:
        return "x"
    return True if row.unit == FLAG else 9 if row.name == "memory_total_bytes" else max(row.least, 1)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_of_the_table_is_a_key_of_a_rack_and_a_value_of_its_sample(row: Field) -> None:
    given = {field.name: possible(field) for field in ROWS if field.name in QUESTIONS[row.question]}
    toml = "".join(
        f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}\n" for name, value in given.items()
    )
    whole = Whole(GROUPS)
    take_sample(SimulatedDriver(parse_rack(f"[[card]]\n{toml}".encode(), "one")), whole, print, groups=GROUPS)
    assert {name: whole.tree["gpus"][0][name] for name in given} == given


@pytest.mark.parametrize("row", [row for row in ROWS if SIMULATOR not in row.not_on], ids=lambda row: row.name)
def test_a_row_of_the_table_is_in_the_rack_of_eight_cards(row: Field) -> None:
    assert all(row.name in card.values for card in load_rack("h200x8").cards)
