"""Growth by slope."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.trend import LEAST_MEASUREMENTS, Bound, growth


def test_a_steady_leak_is_found_under_noise_that_is_larger_than_it() -> None:
    noise = random.Random(1)
    measured = [(float(second), 100.0 + second * 0.1 + noise.uniform(-3, 3)) for second in range(300)]
    assert growth(measured) == pytest.approx(30, abs=3)


def test_a_quarter_of_wild_readings_is_no_growth() -> None:
    measured = [(float(second), 1e9 if second % 4 == 3 else 50.0) for second in range(100)]
    assert growth(measured) == 0


def test_a_high_last_reading_is_no_growth_and_a_low_one_hides_none() -> None:
    flat = [(float(second), 10.0) for second in range(50)]
    assert growth([*flat, (50.0, 500.0)]) == 0
    rising = [(float(second), float(second)) for second in range(50)]
    assert growth([*rising, (50.0, 0.0)]) == pytest.approx(50)


def test_too_few_readings_say_nothing() -> None:
    assert growth([(float(n), n * 100.0) for n in range(LEAST_MEASUREMENTS - 1)]) == 0


@given(st.integers(-1000, 1000), st.integers(LEAST_MEASUREMENTS, 900))
def test_a_straight_line_grows_by_what_it_grows_by_however_many_readings_there_are(slope: int, count: int) -> None:
    measured = [(float(second), float(slope * second)) for second in range(count)]
    assert growth(measured) == pytest.approx(slope * (count - 1))


def test_a_bound_allows_once_something_and_by_the_minute_some_more() -> None:
    assert Bound(once=4, per_minute=2).over(90) == 7
