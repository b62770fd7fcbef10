"""Sums are the same whether cards are judged for them or were judged before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import GpuDevice
from guest_contract import card_sums, card_values

_PERCENT, _BYTES = st.none() | st.integers(0, 200), st.none() | st.integers(0, 2**57)


@given(st.lists(st.builds(GpuDevice, utilization_gpu=_PERCENT, memory_used_bytes=_BYTES, memory_total_bytes=_BYTES), max_size=8))
def test_sums_of_judged_cards_are_those_of_the_cards(devices: list[GpuDevice]) -> None:
    assert card_sums.of_values(card_values.read_all(devices)) == card_sums.of_cards(devices)


def test_a_sum_leaves_out_what_is_unknown_or_impossible() -> None:
    cards = [GpuDevice(utilization_gpu=50), GpuDevice(utilization_gpu=101), GpuDevice()]
    load = next(each for each in card_sums.of_values(card_values.read_all(cards)).said() if each.field.name == "utilization_gpu")
    assert str(load) == "50 % (1 of 3)"
