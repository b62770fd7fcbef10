"""max-age is read as RFC 9111 writes it; what is malformed is refused with what is allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_contract.cache_control import LONGEST_SECONDS, CacheControlError, parse_max_age


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ([], None),
        ([""], None),
        (["max-age=0"], 0),
        (["max-age=5"], 5),
        (["Max-Age=5"], 5),
        (['max-age="5"'], 5),
        (["max-age = 5"], 5),
        (["no-store, max-age=15 , max-stale"], 15),
        ([",, max-age=7,"], 7),
        (["max-age=10", "max-age=3"], 3),
        (["max-age=10, max-age=3"], 3),
        (["no-cache"], 0),
        (["max-age=10, no-cache"], 0),
        (["max-stale=60"], None),
        (["x-max-age=60"], None),
        (['other="a, max-age=3, b"'], None),
        (['other="a\\", max-age=3"'], None),
        (["max-age=007"], 7),
        (["max-age=" + "0" * 50 + "7"], 7),
        (["max-age=99999999999999999999"], LONGEST_SECONDS),
        ([f"max-age={2**31 + 1}"], LONGEST_SECONDS),
    ],
)
def test_max_age_is_read_wherever_it_stands(values: list[str], seconds: float | None) -> None:
    assert parse_max_age(values) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "max-age",
        "max-age=",
        "max-age=5s",
        "max-age=-1",
        "max-age=1.5",
        "max-age=+1",
        'max-age=""',
        'max-age="',
        "max-age=٣",
        "max-age=nan",
        "max-age=5 s",
        "max-age=5;a",
        'max-age="5',
    ],
)
def test_a_max_age_that_is_no_whole_number_is_refused_and_not_ignored(value: str) -> None:
    with pytest.raises(CacheControlError, match="max-age must be a whole number of seconds, not"):
        parse_max_age([value])


def test_the_refusal_quotes_no_more_than_a_little_of_what_was_sent() -> None:
    with pytest.raises(CacheControlError) as refused:
        parse_max_age(["max-age=" + "x" * 5000])
    assert len(str(refused.value)) < 120


@given(st.integers(0, LONGEST_SECONDS), st.lists(st.sampled_from(["no-store", "max-stale", "a=b", 'c="d,e"']), max_size=3))
def test_any_number_of_seconds_is_read_among_any_directives(seconds: int, others: list[str]) -> None:
    assert parse_max_age([", ".join([*others, f"max-age={seconds}"])]) == seconds
    assert parse_max_age([",".join([f"max-age={seconds}", *others])]) == seconds


@given(st.lists(st.text(max_size=30), max_size=3))
def test_any_text_is_read_or_refused_and_nothing_else(values: list[str]) -> None:
    try:
        age = parse_max_age(values)
    except CacheControlError:
        return
    assert age is None or 0 <= age <= LONGEST_SECONDS


@pytest.mark.timeout(5)
@pytest.mark.parametrize("value", ['"' * 10_000, "a=" * 5_000, 'a="\\' * 4_000, " ," * 8_000, "a " * 8_000])
def test_hostile_text_takes_no_time(value: str) -> None:
    assert parse_max_age([value]) is None
