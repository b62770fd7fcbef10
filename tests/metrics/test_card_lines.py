"""What a row of the table can be on the metrics page: scaled numbers, series of 0 and 1, labels of an info series; and never nonsense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse
from guest_contract.card_fields import BASE, CHECKS, FIELDS, ROWS
from guest_contract.card_row import CELSIUS, COUNT, COUNTER, FLAG, INFO, MILLIWATTS, TEXT_VALUE, Field, Metric
from guest_contract.card_values import judged_columns
from guest_metrics import gpu, table
from guest_metrics.card_lines import CardLines
from guest_metrics.exposition import Lines
from guest_metrics.forms import filled

U32, U64 = 2**32 - 1, 2**64 - 1


def row(name: str, metric: Metric, **more: object) -> Field:
    return Field(name, "q", BASE, title="T", metric=metric, **{"unit": COUNT, **more})  # type: ignore[arg-type] # a shorthand


def written(card: GpuDevice, *rows: Field) -> list[str]:
    """The lines that these rows make of `card`, and proof that a kept form would be filled with the same numbers."""
    made, lines = CardLines(rows, table.card_families(rows, ())), Lines()
    made.write(lines, {lines.labels(("index",), ("0",)): card})
    _, numbers = made.read(judged_columns([card]))
    assert [str(number) for number in numbers if number is not None] == list(filled(lines).numbers)
    return "".join(lines.fragment().lines.values()).splitlines()


def test_a_number_in_another_unit_is_exact() -> None:
    watts = row("power_usage_mw", Metric("watts", "W.", per=1000), unit=MILLIWATTS)
    hertz = row("temperature_c", Metric("clock_hertz", "Hz.", labels=(("clock", "sm"),), times=1_000_000), unit=CELSIUS)
    assert written(GpuDevice(power_usage_mw=70_003, temperature_c=98), watts, hertz) == [
        'dstack_gpu_watts{index="0"} 70.003',
        'dstack_gpu_clock_hertz{index="0",clock="sm"} 98000000',
    ]


def test_rows_of_one_family_stand_together_and_a_counter_is_one() -> None:
    one, two = (Metric("errors_total", "E.", kind=COUNTER, labels=(("kind", kind),)) for kind in ("corrected", "uncorrected"))
    between = row("power_usage_mw", Metric("watts", "W."))
    rows = (row("utilization_gpu", one), between, row("utilization_memory", two))
    families = table.card_families(rows, ())
    assert families["utilization_gpu"] is families["utilization_memory"]
    assert written(GpuDevice(utilization_gpu=1, power_usage_mw=2, utilization_memory=0), *rows) == [
        'dstack_gpu_errors_total{index="0",kind="corrected"} 1',
        'dstack_gpu_errors_total{index="0",kind="uncorrected"} 0',
        'dstack_gpu_watts{index="0"} 2',
    ]


def test_a_family_of_two_groups_is_refused() -> None:
    one, two = (
        Field(name, "q", group, title="T", unit=COUNT, metric=Metric("clock_hertz", "C."))
        for name, group in (("a", "limits"), ("b", "activity"))
    )
    with pytest.raises(ValueError, match="b: dstack_gpu_clock_hertz is of the group limits, not of activity"):
        table.card_families([one, two], ())


def test_a_state_is_one_of_its_words_and_bits_are_each_their_own() -> None:
    state = row("temperature_c", Metric("state", "S.", each="state"), names={1: "started", 3: "completed"})
    bits = row("utilization_gpu", Metric("reason", "R.", each="reason"), bits={1: "idle", 4: "hot"})
    assert written(GpuDevice(temperature_c=3, utilization_gpu=5), state, bits) == [
        'dstack_gpu_state{index="0",state="started"} 0',
        'dstack_gpu_state{index="0",state="completed"} 1',
        'dstack_gpu_reason{index="0",reason="idle"} 1',
        'dstack_gpu_reason{index="0",reason="hot"} 1',
    ]
    assert written(GpuDevice(), state, bits) == []


def test_texts_are_the_labels_of_one_info_series_and_escaped() -> None:
    rows = [row(name, Metric("info", "I.", kind=INFO, each=name), unit=TEXT_VALUE) for name in ("name", "vbios")]
    made, lines = CardLines(rows, table.card_families(rows, table.CARD_LABELS), {"name": 0, "vbios": 1}), Lines()
    made.write_columns(lines, [lines.labels(("index",), ("0",))], [('H"200',), (None,)])
    assert lines.fragment().lines == {"dstack_gpu_info": 'dstack_gpu_info{index="0",name="H\\"200",vbios=""} 1\n'}
    assert made.read([('H"200',), (None,)]) == ((('H"200', None),), [1])
    assert made.read([(None,), (None,)]) == (((None, None),), [None])


HIGHEST = {
    FieldDescriptor.CPPTYPE_UINT32: U32,
    FieldDescriptor.CPPTYPE_UINT64: U64,
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
}
# A possible value for each row that is a number with a metric, the same ones for every card.
GOOD = {row.name: max(row.least, 1) for row in ROWS if row.metric and row.unit not in (TEXT_VALUE, FLAG)} | {
    "memory_total_bytes": 9
}


def samples(**values: Any) -> set[str]:
    """What stands on the page of a card with these values beside one with good ones, the card's own series without their numbers."""
    reply = GpuInfoResponse()
    reply.gpus.add(index=0, **values)
    reply.gpus.add(index=1, **GOOD)
    lines = Lines()
    gpu.add_gpus(lines, reply)
    return {line.rpartition(" ")[0] for text in lines.fragment().lines.values() for line in text.splitlines()}


@pytest.mark.parametrize("field", GOOD)
def test_no_impossible_number_becomes_a_sample_and_the_other_values_stay(field: str) -> None:
    highest = HIGHEST[GpuDevice.DESCRIPTOR.fields_by_name[field].cpp_type]
    # Without a total nobody knows what the parts are of that came with it.
    parts = {part for check in CHECKS if check.whole == field for part in check.parts}
    unknown = {field, *(part for part in parts if FIELDS[part].question == FIELDS[field].question)}
    expected = samples(**{name: value for name, value in GOOD.items() if name not in unknown})
    assert samples(**{**GOOD, field: highest}) == expected
    assert samples(**GOOD) > expected


@pytest.mark.parametrize(("given", "there"), [(0, True), (1024, True), (1025, False), (U32, False)])
def test_more_cards_on_the_bus_than_any_machine_has_are_no_sample(given: int, there: bool) -> None:
    lines = Lines()
    gpu.add_gpus(lines, GpuInfoResponse(pci_devices=given))
    assert (table.GPU_PCI_DEVICES.name in lines.fragment().lines) == there


@pytest.mark.parametrize("each", [row for row in ROWS if row.metric], ids=lambda each: each.name)
def test_a_row_of_the_table_is_on_the_page_and_in_the_reference(each: Field) -> None:
    reply = GpuInfoResponse()
    reply.gpus.add(**{each.name: "x" if each.unit == TEXT_VALUE else max(each.least, 1)})
    lines = Lines()
    gpu.add_gpus(lines, reply)
    family = table.CARD_FAMILIES[each.name]
    assert family.name in lines.fragment().lines
    assert family in table.ALL
    assert f"`{family.name}`" in (Path(__file__).parents[2] / "docs/metrics.md").read_text()
