"""The table has a row for every value of a card and judges as it says; what it costs the collector is one module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import GpuDevice
from guest_contract import card_fields, card_row, card_values, words
from guest_contract.card_fields import FIELDS, QUESTIONS, ROWS
from guest_contract.card_judging import judge
from guest_contract.card_row import Field

ROOT = Path(card_fields.__file__).parents[1]
VALUES = [field.name for field in GpuDevice.DESCRIPTOR.fields if field.has_presence]
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("field", VALUES)
def test_a_value_of_a_card_has_a_row(field: str) -> None:
    assert field in FIELDS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_is_a_field_of_the_contract_and_whole(row: Field) -> None:
    assert row.name in {field.name for field in GpuDevice.DESCRIPTOR.fields if field.has_presence}
    assert not row.of or FIELDS[row.of].shown == card_row.WITHIN
    assert (row.metric is None) == (card_row.METRICS in row.not_on)
    if row.unit not in (card_row.TEXT_VALUE, card_row.FLAG):
        assert row.least <= row.most
        assert words.say(row, row.most)


def test_no_two_rows_have_one_name_column_or_word_to_sort_by() -> None:
    for words_of_rows in ([row.name for row in ROWS], [row.column for row in ROWS], [row.sort[:1] for row in ROWS]):
        given_words = [word for word in words_of_rows if word]
        assert len(set(given_words)) == len(given_words)


def test_a_question_s_fields_stand_together_in_one_group() -> None:
    for question, fields in QUESTIONS.items():
        assert len({FIELDS[field].group for field in fields}) == 1, question
    assert [field for fields in QUESTIONS.values() for field in fields] == [row.name for row in ROWS]


def test_the_table_imports_nothing() -> None:
    program = (
        "import sys; sys.path.append(sys.argv[1]); before = set(sys.modules)\n"
        "import guest_contract.card_fields\n"
        "print(sorted(set(sys.modules) - before - {'__future__'}))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program, str(ROOT)], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['guest_contract', 'guest_contract.card_fields', 'guest_contract.card_row']"


def test_a_sample_loads_the_table_and_its_judge_and_nothing_else_of_its_package() -> None:
    program = (
        "import sys; sys.path.append(sys.argv[1])\n"
        "import guest_service.collector.sample, guest_service.collector.nvml\n"
        "print(sorted(name for name in sys.modules if name.startswith(('guest_contract.', 'google', 'guest_api', 'dataclasses', 'enum'))))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program, str(ROOT)], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['guest_contract.card_fields', 'guest_contract.card_judging', 'guest_contract.card_row']"


@given(U32 | st.integers(0, 110), U32 | st.integers(0, 110))
def test_one_utilization_that_is_impossible_leaves_the_other(gpu: int, memory: int) -> None:
    stands, reasons = judge({"utilization_gpu": gpu, "utilization_memory": memory})
    assert stands["utilization_gpu"] == (gpu if gpu <= 100 else None)
    assert stands["utilization_memory"] == (memory if memory <= 100 else None)
    assert bool(reasons) == (None in stands.values())


@given(U64 | st.integers(0, 10), U64 | st.integers(0, 10), U64 | st.integers(0, 10))
def test_no_parts_of_memory_that_stand_exceed_a_total_that_stands(total: int, used: int, free: int) -> None:
    given_values = {"memory_total_bytes": total, "memory_used_bytes": used, "memory_free_bytes": free}
    stands, reasons = judge(given_values)
    assert all(stands[name] in (given_values[name], None) for name in given_values)
    if stands["memory_total_bytes"] is None:
        assert stands["memory_used_bytes"] is stands["memory_free_bytes"] is None
    else:
        parts = [stands[name] for name in ("memory_used_bytes", "memory_free_bytes")]
        assert sum(part for part in parts if isinstance(part, int)) <= total
    assert bool(reasons) == (None in stands.values())


def test_a_used_and_a_free_that_are_more_than_the_total_together_are_refused_with_it() -> None:
    stands, reasons = judge({"memory_total_bytes": 100, "memory_used_bytes": 80, "memory_free_bytes": 80})
    assert set(stands.values()) == {None}
    assert reasons == {"memory": "used 80 and free 80 bytes together are over the total of 100"}


@given(U32, U32 | st.none())
def test_power_is_itself_or_unset_with_a_reason(milliwatts: int, limit: int | None) -> None:
    stands, reasons = judge({"power_usage_mw": milliwatts, "power_limit_mw": limit})
    assert stands["power_usage_mw"] in (milliwatts, None)
    assert ("power" in reasons) == (stands["power_usage_mw"] is None)
    assert milliwatts <= 5_000_000 or stands["power_usage_mw"] is None


def test_every_sentinel_of_nvml_is_refused() -> None:
    for sentinel in (0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFFF):
        for name in ("utilization_gpu", "utilization_memory", "temperature_c", "power_usage_mw"):
            assert judge({name: sentinel})[0] == {name: None}
    for sentinel in (0, 2**64 - 1, 2**63 - 1):
        judged, _ = judge({"memory_total_bytes": sentinel, "memory_used_bytes": 0, "memory_free_bytes": 0})
        assert set(judged.values()) == {None}


def any_value(row: Field) -> st.SearchStrategy[object]:
    if row.unit == card_row.TEXT_VALUE:
        return st.none() | st.text(max_size=3)
    if row.least < 0:
        return st.none() | st.integers(-300, 300)
    return st.none() | (st.booleans() if row.unit == card_row.FLAG else st.integers(0, 110) | U32)


@given(st.lists(st.fixed_dictionaries({row.name: any_value(row) for row in ROWS}), max_size=4))
def test_many_cards_are_judged_as_each_alone(cards: list[dict[str, Any]]) -> None:
    devices = [GpuDevice(**values) for values in cards]
    columns = card_values.judged_columns(devices)
    alone = [card_values.read(device).values for device in devices]
    for name, at in card_values.COLUMN_OF.items():
        assert list(columns[at]) == [values[name] for values in alone]
    assert card_values.read_all(devices) == [card_values.read(device) for device in devices]


def test_judging_leaves_the_message_as_it_came() -> None:
    card = GpuDevice(utilization_gpu=4_000_000_000, power_usage_mw=2**32 - 1, memory_total_bytes=1, memory_used_bytes=2**64 - 1)
    before = card.SerializeToString(deterministic=True)
    judged = card_values.read(card)
    assert set(judged.values.values()) == {None, 1}
    assert len(judged.refused) == 3
    assert card.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    ("count", "said"),
    [(1023, "1023.00 B"), (1024, "1.00 KB"), (1_048_575, "1.00 MB"), (150754820096, "140.40 GB"), (2**64 - 1, "16.00 EB")],
)
def test_a_size_has_the_unit_that_it_has_after_rounding(count: int, said: str) -> None:
    assert words.size(count) == said
