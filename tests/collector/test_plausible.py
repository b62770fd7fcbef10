"""What is physically possible passes unchanged; what is not is refused, never clamped, and said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from guest_service.collector import plausible

UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)


@given(UINT32 | st.integers(0, 110), UINT32 | st.integers(0, 110))
def test_a_utilization_is_itself_or_unset_with_a_reason(gpu: int, memory: int) -> None:
    kept_gpu, kept_memory, reason = plausible.judge_utilization(gpu, memory)
    assert kept_gpu == (gpu if gpu <= 100 else None)
    assert kept_memory == (memory if memory <= 100 else None)
    assert bool(reason) == (kept_gpu is None or kept_memory is None)


@given(UINT64 | st.integers(0, 10), UINT64 | st.integers(0, 10), UINT64 | st.integers(0, 10))
def test_no_part_of_memory_that_stands_exceeds_a_total_that_stands(total: int, used: int, free: int) -> None:
    kept_total, kept_used, kept_free, reason = plausible.judge_memory(total, used, free)
    for given_value, kept in ((total, kept_total), (used, kept_used), (free, kept_free)):
        assert kept in (given_value, None)
    assert kept_total is not None or (kept_used is None and kept_free is None)
    assert all(kept is None or kept <= total for kept in (kept_used, kept_free))
    assert bool(reason) == (None in (kept_total, kept_used, kept_free))


@given(UINT32, UINT32 | st.none())
def test_power_is_itself_or_unset_with_a_reason(milliwatts: int, limit: int | None) -> None:
    kept, reason = plausible.judge_power(milliwatts, limit)
    assert kept in (milliwatts, None)
    assert bool(reason) == (kept is None)
    assert kept is None or kept <= 5_000_000


@given(st.integers(-(2**31), 2**32))
def test_a_temperature_is_itself_or_unset_with_a_reason(celsius: int) -> None:
    kept, reason = plausible.judge_temperature(celsius)
    assert kept == (celsius if 0 <= celsius <= 200 else None)
    assert bool(reason) == (kept is None)


def test_every_sentinel_of_nvml_is_refused() -> None:
    for sentinel in (0xFFFFFFFF, 0xFFFFFFFE, 0x7FFFFFFF):
        assert plausible.judge_utilization(sentinel, sentinel)[:2] == (None, None)
        assert plausible.judge_temperature(sentinel)[0] is None
        assert plausible.judge_power(sentinel, None)[0] is None
    for sentinel in (0, 2**64 - 1, 2**63 - 1):
        assert plausible.judge_memory(sentinel, 0, 0)[:3] == (None, None, None)
